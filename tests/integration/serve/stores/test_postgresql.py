"""The stores behave on PostgreSQL as on SQLite: runs their unit tests with the fixtures of tests/integration."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from agent_rft.serve.stores.database import Base, Database
from agent_rft.serve.stores.migration import migrate
from tests.unit.serve.stores.test_audit_log import *  # noqa: F403
from tests.unit.serve.stores.test_file_store import *  # noqa: F403
from tests.unit.serve.stores.test_job_store import *  # noqa: F403
from tests.unit.serve.stores.test_key_store import *  # noqa: F403
from tests.unit.serve.stores.test_migration import *  # noqa: F403
from tests.unit.serve.stores.test_secret_rotation import *  # noqa: F403


def test_servers_that_start_at_the_same_time_create_the_tables_once(postgresql_url: str) -> None:
    databases = [Database(postgresql_url) for _ in range(4)]
    with ThreadPoolExecutor(len(databases)) as threads:
        list(threads.map(migrate, databases))
    Base.metadata.drop_all(databases[0].engine)
    for database in databases:
        database.close()
