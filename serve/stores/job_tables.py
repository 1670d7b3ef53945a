"""Tables of jobs, events and checkpoints, and the records that the store returns.

`number` is the order of creation and the sort key of listings. It has an index, so the time to read a page does not
depend on the size of the table. Only `sealed_spec` contains secrets, which are encrypted. Clients may see all other
columns, except `log` in `error`, which is for admins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import JSON, BigInteger, Float, ForeignKey, Index, Integer, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from agent_rft.events import Level
from agent_rft.serve.stores.database import Base
from agent_rft.serve.stores.job_states import JobStatus

EventType = Literal["message", "metrics"]
Number = BigInteger().with_variant(Integer, "sqlite")


class JobRow(Base):
    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("owner", "idempotency_key", name="uq_jobs_idempotency"),
        Index("ix_jobs_owner", "owner", "number"),
        Index("ix_jobs_status", "status", "queued_at"),
        Index("ix_jobs_digest", "owner", "digest", "created_at"),
        Index("ix_jobs_handle", "handle"),
    )

    number: Mapped[int] = mapped_column(Number, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(String(64), unique=True)
    owner: Mapped[str] = mapped_column(String(64))
    status: Mapped[str] = mapped_column(String(32))
    created_at: Mapped[float] = mapped_column(Float)
    queued_at: Mapped[float | None] = mapped_column(Float)
    status_changed_at: Mapped[float] = mapped_column(Float)
    finished_at: Mapped[float | None] = mapped_column(Float)
    # the request
    model: Mapped[str] = mapped_column(Text)
    base: Mapped[str] = mapped_column(Text)
    training_file: Mapped[str] = mapped_column(String(128))
    validation_file: Mapped[str | None] = mapped_column(String(128))
    test_file: Mapped[str | None] = mapped_column(String(128))
    method: Mapped[dict[str, Any]] = mapped_column(JSON)
    model_options: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    integrations: Mapped[list[dict[str, Any]] | None] = mapped_column(JSON(none_as_null=True))
    seed: Mapped[int] = mapped_column(BigInteger)
    suffix: Mapped[str | None] = mapped_column(String(64))
    labels: Mapped[dict[str, str] | None] = mapped_column(JSON)
    readiness: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    sealed_spec: Mapped[str] = mapped_column(Text)
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    digest: Mapped[str] = mapped_column(String(64))
    # the result
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    fine_tuned_model: Mapped[str | None] = mapped_column(Text)
    result_files: Mapped[list[str]] = mapped_column(JSON)
    findings: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    trained_tokens: Mapped[int | None] = mapped_column(BigInteger)
    estimated_finish: Mapped[float | None] = mapped_column(Float)
    # the manager and driver that run it
    manager: Mapped[str | None] = mapped_column(String(64))
    lease_until: Mapped[float | None] = mapped_column(Float)
    attempt: Mapped[int] = mapped_column(Integer)
    failures: Mapped[int] = mapped_column(Integer)
    handle: Mapped[str | None] = mapped_column(String(128))
    heartbeat_at: Mapped[float | None] = mapped_column(Float)
    driver_message: Mapped[str | None] = mapped_column(Text)


class EventRow(Base):
    __tablename__ = "job_events"
    __table_args__ = (Index("ix_job_events_job", "job_id", "number"),)

    number: Mapped[int] = mapped_column(Number, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(String(64), unique=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    created_at: Mapped[float] = mapped_column(Float)
    level: Mapped[str] = mapped_column(String(8))
    type: Mapped[str] = mapped_column(String(16))
    message: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any] | None] = mapped_column(JSON)


class CheckpointRow(Base):
    __tablename__ = "job_checkpoints"
    __table_args__ = (
        UniqueConstraint("job_id", "step", name="uq_job_checkpoints_step"),
        Index("ix_job_checkpoints_job", "job_id", "number"),
    )

    number: Mapped[int] = mapped_column(Number, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(String(64), unique=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    created_at: Mapped[float] = mapped_column(Float)
    step: Mapped[int] = mapped_column(Integer)
    model: Mapped[str] = mapped_column(Text)
    metrics: Mapped[dict[str, Any]] = mapped_column(JSON)


# -- values ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobError:
    """Error of a failed job, as in the API. `param` is the request field that caused it, or None.

    `log` is for admins only: the original message, which may contain paths and the output of programs.
    """

    code: str
    message: str
    param: str | None = None
    log: str = ""


@dataclass(frozen=True, slots=True)
class NewJob:
    """Job to be created.

    `owner` is the id of the key that creates the job, `model` the requested model id, `base` the id of the base
    model. `method` and `model_options` contain no secrets. `sealed_spec` is the full job, encrypted so that it can be
    decrypted only for this job's id. Equal requests have equal `digest`s. `readiness` has the options of a readiness
    check (`ReadinessOptions` in cluster/run/readiness_check.py); None means that the job trains.
    """

    owner: str
    model: str
    base: str
    training_file: str
    validation_file: str | None
    test_file: str | None
    method: dict[str, Any]
    model_options: dict[str, Any] | None
    seed: int
    suffix: str | None
    labels: dict[str, str] | None
    sealed_spec: str
    digest: str
    readiness: dict[str, Any] | None = field(default=None, kw_only=True)
    integrations: list[dict[str, Any]] | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class JobRecord(NewJob):
    """Job in the store. Times are Unix seconds.

    `handle` is the id of the latest driver, or None after it has exited. `attempt` counts the drivers started so far,
    and `failures` counts the drivers lost since the last checkpoint. `findings` is the result of a readiness check,
    without its rows. `estimated_finish` is None unless the job is running.
    """

    id: str
    status: JobStatus
    created_at: float
    queued_at: float | None
    status_changed_at: float
    finished_at: float | None
    error: JobError | None
    fine_tuned_model: str | None
    result_files: tuple[str, ...]
    trained_tokens: int | None
    estimated_finish: float | None
    attempt: int
    failures: int
    handle: str | None
    heartbeat_at: float | None
    driver_message: str | None
    findings: dict[str, Any] | None = field(default=None, kw_only=True)

    @property
    def hyperparameters(self) -> dict[str, Any]:
        found: dict[str, Any] = self.method[self.method["type"]]["hyperparameters"]
        return found


@dataclass(frozen=True, slots=True)
class EventRecord:
    id: str
    job_id: str
    created_at: float
    level: Level
    type: EventType
    message: str
    data: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """Checkpoint of a job on disk. `model` is the id under which requests can use the checkpoint as a model."""

    id: str
    job_id: str
    created_at: float
    step: int
    model: str
    metrics: dict[str, Any]
