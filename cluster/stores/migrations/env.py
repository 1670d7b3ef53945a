"""Alembic's entry: runs in the transaction that `cluster.stores.migrate` has begun."""

from alembic import context

from cluster.stores.database import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # SQLite changes a table by making it anew
)
with context.begin_transaction():
    context.run_migrations()
