"""Synthetic runs, and databases for tests of stores; tests/integration runs the same tests on a real PostgreSQL.

SQLAlchemy and Alembic are imported where they are used: the process that hands the tests out reads this file first.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.synthetic import Synthetic

if TYPE_CHECKING:
    from agent_rft.serve.stores.database import Database


@pytest.fixture
def synthetic() -> Synthetic:
    return Synthetic()


@pytest.fixture
def empty_database(tmp_path: Path) -> Iterator[Database]:
    """Without tables."""
    from agent_rft.serve.stores.database import Database

    database = Database.from_folder(tmp_path)
    yield database
    database.close()


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a database that has all tables, and nothing in them."""
    from agent_rft.serve.stores.database import Database
    from agent_rft.serve.stores.migration import migrate

    folder = tmp_path_factory.mktemp("database")
    database = Database.from_folder(folder)
    migrate(database)
    database.close()
    return folder


@pytest.fixture
def any_database(migrated: Path, tmp_path: Path) -> Iterator[Database]:
    """With all tables."""
    from agent_rft.serve.stores.database import Database

    shutil.copytree(migrated, tmp_path, dirs_exist_ok=True)
    database = Database.from_folder(tmp_path)
    yield database
    database.close()
