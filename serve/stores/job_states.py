"""States of a job. A change of state is allowed only if `STATE_CHANGES` contains it.

    validating_files ---> queued ---> running ---> succeeded
                            ^            |
                     resume |            | pause
                            +-- paused <-+

    validating_files, queued, running          ---> failed
    validating_files, queued, running, paused  ---> cancelled

succeeded, failed and cancelled are terminal. If the driver of a running job dies, the job stays in the state running
while its manager starts another driver.
"""

from __future__ import annotations

from typing import Literal, get_args

from agent_rft.errors import RftError

JobStatus = Literal["validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled"]
STATUSES: tuple[JobStatus, ...] = get_args(JobStatus)

STATE_CHANGES: dict[JobStatus, tuple[JobStatus, ...]] = {
    "validating_files": ("queued", "failed", "cancelled"),
    "queued": ("running", "failed", "cancelled"),
    "running": ("succeeded", "failed", "cancelled", "paused"),
    "paused": ("queued", "cancelled"),
    "succeeded": (),
    "failed": (),
    "cancelled": (),
}
TERMINAL: tuple[JobStatus, ...] = tuple(status for status, targets in STATE_CHANGES.items() if not targets)


class UnknownJob(RftError):
    """The job does not exist, or it belongs to another API key."""


class UnknownCursor(RftError):
    """The cursor `after` is not the id of an item in the list."""


class IllegalStateChange(RftError):
    """The job cannot change from its current state to the requested one."""


class IdempotencyConflict(RftError):
    """The Idempotency-Key was already used with a different request."""


def check_state_change(job_id: str, status: JobStatus, to: JobStatus) -> None:
    """Check that a job in state `status` may change to `to`.

    Raises:
        IllegalStateChange: `STATE_CHANGES` does not allow the change.
    """
    targets = STATE_CHANGES[status]
    if to in targets:
        return
    allowed = f"allowed next states: {', '.join(targets)}" if targets else f"{status} is a final state"
    raise IllegalStateChange(f"the job {job_id} is {status} and cannot become {to}; {allowed}")
