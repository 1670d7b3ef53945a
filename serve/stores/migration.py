"""Migration of a server's database to this version's schema, whenever a server or a command starts.

The folder `migrations/versions` contains the history of the schema. A test checks that the latest revision agrees with
the table classes. After you have changed a table, write the next revision with

    python -m agent_rft.serve.stores.migration "what has changed"

The command compares the table classes with a new database at the latest revision.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

# Imported for their tables: migrations only cover modules that are imported here.
import agent_rft.serve.stores.audit_log
import agent_rft.serve.stores.file_store
import agent_rft.serve.stores.job_tables
import agent_rft.serve.stores.key_store
import agent_rft.serve.stores.model_registry  # noqa: F401
from agent_rft.errors import OutdatedFormat, UserError
from agent_rft.serve.stores.database import Database, DatabaseError, describe_error

FOLDER = Path(__file__).parent / "migrations"
_ALEMBIC_LOCK = threading.Lock()
"""Lock around Alembic, which has only one context per process."""
REVISIONS_BEFORE_0_2_0 = frozenset([*(f"{number:04}" for number in range(1, 8)), "r0001"])
"""Schema revisions that versions before 0.2.0 created; this version cannot read them."""
TABLES_LOCK = 0x7461626C
"""PostgreSQL advisory lock held during a migration, because several servers may start concurrently."""


class NewerDatabase(UserError):
    """A newer version of agent-rft created the database, so this version cannot read it."""


def migrate(database: Database, revision: str = "head") -> None:
    """Create the tables, or upgrade them to a revision. Idempotent; data is preserved.

    Raises:
        OutdatedFormat: A version before 0.2.0 created the tables.
        NewerDatabase: The revision of the tables does not exist in this version.
    """
    logging.getLogger("alembic").setLevel(logging.WARNING)
    with _ALEMBIC_LOCK, database.engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": TABLES_LOCK})
        config = _alembic_config(connection)
        found = MigrationContext.configure(connection).get_current_revision()
        where = database.engine.url.render_as_string(hide_password=True)
        if found in REVISIONS_BEFORE_0_2_0:
            raise OutdatedFormat.for_path(f"the database {where}")
        if found is not None and found not in revisions():
            raise NewerDatabase(
                f"the database {where} was made by a newer version of agent-rft (revision {found}). "
                "Use the newer version, or restore the backup that was made before the upgrade."
            )
        command.upgrade(config, revision)


def revisions() -> list[str]:
    """Return the ids of all schema revisions, oldest first."""
    scripts = ScriptDirectory(str(FOLDER))
    return [script.revision for script in scripts.walk_revisions()][::-1]


def open_database(folder: Path, url: str | None) -> Database:
    """Open the database at `url`, or by default a file in `folder`, and migrate its tables.

    Raises:
        UserError: The URL is invalid, the database does not answer, or the database was created by a version before
            0.2.0 or by a newer version.
    """
    database = Database.from_folder(folder.resolve()) if url is None else Database(_checked_url(url))
    try:
        migrate(database)
    except DatabaseError as error:
        where = database.engine.url.render_as_string(hide_password=True)
        raise UserError(f"the database {where} cannot be used: {describe_error(error)}") from None
    return database


def _checked_url(url: str) -> str:
    try:
        name = make_url(url).get_backend_name()
    except ArgumentError:
        raise UserError("--database is not a valid URL; set it to postgresql://user:password@host/name") from None
    if name not in ("postgresql", "sqlite"):
        raise UserError(f"--database: {name} is not supported; use postgresql://user:password@host/name")
    return url


def write_revision(message: str) -> None:
    """Write the next schema revision to `migrations/versions`. Run `ruff format` on the file afterwards."""
    number = 1 + len(list((FOLDER / "versions").glob("v*.py")))
    with tempfile.TemporaryDirectory() as folder:
        database = Database.from_folder(Path(folder))
        migrate(database)
        with database.engine.begin() as connection:
            command.revision(_alembic_config(connection), message, autogenerate=True, rev_id=f"v{number:04}")
        database.close()


def _alembic_config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    config.attributes["connection"] = connection
    return config


if __name__ == "__main__":
    write_revision(sys.argv[1])
