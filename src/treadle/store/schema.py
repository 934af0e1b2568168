"""The tables, as SQLAlchemy metadata. Imported by migrations and their tests only: the import costs 0.6 s.

A changed table needs a new file in `migrations/versions/` and its name in `db.REVISIONS`.

Blobs stand last in their tables, so that reading the other columns never follows their overflow pages.
"""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

# SQLite numbers rows by itself only in a column that is declared INTEGER.
Key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

threads = sa.Table(
    "threads",
    metadata,
    sa.Column("key", Key, primary_key=True, autoincrement=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("name", sa.Text),  # the conversation's id
    sa.Column("root", sa.BigInteger),  # the thread this one descends from; null: it is a root itself
    sa.Column("base", sa.BigInteger, nullable=False),  # where its own items start
    sa.Column("tip", sa.BigInteger, nullable=False),  # where the next item goes; never falls, so positions stay unique
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("segments", sa.Text, nullable=False),  # inherited ranges, in order: [[thread, low, high], …]
    sa.Column("metadata", sa.LargeBinary, nullable=False),  # of the conversation
    # A key must never come back: a running turn may still hold a checkpoint on a thread that is gone.
    sqlite_autoincrement=True,
)
sa.Index("threads_name", threads.c.tenant, threads.c.name, unique=True, sqlite_where=threads.c.name.is_not(None),
         postgresql_where=threads.c.name.is_not(None))  # fmt: skip
sa.Index("threads_root", threads.c.root, sqlite_where=threads.c.root.is_not(None),
         postgresql_where=threads.c.root.is_not(None))  # fmt: skip

items = sa.Table(
    "items",
    metadata,
    sa.Column("thread", sa.BigInteger, sa.ForeignKey("threads.key"), nullable=False),
    sa.Column("pos", sa.BigInteger, nullable=False),
    sa.Column("hidden", sa.SmallInteger, nullable=False, server_default="0"),  # taken out of its conversation
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
)
sa.Index("items_place", items.c.thread, items.c.pos, unique=True)
sa.Index("items_id", items.c.id)

responses = sa.Table(
    "responses",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("completed_at", sa.BigInteger),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("previous", sa.Text),
    sa.Column("conversation", sa.Text),
    sa.Column("thread", sa.BigInteger, sa.ForeignKey("threads.key")),  # null until settled
    sa.Column("start_pos", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("input_end", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("end_pos", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("lease", sa.BigInteger),  # Unix seconds; null: not running
    sa.Column("deleted", sa.SmallInteger, nullable=False, server_default="0"),  # deleted while running
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.Column("inputs", sa.LargeBinary),  # of a response that is not settled, whose items no thread holds
)
sa.Index("responses_page", responses.c.tenant, responses.c.owner, responses.c.created_at, responses.c.id)
sa.Index("responses_thread", responses.c.thread)
sa.Index("responses_lease", responses.c.lease, sqlite_where=responses.c.lease.is_not(None),
         postgresql_where=responses.c.lease.is_not(None))  # fmt: skip

approvals = sa.Table(
    "approvals",
    metadata,
    sa.Column("request", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("answered_at", sa.BigInteger, nullable=False),
)

files = sa.Table(
    "files",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),  # and the key of the blob
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger),
    sa.Column("filename", sa.Text, nullable=False),
    sa.Column("purpose", sa.Text, nullable=False),
    sa.Column("media_type", sa.Text, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
)
sa.Index("files_page", files.c.tenant, files.c.owner, files.c.created_at, files.c.id)
sa.Index("files_expiry", files.c.expires_at, sqlite_where=files.c.expires_at.is_not(None),
         postgresql_where=files.c.expires_at.is_not(None))  # fmt: skip

vector_stores = sa.Table(
    "vector_stores",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("last_active_at", sa.BigInteger, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("description", sa.Text, nullable=False),
    sa.Column("embedding_model", sa.Text, nullable=False),
    sa.Column("dimensions", sa.Integer, nullable=False),
    sa.Column("shortened", sa.SmallInteger, nullable=False),  # the model has to be asked for these dimensions
    sa.Column("expires_days", sa.Integer),
    sa.Column("version", sa.BigInteger, nullable=False),  # rises when searches see other files or attributes
    sa.Column("metadata", sa.LargeBinary, nullable=False),
)
sa.Index("vector_stores_page", vector_stores.c.tenant, vector_stores.c.owner, vector_stores.c.created_at,
         vector_stores.c.id)  # fmt: skip

vector_files = sa.Table(
    "vector_files",
    metadata,
    sa.Column("store", sa.Text, sa.ForeignKey("vector_stores.id"), primary_key=True),
    sa.Column("file", sa.Text, primary_key=True),
    sa.Column("document", sa.Text),  # not null: a chunk that came with its vector, under the id that callers see
    sa.Column("filename", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("error_code", sa.Text),
    sa.Column("error_message", sa.Text),
    sa.Column("usage_bytes", sa.BigInteger, nullable=False),
    sa.Column("chunks", sa.Integer, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("lease", sa.BigInteger),  # Unix seconds; null: nobody works on it
    sa.Column("claim", sa.Text),  # of whoever works on it
    sa.Column("chunking", sa.LargeBinary, nullable=False),
    sa.Column("attributes", sa.LargeBinary, nullable=False),
)
sa.Index("vector_files_page", vector_files.c.store, vector_files.c.created_at, vector_files.c.file)
sa.Index("vector_files_counts", vector_files.c.store, vector_files.c.status, vector_files.c.document,
         vector_files.c.usage_bytes)  # fmt: skip
sa.Index("vector_files_file", vector_files.c.file)
sa.Index("vector_files_waiting", vector_files.c.created_at, vector_files.c.file,
         sqlite_where=vector_files.c.status == "in_progress",
         postgresql_where=vector_files.c.status == "in_progress")  # fmt: skip

vector_batches = sa.Table(
    "vector_batches",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("store", sa.Text, sa.ForeignKey("vector_stores.id"), nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("cancelled", sa.SmallInteger, nullable=False),
)
sa.Index("vector_batches_store", vector_batches.c.store)

vector_batch_files = sa.Table(
    "vector_batch_files",
    metadata,
    sa.Column("batch", sa.Text, sa.ForeignKey("vector_batches.id"), primary_key=True),
    sa.Column("file", sa.Text, primary_key=True),
)

# Without row ids, the tables from here on need no second tree in SQLite for their keys: half the pages while empty.

# Work that outlives its request; the id is that of the response, batch or delivery it makes.
jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("attributes", sa.Text, nullable=False),  # of the owner, JSON
    sa.Column("created_at", sa.BigInteger, nullable=False),  # milliseconds, as the next
    sa.Column("due_at", sa.BigInteger, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("lease", sa.BigInteger),  # Unix seconds; null: nobody works on it
    sa.Column("claim", sa.Text),  # of whoever works on it
    sa.Column("cancelled", sa.SmallInteger, nullable=False),
    sa.Column("acted", sa.SmallInteger, nullable=False),  # a tool with side effects has run: never run it again
    sa.Column("payload", sa.LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)
sa.Index("jobs_due", jobs.c.kind, jobs.c.due_at)

response_events = sa.Table(
    "response_events",
    metadata,
    sa.Column("response", sa.Text, primary_key=True),
    sa.Column("first", sa.BigInteger, primary_key=True),  # sequence numbers, both inclusive
    sa.Column("last", sa.BigInteger, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

prompts = sa.Table(
    "prompts",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("latest", sa.Integer, nullable=False),
    sa.Column("chosen", sa.Integer, nullable=False),  # the version that is used where none is named
    sqlite_with_rowid=False,
)
sa.Index("prompts_page", prompts.c.tenant, prompts.c.owner, prompts.c.created_at, prompts.c.id)

prompt_versions = sa.Table(
    "prompt_versions",
    metadata,
    sa.Column("prompt", sa.Text, sa.ForeignKey("prompts.id"), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

batches = sa.Table(
    "batches",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("idempotency_key", sa.Text),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)
sa.Index("batches_page", batches.c.tenant, batches.c.owner, batches.c.created_at, batches.c.id)
sa.Index("batches_key", batches.c.tenant, batches.c.owner, batches.c.idempotency_key, unique=True,
         sqlite_where=batches.c.idempotency_key.is_not(None),
         postgresql_where=batches.c.idempotency_key.is_not(None))  # fmt: skip

# Lines that are done, until the batch is and they are in its files.
batch_results = sa.Table(
    "batch_results",
    metadata,
    sa.Column("batch", sa.Text, sa.ForeignKey("batches.id"), primary_key=True),
    sa.Column("line", sa.Integer, primary_key=True),
    sa.Column("failed", sa.SmallInteger, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)
