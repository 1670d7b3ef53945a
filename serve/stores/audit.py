"""The audit log: who did what to which object, by which request, with which outcome.

The code only appends to it and reads it. It holds ids, no bodies, no names and no secrets.
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
"""Who acts by `agent-rft keys`, in the server's folder or database."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One act. `at` is Unix seconds, `actor` the id of an API key or OPERATOR, `object` an id.

    An act is `refused` if the key lacks a scope, and `failed` for any other reason; `status` is that of the answer.
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
    """The acts on a server. `clock` returns Unix seconds."""

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
        # A path may name an object that never existed, of any length.
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
        """The latest entries that fit all filters, newest first."""
        filters = {"actor": actor, "action": action, "object": object, "outcome": outcome}
        wanted = {name: value for name, value in filters.items() if value is not None}
        columns = [getattr(AuditRow, field.name) for field in fields(AuditEntry)]
        rows = select(*columns).filter_by(**wanted).order_by(AuditRow.number.desc()).limit(limit)
        with self._database.session() as session:
            return [AuditEntry(*row) for row in session.execute(rows)]
