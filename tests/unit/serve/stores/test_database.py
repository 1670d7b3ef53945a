"""Errors of a database that is away are told from those that no retry can repair."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import (
    DataError,
    IntegrityError,
    InterfaceError,
    InvalidRequestError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as NoConnection

from agent_rft.serve.stores.database import Database, DatabaseError, describe_error, is_unavailable


def test_broken_connections_and_an_exhausted_pool_are_outages() -> None:
    refused = psycopg.OperationalError("connection refused\nIs the server running?")
    assert is_unavailable(OperationalError("SELECT 1", {}, refused))
    assert is_unavailable(OperationalError("SELECT 1", {}, psycopg.errors.AdminShutdown("terminating connection")))
    assert is_unavailable(InterfaceError("SELECT 1", {}, psycopg.InterfaceError("the connection is closed")))
    assert is_unavailable(NoConnection("QueuePool limit of size 5 overflow 10 reached"))
    assert describe_error(OperationalError("SELECT 'secret'", {}, refused)) == "connection refused"


def test_errors_of_statements_and_other_exceptions_are_no_outages() -> None:
    for kind in (DataError, IntegrityError, ProgrammingError):
        assert not is_unavailable(kind("SELECT 1", {}, psycopg.Error("no")))
    assert not any(map(is_unavailable, (InvalidRequestError("no"), OSError("no"), TimeoutError("no"))))


def test_a_busy_sqlite_database_is_an_outage_and_a_missing_table_is_not(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'state.db'}?timeout=0")
    other = sqlite3.connect(tmp_path / "state.db")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(DatabaseError) as busy, database.session() as session:
        session.execute(text("CREATE TABLE things (id INTEGER)"))
    other.close()
    with pytest.raises(DatabaseError) as missing, database.session() as session:
        session.execute(text("SELECT * FROM things"))
    database.close()
    assert (is_unavailable(busy.value), is_unavailable(missing.value)) == (True, False)


@pytest.mark.parametrize(("options", "timeout"), [("", "5"), ("?connect_timeout=60", "60")])
def test_connecting_to_a_host_that_does_not_answer_takes_seconds_unless_the_url_asks_for_more(
    options: str, timeout: str
) -> None:
    database = Database(f"postgresql://me@db.invalid/name{options}")
    used: dict[str, Any] = {}

    @event.listens_for(database.engine, "do_connect")
    def connect(dialect: object, record: object, arguments: object, options: dict[str, Any]) -> None:
        used.update(options)
        raise psycopg.OperationalError("timed out")

    with pytest.raises(DatabaseError) as failed, database.session() as session:
        session.execute(text("SELECT 1"))
    assert is_unavailable(failed.value)
    assert (used["connect_timeout"], used["tcp_user_timeout"]) == (timeout, "15000")
