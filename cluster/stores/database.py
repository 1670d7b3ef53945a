"""The database of a server: SQLite in one folder by default, PostgreSQL by URL. Tables stand with the code that owns
them (`Base`); rows leave a session only as values of our own.

Calls block for milliseconds; a server makes them in threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker

DatabaseError = SQLAlchemyError
"""Whatever a connection or a statement fails with."""
SQLITE_BUSY_S = 30.0
"""How long a writer waits for another one: SQLite has one at a time."""


class Base(DeclarativeBase):
    """Of all tables."""


class Database:
    """`url` is SQLAlchemy's: `sqlite:///folder/state.db` or `postgresql+psycopg://...`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = _engine(url)
        self._sessions = sessionmaker(self.engine, expire_on_commit=False)

    @classmethod
    def of_folder(cls, folder: Path) -> Database:
        """The default: a file in a server's folder."""
        folder.mkdir(parents=True, exist_ok=True)
        return cls(f"sqlite:///{folder / 'state.db'}")

    @contextmanager
    def session(self) -> Iterator[Session]:
        """One transaction: committed at the end of the block, rolled back where it raises."""
        with self._sessions.begin() as session:
            yield session

    @contextmanager
    def alone(self, lock: int) -> Iterator[None]:
        """Of all servers on this database, one at a time is inside; SQLite has but one."""
        if self.engine.dialect.name != "postgresql":
            yield
            return
        with self.engine.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": lock})
            yield

    def close(self) -> None:
        self.engine.dispose()


def _engine(url: str) -> Engine:
    if url.startswith("postgresql://"):
        url = "postgresql+psycopg://" + url.removeprefix("postgresql://")
    if not url.startswith("sqlite"):
        return create_engine(url, pool_pre_ping=True)
    engine = create_engine(url, connect_args={"timeout": SQLITE_BUSY_S})

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, record: Any) -> None:
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    return engine
