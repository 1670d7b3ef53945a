"""The history of the tables ends with what the classes say, on both kinds of database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text

from cluster.database import Base, Database
from cluster.job_tables import NewJob
from cluster.migrate import migrate
from cluster.store import JobStore


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    is_sqlite = request.param == "sqlite"
    database = Database.of_folder(tmp_path) if is_sqlite else Database(request.getfixturevalue("postgresql_url"))
    yield database
    Base.metadata.drop_all(database.engine)
    with database.engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS alembic_version"))
    database.close()


def test_after_all_revisions_nothing_is_left_to_change(empty: Database) -> None:
    migrate(empty)
    with empty.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        left = compare_metadata(context, Base.metadata)
    assert left == [], 'write the next revision: python -m cluster.migrate "what has changed"'


def test_a_server_that_starts_again_finds_its_data(empty: Database) -> None:
    migrate(empty)
    new = NewJob("k", "gpt-5", "gpt-5", "file-1", None, None, {"type": "supervised"}, 1, None, None, "sealed", "d")
    job, _ = JobStore(empty).create(new)
    migrate(empty)
    assert JobStore(empty).get(job.id) == job
