"""Threads, their items, and responses."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    _threads()
    _items()
    _responses()


def _threads() -> None:
    op.create_table(
        "threads",
        sa.Column("key", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("name", sa.Text),
        sa.Column("root", sa.BigInteger),
        sa.Column("base", sa.BigInteger, nullable=False),
        sa.Column("tip", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("segments", sa.Text, nullable=False),
        sa.Column("metadata", sa.LargeBinary, nullable=False),
        sqlite_autoincrement=True,
    )
    named, derived = sa.text("name IS NOT NULL"), sa.text("root IS NOT NULL")
    op.create_index(
        "threads_name", "threads", ["tenant", "name"], unique=True, sqlite_where=named, postgresql_where=named
    )
    op.create_index("threads_root", "threads", ["root"], sqlite_where=derived, postgresql_where=derived)


def _items() -> None:
    op.create_table(
        "items",
        sa.Column("thread", sa.BigInteger, sa.ForeignKey("threads.key"), nullable=False),
        sa.Column("pos", sa.BigInteger, nullable=False),
        sa.Column("hidden", sa.SmallInteger, nullable=False, server_default="0"),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_index("items_place", "items", ["thread", "pos"], unique=True)
    op.create_index("items_id", "items", ["id"])


def _responses() -> None:
    op.create_table(
        "responses",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("completed_at", sa.BigInteger),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("previous", sa.Text),
        sa.Column("conversation", sa.Text),
        sa.Column("thread", sa.BigInteger, sa.ForeignKey("threads.key")),
        sa.Column("start_pos", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("input_end", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("end_pos", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("lease", sa.BigInteger),
        sa.Column("deleted", sa.SmallInteger, nullable=False, server_default="0"),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("inputs", sa.LargeBinary),
    )
    running = sa.text("lease IS NOT NULL")
    op.create_index("responses_page", "responses", ["tenant", "owner", "created_at", "id"])
    op.create_index("responses_thread", "responses", ["thread"])
    op.create_index("responses_lease", "responses", ["lease"], sqlite_where=running, postgresql_where=running)
