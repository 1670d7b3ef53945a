"""Every error says whose fault it is and survives pickling, because each may cross a Ray boundary.

`UserError` (and what derives from it) stops the job and is shown to the user as it is. `Discard` ends one rollout
without a grade. `Halted` ends the training because going on would learn from something wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class RftError(Exception):
    """Base of all errors raised on purpose. `details` are plain values for logs and events, never secrets."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.details)


def _rebuild(cls: type[RftError], message: str, details: dict[str, Any]) -> RftError:
    return cls(message, **details)


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a job: what field, where, what is wrong and what to do about it."""

    code: str
    field: str
    message: str
    remedy: str
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        place = "" if self.file is None else f" ({self.file}" + (f":{self.line}" if self.line else "") + ")"
        return f"{self.field}{place}: {self.message} [{self.code}]\n    -> {self.remedy}"


class UserError(RftError):
    """The job, its data or its endpoints are wrong: nothing but the user can mend it."""


class InvalidJob(UserError):
    """The job does not pass its checks. `problems` holds all that was found, not only the first."""

    def __init__(self, message: str, problems: list[Problem] | None = None, **details: Any) -> None:
        super().__init__(message, problems=problems or [], **details)
        self.problems: list[Problem] = problems or []

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"  {problem}" for problem in self.problems)])


class EndpointRefused(UserError):
    """A tool or grader answered 401 or 403: a configuration error that no retry mends. Names the endpoint."""


class CannotStart(UserError):
    """A process of the job fails as soon as it begins, each time anew: what it needs on its node is not there."""


class Discard(RftError):
    """Infrastructure failed under one rollout: it carries no number and enters no statistic of its group."""

    reason = "other"


class ToolFailed(Discard):
    """A tool call failed in the end, after its retries or at its deadline."""

    reason = "tool_failed"


class GraderFailed(Discard):
    """The grader gave no finite number, after its retries or at its deadline. Never a grade of 0."""

    reason = "grader_failed"


class RolloutTimeout(Discard):
    """A rollout outlived `limits.rollout_timeout_s`."""

    reason = "rollout_timeout"


class EngineFailed(Discard):
    """The engine under a rollout died or was fenced off."""

    reason = "engine_failed"


class LearnerFailed(RftError):
    """A learner rank was lost, late or broke: no update can be trusted any more. A resumed run goes on from before."""


class Halted(RftError):
    """Training stopped because its numbers can no longer be trusted (gradients, starvation, drifted engines)."""


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first leaf of a task group's errors: the others are mostly its consequences."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
