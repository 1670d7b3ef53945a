"""Migrations: the revisions end with the present table classes, and data is preserved."""

from __future__ import annotations

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from cluster.stores.database import Base, Database
from cluster.stores.job_store import JobStore
from cluster.stores.job_tables import NewJob
from cluster.stores.migrate import migrate


def test_all_revisions_together_match_the_table_classes(empty_database: Database) -> None:
    migrate(empty_database)
    with empty_database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        differences = compare_metadata(context, Base.metadata)
    assert differences == [], 'write the next revision: python -m cluster.stores.migrate "what has changed"'


def test_a_restarted_server_finds_its_data(empty_database: Database) -> None:
    migrate(empty_database)
    new = NewJob("k", "gpt-5", "gpt-5", "file-1", None, None, {"type": "supervised"}, 1, None, None, "sealed", "d")
    job, _ = JobStore(empty_database).create(new)
    migrate(empty_database)
    assert JobStore(empty_database).get(job.id) == job
