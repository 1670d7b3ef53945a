"""Audit log: actor, action, object, request and outcome of each operation on a server.

Entries are appended and read, but never changed. They contain ids, but no bodies, names or secrets.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal, get_args

from sqlalchemy import Float, String, select
from sqlalchemy.orm import Mapped, mapped_column

from agent_rft.serve.stores.database import Base, Database
from agent_rft.serve.stores.job_tables import Number

Outcome = Literal["done", "refused", "failed"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
OPERATOR = "operator"
"""Value of `AuditEntry.actor` for operations of the command `agent-rft keys`."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One operation. `at` is in Unix seconds, `actor` is the id of an API key or OPERATOR, and `object` is an id.

    `outcome` is `refused` if the key lacks a scope, and `failed` for any other error. `status` is the response's HTTP
    status.
    """

    at: float
    actor: str
    action: str
    object: str | None
    request_id: str | None
    outcome: Outcome
    status: int | None = None


class AuditRow(Base):
    __tablename__ = "audit"

    number: Mapped[int] = mapped_column(Number, primary_key=True, autoincrement=True)
    at: Mapped[float] = mapped_column(Float)
    actor: Mapped[str] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(32))
    object: Mapped[str | None] = mapped_column(String(255))
    request_id: Mapped[str | None] = mapped_column(String(128))
    outcome: Mapped[str] = mapped_column(String(16))
    status: Mapped[int | None]


class AuditLog:
    """Log of the operations on a server. `clock` returns Unix seconds."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def append(
        self,
        actor: str,
        action: str,
        object: str | None = None,
        *,
        request_id: str | None = None,
        outcome: Outcome = "done",
        status: int | None = None,
    ) -> None:
        entry = AuditEntry(self._clock(), actor, action, None, request_id, outcome, status)
        values = {name: getattr(entry, name) for name in AuditEntry.__slots__}
        # The id comes from a URL path: it may have any length, and the object may not exist.
        values["object"] = None if object is None else object.replace("\0", "")[:255]
        with self._database.session() as session:
            session.add(AuditRow(**values))

    def list(
        self,
        limit: int,
        *,
        actor: str | None = None,
        action: str | None = None,
        object: str | None = None,
        outcome: Outcome | None = None,
    ) -> list[AuditEntry]:
        """Return the latest entries that match all filters, newest first."""
        filters = {"actor": actor, "action": action, "object": object, "outcome": outcome}
        conditions = {name: value for name, value in filters.items() if value is not None}
        columns = [getattr(AuditRow, field.name) for field in fields(AuditEntry)]
        rows = select(*columns).filter_by(**conditions).order_by(AuditRow.number.desc()).limit(limit)
        with self._database.session() as session:
            return [AuditEntry(*row) for row in session.execute(rows)]
