"""The states of a job and the moves between them: one table, which every change of a job's state goes by."""

from __future__ import annotations

from typing import Literal, get_args

from trainer.errors import RftError

JobStatus = Literal["validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled"]
STATUSES: tuple[JobStatus, ...] = get_args(JobStatus)

MOVES: dict[JobStatus, tuple[JobStatus, ...]] = {
    "validating_files": ("queued", "failed", "cancelled"),
    "queued": ("running", "failed", "cancelled"),
    "running": ("succeeded", "failed", "cancelled", "paused"),
    "paused": ("queued", "cancelled"),
    "succeeded": (),
    "failed": (),
    "cancelled": (),
}
ENDS: tuple[JobStatus, ...] = tuple(status for status, moves in MOVES.items() if not moves)


class UnknownJob(RftError):
    """There is no such job, or it is another key's."""


class UnknownCursor(RftError):
    """`after` names nothing of the list."""


class IllegalMove(RftError):
    """The table has no such move."""


class KeyUsedTwice(RftError):
    """An Idempotency-Key came with another request before."""


def check_move(job_id: str, status: JobStatus, to: JobStatus) -> None:
    """Raises:
    IllegalMove: a job that is `status` cannot become `to`.
    """
    if to in MOVES[status]:
        return
    can = " or ".join(MOVES[status]) or "nothing else: that is an end"
    raise IllegalMove(f"the job {job_id} is {status} and cannot become {to}; it can become {can}")
