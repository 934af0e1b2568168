"""Vector stores, their files, and the batches that files came in."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    _stores()
    _files()
    _batches()


def _stores() -> None:
    op.create_table(
        "vector_stores",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("last_active_at", sa.BigInteger, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("embedding_model", sa.Text, nullable=False),
        sa.Column("dimensions", sa.Integer, nullable=False),
        sa.Column("shortened", sa.SmallInteger, nullable=False),
        sa.Column("expires_days", sa.Integer),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("metadata", sa.LargeBinary, nullable=False),
    )
    op.create_index("vector_stores_page", "vector_stores", ["tenant", "owner", "created_at", "id"])


def _files() -> None:
    op.create_table(
        "vector_files",
        sa.Column("store", sa.Text, sa.ForeignKey("vector_stores.id"), primary_key=True),
        sa.Column("file", sa.Text, primary_key=True),
        sa.Column("document", sa.Text),
        sa.Column("filename", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("error_code", sa.Text),
        sa.Column("error_message", sa.Text),
        sa.Column("usage_bytes", sa.BigInteger, nullable=False),
        sa.Column("chunks", sa.Integer, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("lease", sa.BigInteger),
        sa.Column("claim", sa.Text),
        sa.Column("chunking", sa.LargeBinary, nullable=False),
        sa.Column("attributes", sa.LargeBinary, nullable=False),
    )
    waiting = sa.text("status = 'in_progress'")
    op.create_index("vector_files_page", "vector_files", ["store", "created_at", "file"])
    op.create_index("vector_files_counts", "vector_files", ["store", "status", "document", "usage_bytes"])
    op.create_index("vector_files_file", "vector_files", ["file"])
    op.create_index(
        "vector_files_waiting",
        "vector_files",
        ["created_at", "file"],
        sqlite_where=waiting,
        postgresql_where=waiting,
    )


def _batches() -> None:
    op.create_table(
        "vector_batches",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("store", sa.Text, sa.ForeignKey("vector_stores.id"), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("cancelled", sa.SmallInteger, nullable=False),
    )
    op.create_index("vector_batches_store", "vector_batches", ["store"])
    op.create_table(
        "vector_batch_files",
        sa.Column("batch", sa.Text, sa.ForeignKey("vector_batches.id"), primary_key=True),
        sa.Column("file", sa.Text, primary_key=True),
    )
