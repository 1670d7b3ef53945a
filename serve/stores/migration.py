"""Migration of a server's database to this version's schema, whenever a server or a command starts.

`migrations/versions` holds the schema's history, and a test checks that it ends with the current table classes. After
changing a table, write the next revision with

    python -m agent_rft.serve.stores.migration "what has changed"

which compares the classes with a new database at the latest revision.
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
import agent_rft.serve.stores.key_store  # noqa: F401
from agent_rft.errors import OutdatedFormat, UserError
from agent_rft.serve.stores.database import Database, DatabaseError, reason_of

FOLDER = Path(__file__).parent / "migrations"
_ALEMBIC_LOCK = threading.Lock()
"""Lock around Alembic, which has one context per process."""
REVISIONS_BEFORE_0_2_0 = frozenset(f"{number:04}" for number in range(1, 8))
"""Revisions of databases made before 0.2.0, which later versions do not read."""
TABLES_LOCK = 0x7461626C
"""PostgreSQL advisory lock held while migrating, for servers that start concurrently."""


class NewerDatabase(UserError):
    """A newer version made the tables, so this version cannot read them."""


def migrate(database: Database, revision: str = "head") -> None:
    """Create the tables or upgrade them to a revision. Idempotent; data is preserved.

    Raises:
        OutdatedFormat: A version before 0.2.0 made the tables.
        NewerDatabase: The revision of the tables does not exist in this version.
    """
    logging.getLogger("alembic").setLevel(logging.WARNING)
    with _ALEMBIC_LOCK, database.engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": TABLES_LOCK})
        config = _config(connection)
        found = MigrationContext.configure(connection).get_current_revision()
        where = database.engine.url.render_as_string(hide_password=True)
        if found in REVISIONS_BEFORE_0_2_0:
            raise OutdatedFormat.for_path(f"the database {where}")
        if found is not None and found not in revisions():
            raise NewerDatabase(
                f"the database {where} was made by a newer version of agent-rft (revision {found}). "
                "Use that version, or restore the backup made before its upgrade."
            )
        command.upgrade(config, revision)


def revisions() -> list[str]:
    """Return all revisions, oldest first."""
    scripts = ScriptDirectory(str(FOLDER))
    return [script.revision for script in scripts.walk_revisions()][::-1]


def open_database(folder: Path, url: str | None) -> Database:
    """Open the database at `url`, or by default a file in `folder`, and migrate its tables.

    Raises:
        UserError: The URL is invalid, the database does not answer, or the database was made before 0.2.0 or by a newer
            version.
    """
    database = Database.of_folder(folder.resolve()) if url is None else Database(_checked_url(url))
    try:
        migrate(database)
    except DatabaseError as error:
        where = database.engine.url.render_as_string(hide_password=True)
        raise UserError(f"the database {where} cannot be used: {reason_of(error)}") from None
    return database


def _checked_url(url: str) -> str:
    try:
        name = make_url(url).get_backend_name()
    except ArgumentError:
        raise UserError("--database is not a valid URL; give postgresql://user:password@host/name") from None
    if name not in ("postgresql", "sqlite"):
        raise UserError(f"--database: {name} is not supported; give postgresql://user:password@host/name")
    return url


def write_revision(message: str) -> None:
    """Write the next revision to `migrations/versions`; run `ruff format` on it afterwards."""
    number = 1 + len(list((FOLDER / "versions").glob("r*.py")))
    with tempfile.TemporaryDirectory() as folder:
        database = Database.of_folder(Path(folder))
        migrate(database)
        with database.engine.begin() as connection:
            command.revision(_config(connection), message, autogenerate=True, rev_id=f"r{number:04}")
        database.close()


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    config.attributes["connection"] = connection
    return config


if __name__ == "__main__":
    write_revision(sys.argv[1])
