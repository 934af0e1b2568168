"""One file per schema revision, named in `treadle.store.db.REVISIONS`."""
