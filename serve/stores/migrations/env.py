"""Alembic's entry point; runs in the transaction that `agent_rft.serve.stores.migration` opens."""

from alembic import context

from agent_rft.serve.stores.database import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # SQLite alters a table by recreating it
)
with context.begin_transaction():
    context.run_migrations()
