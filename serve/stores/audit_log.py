"""Audit log: actor, action, object, request and outcome of each operation on a server.

Entries contain ids, but no bodies, names or secrets.

Logins, and requests that change nothing, are recorded in full only up to a limit. Further requests of these kinds are
only counted, so that a key cannot fill the database. After an entry is written, only its count can change.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Literal, get_args

from sqlalchemy import Float, Integer, String, select, text, update
from sqlalchemy.orm import Mapped, mapped_column

from agent_rft.serve.stores.database import Base, Database
from agent_rft.serve.stores.job_tables import Number

Outcome = Literal["done", "refused", "failed"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
OPERATOR = "operator"
"""Value of `AuditEntry.actor` for operations of the command `agent-rft keys`."""
MAX_FULL_ENTRIES = 10
"""Maximum number of full entries per actor, hour and outcome for requests that are `countable`."""
HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One operation, or the count of several operations with the same actor, action and status.

    `at` is in Unix seconds, `actor` is the id of an API key or OPERATOR, and `object` is an id. `outcome` is `refused`
    if the key lacks a scope, and `failed` for any other error. `status` is the response's HTTP status. The server makes
    `request_id`; the client may have sent `client_request_id`. A count has no object and no request ids, and `at` is
    the time of its first operation.
    """

    at: float
    actor: str
    action: str
    object: str | None
    request_id: str | None
    outcome: Outcome
    status: int | None = None
    client_request_id: str | None = None
    num_requests: int = 1


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
    client_request_id: Mapped[str | None] = mapped_column(String(128))
    num_requests: Mapped[int] = mapped_column(Integer, server_default=text("1"))


class AuditLog:
    """Log of the operations on a server. `clock` returns Unix seconds.

    Each process keeps its own counts, and applies the limit MAX_FULL_ENTRIES separately.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        self._hour = 0
        self._num_full: Counter[tuple[str, Outcome]] = Counter()
        self._counts: dict[tuple[str, str, int | None], int] = {}
        """Numbers of this hour's rows that count operations, by actor, action and status."""

    def append(
        self,
        actor: str,
        action: str,
        object: str | None = None,
        *,
        request_id: str | None = None,
        outcome: Outcome = "done",
        status: int | None = None,
        client_request_id: str | None = None,
        countable: bool = False,
    ) -> None:
        """Record an operation.

        An actor's first MAX_FULL_ENTRIES `countable` operations per hour and outcome are recorded in full.
        Further countable operations are only counted.
        """
        now = self._clock()
        if countable and self._is_beyond_limit(actor, outcome, now):
            self._count(actor, action, outcome, status, now)
            return
        # The id comes from a URL path: it may have any length, and the object may not exist.
        object = None if object is None else object.replace("\0", "")[:255]
        self._add(AuditEntry(now, actor, action, object, request_id, outcome, status, client_request_id))

    def _is_beyond_limit(self, actor: str, outcome: Outcome, now: float) -> bool:
        with self._lock:
            if self._hour != (hour := int(now // HOUR_S)):
                self._hour = hour
                self._num_full.clear()
                self._counts.clear()
            self._num_full[actor, outcome] += 1
            return self._num_full[actor, outcome] > MAX_FULL_ENTRIES

    def _count(self, actor: str, action: str, outcome: Outcome, status: int | None, now: float) -> None:
        number = self._counts.get((actor, action, status))
        if number is None:  # several threads may add a row each; the sum of their counts is right
            self._counts[actor, action, status] = self._add(AuditEntry(now, actor, action, None, None, outcome, status))
            return
        more = update(AuditRow).where(AuditRow.number == number).values(num_requests=AuditRow.num_requests + 1)
        with self._database.session() as session:
            session.execute(more)

    def _add(self, entry: AuditEntry) -> int:
        with self._database.session() as session:
            row = AuditRow(**asdict(entry))
            session.add(row)
            session.flush()
            return row.number

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
