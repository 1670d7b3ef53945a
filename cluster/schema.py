"""The tables of a database: made where they are missing, when a server or a command starts."""

from __future__ import annotations

from sqlalchemy import inspect, text

from cluster.database import Base, Database

TABLES_LOCK = 0x7461626C
"""PostgreSQL's advisory lock of two servers that start at a time."""


def create_tables(database: Database) -> None:
    """Makes the tables of all modules that are imported; those that are there stay as they are."""
    with database.engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": TABLES_LOCK})
        missing = set(Base.metadata.tables) - set(inspect(connection).get_table_names())
        Base.metadata.create_all(connection, [Base.metadata.tables[name] for name in missing])
