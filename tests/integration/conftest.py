"""A real PostgreSQL in place of the databases of tests/unit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import text

from agent_rft.serve.stores.database import Base, Database
from agent_rft.serve.stores.migration import migrate
from tests.support.postgres import postgres


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """Started when the first test asks for it."""
    with postgres() as url:
        yield url


@pytest.fixture
def empty_database(postgresql_url: str) -> Iterator[Database]:
    """Without tables."""
    database = Database(postgresql_url)
    yield database
    with database.engine.begin() as connection:
        Base.metadata.drop_all(connection)
        connection.execute(text("DROP TABLE IF EXISTS alembic_version"))
    database.close()


@pytest.fixture
def any_database(empty_database: Database) -> Database:
    """With all tables."""
    migrate(empty_database)
    return empty_database
