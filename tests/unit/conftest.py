"""Databases for tests of stores: the same tests on SQLite and on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from cluster.database import Base, Database
from cluster.migrate import migrate
from tests.postgres import postgres


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """Started when the first test asks for it."""
    with postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def any_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty database with all tables."""
    is_sqlite = request.param == "sqlite"
    database = Database.of_folder(tmp_path) if is_sqlite else Database(request.getfixturevalue("postgresql_url"))
    migrate(database)
    yield database
    with database.engine.begin() as connection:
        Base.metadata.drop_all(connection)
        connection.execute(text("DROP TABLE alembic_version"))
    database.close()
