"""Alembic's environment; run by `treadle.store.migrate`."""
