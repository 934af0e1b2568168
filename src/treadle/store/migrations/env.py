"""Run by Alembic for every command; `treadle.store.migrate` hands it the connection."""

from __future__ import annotations

from alembic import context

from treadle.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # All revisions in the one transaction that the caller opened: a second process waits, then has nothing to do.
    transactional_ddl=True,
    transaction_per_migration=False,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
