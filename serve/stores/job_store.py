"""Store of jobs, and of their events and checkpoints. The state in the store is authoritative, not Ray's.

Each change is either one conditional SQL statement or a transaction that begins by taking a lock. Two servers on one
database can therefore never make the same change twice. Calls block for milliseconds; a server makes them in threads.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, and_, case, delete, false, func, or_, select, text, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session, aliased

from agent_rft.events import Level
from agent_rft.serve.stores.database import Database, to_record
from agent_rft.serve.stores.job_progress import MeasuredProgress, load_progress
from agent_rft.serve.stores.job_states import (
    STATUSES,
    TERMINAL,
    IdempotencyConflict,
    IllegalStateChange,
    JobStatus,
    UnknownCursor,
    UnknownJob,
    check_state_change,
)
from agent_rft.serve.stores.job_tables import (
    CheckpointRecord,
    CheckpointRow,
    EventRecord,
    EventRow,
    EventType,
    JobError,
    JobRecord,
    JobRow,
    NewJob,
)

T = TypeVar("T")

JOB, READINESS = "ftjob", "ftready"
"""Id prefixes of jobs that train, and of readiness checks."""
CREATE_LOCK = 0x6A6F6273
"""PostgreSQL advisory lock held while a job is created, so that two equal requests do not create two jobs."""
IS_BEST = "is_best"
"""Metric of the best checkpoint."""


class JobStore:
    """Store of the jobs in a database. `clock` returns Unix seconds."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    # -- creation ------------------------------------------------------------------------------------------------------

    def create(
        self,
        new: NewJob,
        *,
        seal: Callable[[str], str] | None = None,
        idempotency_key: str | None = None,
        retry_window_s: float = 0.0,
    ) -> tuple[JobRecord, bool]:
        """Create a job, or find the existing job of a repeated request. Return the job, and whether it is new.

        With an Idempotency-Key, the existing job is the owner's job with the same key. Without a key, it is the job of
        an equal request that the owner sent within the last `retry_window_s` seconds.

        `seal` takes the new job's id, and returns its `sealed_spec`. It is called while `block_job_creation` is in
        effect, so that no job is sealed with a secret that is being replaced.

        Raises:
            IdempotencyConflict: The Idempotency-Key was used with a different request.
        """
        now = self._clock()
        with self._database.session() as session:
            block_job_creation(session)
            existing = self._find_existing(
                session, new, idempotency_key, now - retry_window_s if retry_window_s else None
            )
            if existing is not None:
                return existing, False
            id = _new_id(JOB if new.readiness is None else READINESS)
            values = asdict(new) | ({} if seal is None else {"sealed_spec": seal(id)})
            row = JobRow(
                **values,
                id=id,
                idempotency_key=idempotency_key,
                status="validating_files",
                created_at=now,
                status_changed_at=now,
                result_files=[],
                attempt=0,
                failures=0,
            )
            session.add(row)
            session.flush()
            return _to_job_record(row), True

    def _find_existing(self, session: Session, new: NewJob, key: str | None, since: float | None) -> JobRecord | None:
        mine = select(JobRow).where(JobRow.owner == new.owner)
        if key is not None:
            row = session.scalar(mine.where(JobRow.idempotency_key == key))
            if row is not None and row.digest != new.digest:
                raise IdempotencyConflict("this Idempotency-Key was already used with a different request")
            return None if row is None else _to_job_record(row)
        if since is None:
            return None
        equal = mine.where(JobRow.digest == new.digest, JobRow.created_at >= since)
        row = session.scalar(equal.order_by(JobRow.number.desc()).limit(1))
        return None if row is None else _to_job_record(row)

    # -- reading -------------------------------------------------------------------------------------------------------

    def get(self, job_id: str, owner: str | None = None) -> JobRecord:
        """Return the record of a job.

        Raises:
            UnknownJob: The job does not exist, or belongs to another owner.
        """
        with self._database.session() as session:
            return _to_job_record(_row(session, job_id, owner))

    def list_jobs(
        self,
        owner: str | None,
        *,
        after: str | None = None,
        limit: int = 20,
        labels: Mapping[str, str] | None = None,
        readiness_checks: bool = False,
    ) -> tuple[list[JobRecord], bool]:
        """Return a page of training jobs, newest first, and whether more jobs follow.

        If `owner` is None, the page contains jobs of all owners. With `readiness_checks`, the page contains readiness
        checks instead of training jobs.

        Raises:
            UnknownCursor: `after` is not a job of this owner.
        """
        mine: list[ColumnElement[bool]] = [
            JobRow.readiness.is_not(None) if readiness_checks else JobRow.readiness.is_(None)
        ]
        mine += [] if owner is None else [JobRow.owner == owner]
        having = [JobRow.labels[key].as_string() == value for key, value in (labels or {}).items()]
        with self._database.session() as session:
            rows, more = _fetch_page(
                session, _select_columns(JobRecord, JobRow).where(*having), JobRow, after, limit, mine
            )
            return [_to_job_record(row) for row in rows], more

    def progress(self, job: JobRecord) -> MeasuredProgress | None:
        """Return the job's progress, or None if nothing was measured yet."""
        with self._database.session() as session:
            return load_progress(session, job.id, validates=job.validation_file is not None)

    def list_with_status(self, *statuses: JobStatus) -> list[JobRecord]:
        """Return the jobs in any of these states, oldest first."""
        return self._find_jobs(JobRow.status.in_(statuses))

    def live_metrics(self) -> dict[str, float]:
        """Return the number of jobs in each state and the waiting time of the oldest queued job, as metrics."""
        with self._database.session() as session:
            found = session.execute(select(JobRow.status, func.count()).group_by(JobRow.status))
            counts = {f"api_jobs/{s}": float(n) for s, n in found}
            oldest = session.scalar(select(func.min(JobRow.status_changed_at)).where(JobRow.status == "queued"))
        age_s = 0.0 if oldest is None else max(0.0, self._clock() - oldest)
        return {f"api_jobs/{status}": 0.0 for status in STATUSES} | counts | {"api_queue_age_s": age_s}

    def list_with_driver(self) -> list[JobRecord]:
        """Return the jobs that are not running but whose driver may still exist, oldest first."""
        return self._find_jobs(JobRow.handle.is_not(None), JobRow.status != "running")

    def _find_jobs(self, *conditions: ColumnElement[bool]) -> list[JobRecord]:
        with self._database.session() as session:
            return [
                _to_job_record(row)
                for row in session.scalars(select(JobRow).where(*conditions).order_by(JobRow.number))
            ]

    # -- moves ---------------------------------------------------------------------------------------------------------

    def move(self, job_id: str, to: JobStatus, *, attempt: int | None = None, **changes: Any) -> JobRecord:
        """Change a job's state, and set the columns in `changes`.

        `attempt` is the number of a driver. If it is set, the job is changed only if this driver is the job's latest.

        Raises:
            UnknownJob: The job does not exist.
            IllegalStateChange: `STATE_CHANGES` does not allow the change, or driver `attempt` is not the latest.
        """
        now = self._clock()
        values: dict[str, Any] = {"status": to, "status_changed_at": now} | changes
        if to in TERMINAL:
            values |= {"finished_at": now, "estimated_finish": None}
        if to == "queued":
            values |= {"queued_at": now, "failures": 0}
        if isinstance(values.get("error"), JobError):
            values["error"] = asdict(values["error"])
        while True:
            with self._database.session() as session:
                row = _row(session, job_id)
                seen: JobStatus = row.status  # type: ignore[assignment]
                check_state_change(job_id, seen, to)
                if attempt is not None and row.attempt != attempt:
                    raise IllegalStateChange(
                        f"driver {attempt} of the job {job_id} was replaced by driver {row.attempt}"
                    )
                same = JobRow.id == job_id, JobRow.status == seen, JobRow.attempt == row.attempt
                if _has_changed(session, update(JobRow).where(*same).values(**values)):
                    session.refresh(row)
                    return _to_job_record(row)

    def claim_next(self, manager: str, limit: int, lease_s: float) -> JobRecord | None:
        """Set the next queued job to `running`, and lease it to `manager`.

        Owners take turns. The owner with the fewest running jobs goes first. If several owners have equally few
        running jobs, the owner whose last job started or ended longest ago goes first. Jobs of one owner start in the
        order in which they were queued. Readiness checks of one owner get at most half of `limit`, rounded up.

        Return None if no job can be claimed, or if `limit` jobs are already running. A job whose earlier driver may
        still exist cannot be claimed. Such a job counts as running.
        """
        now, other = self._clock(), aliased(JobRow)
        busy = select(func.count()).where(or_(other.status == "running", other.handle.is_not(None))).scalar_subquery()
        waiting, known = aliased(JobRow), aliased(JobRow)
        is_busy = or_(known.status == "running", known.handle.is_not(None))
        owners = (
            select(
                known.owner,
                func.sum(case((is_busy, 1), else_=0)).label("num_busy"),
                func.sum(case((and_(is_busy, known.readiness.is_not(None)), 1), else_=0)).label("num_readiness_checks"),
                func.max(case((known.attempt > 0, known.status_changed_at), else_=0)).label("last_turn"),
            )
            .group_by(known.owner)
            .subquery()
        )
        has_share = or_(waiting.readiness.is_(None), owners.c.num_readiness_checks < -(-limit // 2))
        first = (
            select(waiting.id)
            .join(owners, owners.c.owner == waiting.owner)
            .where(waiting.status == "queued", waiting.handle.is_(None), has_share)
            .order_by(owners.c.num_busy, owners.c.last_turn, waiting.queued_at, waiting.number)
            .limit(1)
            .scalar_subquery()
        )
        # One statement conditional on `status`: if two servers see the same queue, the second one changes nothing.
        claimed = (
            update(JobRow)
            .where(JobRow.id == first, JobRow.status == "queued", busy < limit)
            .values(
                status="running", status_changed_at=now, manager=manager, lease_until=now + lease_s, heartbeat_at=None
            )
            .returning(JobRow.id)
            .execution_options(synchronize_session=False)
        )
        with self._database.session() as session:
            job_id = session.execute(claimed).scalar_one_or_none()
            return None if job_id is None else _to_job_record(_row(session, job_id))

    def lease(self, job_id: str, manager: str, lease_s: float) -> bool:
        """Take or renew the lease on a job. Return False if another manager holds the lease."""
        now = self._clock()
        free = or_(JobRow.manager == manager, JobRow.lease_until.is_(None), JobRow.lease_until < now)
        return self._update(JobRow.id == job_id, free, manager=manager, lease_until=now + lease_s)

    # -- drivers -------------------------------------------------------------------------------------------------------

    def next_attempt(self, job_id: str, attempt: int, handle: str, *, failures: int) -> bool:
        """Record that the job's next driver, number `attempt` + 1, is about to start; `handle` is the driver's id.

        Return False if the job is no longer running, or if another driver was started.
        """
        same = JobRow.id == job_id, JobRow.status == "running", JobRow.attempt == attempt
        fresh = {"heartbeat_at": self._clock(), "driver_message": None}
        return self._update(*same, attempt=attempt + 1, handle=handle, failures=failures, **fresh)

    def clear_driver(self, job_id: str, handle: str) -> bool:
        return self._update(JobRow.id == job_id, JobRow.handle == handle, JobRow.status != "running", handle=None)

    def heartbeat(self, job_id: str, attempt: int) -> JobStatus | None:
        """Record a heartbeat of the job's driver; return the job's state, or None if the driver was replaced.

        `attempt` is the number of the driver. A driver that was replaced must exit immediately.
        """
        with self._database.session() as session:
            same = JobRow.id == job_id, JobRow.attempt == attempt
            beat = update(JobRow).where(*same).values(heartbeat_at=self._clock()).returning(JobRow.status)
            status: Any = session.execute(beat).scalar_one_or_none()
            return status  # type: ignore[no-any-return]

    def update_for_driver(self, job_id: str, attempt: int, **changes: Any) -> bool:
        """Set columns of a job for its driver: trained_tokens, estimated_finish, failures or driver_message.

        Return False if the driver with the number `attempt` was replaced.
        """
        return self._update(JobRow.id == job_id, JobRow.attempt == attempt, **changes)

    # -- events --------------------------------------------------------------------------------------------------------

    def add_event(
        self,
        job_id: str,
        level: Level,
        message: str,
        *,
        type: EventType = "message",
        data: Mapping[str, Any] | None = None,
    ) -> EventRecord:
        """Add an event to a job. `message` and `data` are public and must not contain secrets."""
        with self._database.session() as session:
            row = EventRow(
                id=_new_id("ftevent"),
                job_id=job_id,
                created_at=self._clock(),
                level=level,
                type=type,
                message=message.replace("\x00", "�"),
                data=None if data is None else dict(data),
            )
            session.add(row)
            session.flush()
            return to_record(EventRecord, row)

    def events(self, job_id: str, *, after: str | None = None, limit: int = 20) -> tuple[list[EventRecord], bool]:
        """Return a page of the job's events, newest first, and whether more follow.

        Raises:
            UnknownJob: The job does not exist.
            UnknownCursor: `after` is not an event of the job.
        """
        return self._list_rows(EventRecord, EventRow, job_id, after, limit)

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def add_checkpoint(self, job_id: str, step: int, model: str, metrics: Mapping[str, Any]) -> CheckpointRecord:
        """Record a checkpoint. If a resumed run repeats the step, the new checkpoint replaces the earlier one."""
        with self._database.session() as session:
            same = CheckpointRow.job_id == job_id, CheckpointRow.step == step
            session.execute(delete(CheckpointRow).where(*same))
            row = CheckpointRow(
                id=_new_id("ftckpt"),
                job_id=job_id,
                created_at=self._clock(),
                step=step,
                model=model,
                metrics=dict(metrics),
            )
            session.add(row)
            session.flush()
            return to_record(CheckpointRecord, row)

    def mark_best_checkpoint(self, job_id: str, step: int) -> None:
        """Set the metric `is_best` of the checkpoint of `step` to 1, and remove it from the job's other checkpoints."""
        with self._database.session() as session:
            for row in session.scalars(select(CheckpointRow).where(CheckpointRow.job_id == job_id)):
                others = {name: value for name, value in row.metrics.items() if name != IS_BEST}
                metrics = others | ({IS_BEST: 1.0} if row.step == step else {})
                if metrics != row.metrics:
                    row.metrics = metrics

    def drop_checkpoint(self, job_id: str, step: int) -> None:
        with self._database.session() as session:
            session.execute(delete(CheckpointRow).where(CheckpointRow.job_id == job_id, CheckpointRow.step == step))

    def checkpoints(
        self, job_id: str, *, after: str | None = None, limit: int = 10
    ) -> tuple[list[CheckpointRecord], bool]:
        """Return a page of the job's checkpoints, newest first, and whether more follow.

        Raises:
            UnknownJob: The job does not exist.
            UnknownCursor: `after` is not a checkpoint of the job.
        """
        return self._list_rows(CheckpointRecord, CheckpointRow, job_id, after, limit)

    def _list_rows(self, kind: type[T], table: Any, job_id: str, after: str | None, limit: int) -> tuple[list[T], bool]:
        """Return a page of a job's events or checkpoints. If nothing is found, check that the job exists."""
        with self._database.session() as session:
            try:
                rows, more = _fetch_page(
                    session, _select_columns(kind, table), table, after, limit, [table.job_id == job_id]
                )
            except UnknownCursor:
                _row(session, job_id)
                raise
            if not rows:
                _row(session, job_id)
            return [kind(*row) for row in rows], more

    def _update(self, *conditions: ColumnElement[bool], **values: Any) -> bool:
        with self._database.session() as session:
            return _has_changed(session, update(JobRow).where(*conditions).values(**values))


def is_readiness(job_id: str) -> bool:
    """Return whether `job_id` is the id of a readiness check."""
    return job_id.startswith(f"{READINESS}-")


# -- rows --------------------------------------------------------------------------------------------------------------


def block_job_creation(session: Session) -> None:
    """Block the creation of jobs until the transaction ends."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": CREATE_LOCK})
    else:
        session.execute(update(JobRow).where(false()).values(attempt=0))


def _new_id(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(12)}"


def _has_changed(session: Session, statement: Any) -> bool:
    result = session.execute(statement.execution_options(synchronize_session=False))
    assert isinstance(result, CursorResult)
    return bool(result.rowcount)


def _row(session: Session, job_id: str, owner: str | None = None) -> JobRow:
    row = session.scalar(select(JobRow).where(JobRow.id == job_id))
    if row is None or owner not in (None, row.owner):
        raise UnknownJob(f"no fine-tuning job has the id {job_id}")
    return row


def _select_columns(kind: type[Any], table: Any) -> Select[Any]:
    """Select the columns of the dataclass `kind`, in field order. This is twice as fast as loading ORM objects."""
    return select(*(getattr(table, field.name) for field in fields(kind)))


def _fetch_page(
    session: Session,
    statement: Select[Any],
    table: Any,
    after: str | None,
    limit: int,
    mine: list[ColumnElement[bool]],
) -> tuple[list[Any], bool]:
    statement = statement.where(*mine)
    if after is not None:
        number = session.scalar(select(table.number).where(table.id == after, *mine))
        if number is None:
            raise UnknownCursor(f"after: {after} is not in this list")
        statement = statement.where(table.number < number)
    rows = list(session.execute(statement.order_by(table.number.desc()).limit(limit + 1)))
    return rows[:limit], len(rows) > limit


def _to_job_record(row: Any) -> JobRecord:
    """Convert a JobRow, or a row with the same columns, to a record."""
    values: dict[str, Any] = {field.name: getattr(row, field.name) for field in fields(JobRecord)}
    values["error"] = None if row.error is None else JobError(**row.error)
    values["result_files"] = tuple(row.result_files)
    values["estimated_finish"] = row.estimated_finish if row.status == "running" else None
    return JobRecord(**values)
