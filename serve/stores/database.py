"""Database of a server: SQLite in the server's folder by default, or PostgreSQL by URL.

Each table is defined next to the code that owns it, as a subclass of `Base`. ORM rows never leave a session; stores
return frozen dataclasses instead. Calls block for milliseconds, so a server makes them in threads. The server's folder
is private to its owner.
"""

from __future__ import annotations

import os
import pwd
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnection
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker

from agent_rft.errors import UserError

T = TypeVar("T")

DatabaseError = SQLAlchemyError
"""Base class of all connection and statement errors."""
SQLITE_BUSY_S = 30.0
"""Seconds that a writer waits for another writer, unless the URL sets `timeout`. SQLite allows one writer at a time."""
TRANSIENT_SQLITE = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
POSTGRESQL_DEFAULTS = {"connect_timeout": "5", "tcp_user_timeout": "15000"}
"""Default timeouts. The first is in seconds, and the second is in milliseconds."""


def is_unavailable(error: BaseException) -> bool:
    """Return whether the database is unreachable or busy. A retry may succeed."""
    if not isinstance(error, InterfaceError | OperationalError):
        return isinstance(error, NoConnection)
    if isinstance(error.orig, sqlite3.Error):
        code = getattr(error.orig, "sqlite_errorcode", None)  # absent if sqlite3 itself raised the error
        return code is not None and code & 0xFF in TRANSIENT_SQLITE  # the low byte is the primary code
    return True


def describe_error(error: BaseException) -> str:
    """Return the reason for a database error in one line, without the SQL statement, its parameters and the URL."""
    cause = getattr(error, "orig", None)
    return type(error).__name__ if cause is None else str(cause).strip().partition("\n")[0]


class Base(DeclarativeBase):
    """Base class of all tables."""


def to_record(kind: type[T], row: Any) -> T:
    """Convert a database row to the dataclass `kind`, whose fields have the names of the row's columns."""
    return kind(**{field.name: getattr(row, field.name) for field in fields(kind)})  # type: ignore[arg-type]


class Database:
    """Database at an SQLAlchemy URL: `sqlite:///folder/state.db` or `postgresql+psycopg://...`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = _create_engine(url)
        self._sessions = sessionmaker(self.engine, expire_on_commit=False)

    @classmethod
    def from_folder(cls, folder: Path) -> Database:
        """Open the default database, the SQLite file `state.db` in the server's folder."""
        folder.mkdir(parents=True, exist_ok=True)
        return cls(f"sqlite:///{folder / 'state.db'}")

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Context manager for one transaction, committed at the end of the block or rolled back if the block raises."""
        with self._sessions.begin() as session:
            yield session

    @contextmanager
    def exclusive(self, lock: int) -> Iterator[None]:
        """Context manager that holds the database lock with number `lock`, so that no other server can hold it.

        With PostgreSQL, the lock is an advisory lock. With SQLite, nothing is locked, because only one server uses the
        database.
        """
        if self.engine.dialect.name != "postgresql":
            yield
            return
        with self.engine.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": lock})
            yield

    def check(self) -> None:
        """Check that the database works, by reading a table.

        Raises:
            DatabaseError: The database cannot be used.
        """
        with self.engine.connect() as connection:
            connection.execute(text("SELECT version_num FROM alembic_version"))

    def close(self) -> None:
        self.engine.dispose()


def _create_engine(url: str) -> Engine:
    if url.startswith("postgresql://"):
        url = "postgresql+psycopg://" + url.removeprefix("postgresql://")
    given = make_url(url).query
    if not url.startswith("sqlite"):
        options = {name: value for name, value in POSTGRESQL_DEFAULTS.items() if name not in given}
        return create_engine(url, pool_pre_ping=True, hide_parameters=True, connect_args=options)
    busy = {} if "timeout" in given else {"timeout": SQLITE_BUSY_S}
    engine = create_engine(url, connect_args=busy, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def _set_pragmas(connection: Any, record: Any) -> None:
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    return engine


# -- private folder ----------------------------------------------------------------------------------------------------


def make_private(folder: Path, markers: Sequence[str], user: int | None = None) -> None:
    """Create a server's folder with mode 0700, or set this mode on an existing server's folder.

    The mode of an existing folder is changed only if `user` owns the folder, and if it is empty or contains a file
    named in `markers`. Other folders, such as a Kubernetes volume with a group (fsGroup), keep their mode. `user`
    defaults to the user of this process.

    Raises:
        UserError: All users can enter the folder, and this function is not allowed to change the folder's mode.
        OSError: The folder cannot be created or read.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    mode = stat.S_IMODE(found.st_mode)
    user = os.geteuid() if user is None else user
    if found.st_uid == user and mode & 0o077:
        names = os.listdir(folder)
        if not names or any(name in markers for name in names):
            folder.chmod(0o700)
            return
    if mode & stat.S_IXOTH:
        raise UserError(
            f"every user of this machine may enter the server's folder {folder}, which belongs to "
            f"{_describe_user(found.st_uid)} and has mode {mode:04o}. Run `chmod 700 {folder}`, or "
            f"`chmod o-rwx {folder}` to keep the group's access, or use an empty folder that you own."
        )


def _describe_user(user: int) -> str:
    with suppress(KeyError):
        return f"{pwd.getpwuid(user).pw_name} (user {user})"
    return f"user {user}"
