"""Errors, whose classes name the responsible party. All survive pickling, because they may cross a Ray boundary.

`UserError` and its subclasses stop the job and are shown to the user unchanged. `Discard` ends one rollout without a
grade. `TrainingHalted` stops training because its numbers can no longer be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class RftError(Exception):
    """Base class of all errors that agent-rft raises on purpose.

    `details` are plain values for logs and events, never secrets.
    """

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    @property
    def public_message(self) -> str:
        """Message for a server's clients: by default `message`.

        An error whose message quotes another program's error or names a path has the detail `public_message`. Its
        `message` is then only for the server's log.
        """
        return str(self.details.get("public_message", self.message))

    @property
    def problem(self) -> str:
        """Message without the fix, if it has one."""
        return str(self.details.get("problem", self.message))

    @property
    def fix(self) -> str:
        """End of the message that describes the fix; empty if there is no fix."""
        return str(self.details.get("fix", ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.details)


def _rebuild(cls: type[RftError], message: str, details: dict[str, Any]) -> RftError:
    return cls(message, **details)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem with a job: its field, the problem, the fix, and the file and line if available.

    `rows` are all lines of a problem that several rows share, such as "1-7, 9"; `line` is the first of them.
    """

    code: str
    field: str
    message: str
    fix: str
    file: str | None = None
    line: int | None = None
    rows: str = ""

    @property
    def location(self) -> str:
        """Field with its line or rows: `training_file, line 3`."""
        line = "" if self.line is None else f", line {self.line}"
        return self.field + (f", rows {self.rows}" if self.rows else line)

    def __str__(self) -> str:
        line = f", rows {self.rows}" if self.rows else f":{self.line}" if self.line else ""
        location = "" if self.file is None else f" ({self.file}{line})"
        return f"{self.field}{location}: {self.message} [{self.code}]\n    -> {self.fix}"


class UserError(RftError):
    """The job, its data or its endpoints are wrong, and only the user can fix it."""


class InvalidJob(UserError):
    """The job failed its checks. `problems` holds all problems found, not only the first."""

    def __init__(self, message: str, problems: list[Problem] | None = None, **details: Any) -> None:
        super().__init__(message, problems=problems or [], **details)
        self.problems: list[Problem] = problems or []

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"  {problem}" for problem in self.problems)])


class OutdatedFormat(UserError):
    """A version before 0.2.0 created a database, a run folder or one of its files, which later versions do not read."""

    @classmethod
    def for_path(cls, what: str, public: str | None = None) -> OutdatedFormat:
        """Return the error for a path or URL; `public` is its name for a server's clients."""
        message = "{} was made before 0.2.0; finish or export it with the version that made it"
        return cls(message.format(what), public_message=message.format(public or what))


class EndpointRefused(UserError):
    """An endpoint rejects its key (401, or most answers are 403): a configuration error that no retry can fix."""


class UnsealFailed(UserError):
    """A string was sealed with another master secret or for another purpose, or was changed since."""


class ActorStartFailed(UserError):
    """A process of the job fails at every start, because a requirement is missing on its node."""


class DiscardError(RftError):
    """A rollout was lost to an infrastructure failure. It has no grade and is excluded from its group's statistics."""

    reason = "other"


class ToolFailed(DiscardError):
    """A tool call failed after all retries or at its deadline.

    The cause may be the tool, or a row that is too large for a call, so the model is not graded for it. A response with
    status 400 to 499 does not count, because the model sees it as an error; statuses about sizes and missing credit do.
    Check the endpoint's errors by kind, and your server's log by trace id.
    """

    reason = "tool_failed"


class GraderFailed(DiscardError):
    """The grader did not return a finite number after all retries or at its deadline. Never treated as a grade of 0.

    If the grader fails only for some samples, training lacks these samples. Grade them again with `agent-rft grade
    RUN`, which lists the errors.
    """

    reason = "grader_failed"


class RolloutTimeout(DiscardError):
    """A rollout's model and tool time exceeded `limits.rollout_timeout_s`.

    Usually a tool is slow. Raise the limit or allow fewer calls. Waiting does not count; see rollout_waited.
    """

    reason = "rollout_timeout"


class RolloutWaitTimeout(DiscardError):
    """A rollout waited longer than six times `limits.rollout_timeout_s`, for an engine, a session, tools or its grade.

    The model is not the cause. The message names what the rollout waited for longest: increase its capacity. If it is a
    tool, grader or session server that can handle more, raise its `max_concurrency`. Otherwise lower `max_staleness` or
    the rollouts per step, so that fewer rollouts run concurrently.
    """

    reason = "rollout_waited"


class EngineFailed(DiscardError):
    """The engine of a rollout died or was fenced. The engine is replaced, and the rollout is tried again."""

    reason = "engine_failed"


class TemplateFailed(DiscardError):
    """The model's chat template could not render a rollout's conversation after a turn of the model.

    Usually the template does not support tool results, or rejects them. Set a template that renders them.
    """

    reason = "template_failed"


class LearnerFailed(RftError):
    """A learner rank died, failed or timed out, so no update can be trusted.

    The learner restarts from the last checkpoint. The run ends if the learner failed too often at one step.
    """


class TrainingHalted(RftError):
    """Training stopped, as its numbers can no longer be trusted (gradients, zero-variance batches, engine drift)."""


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first leaf error of a task group; the other errors are usually its consequences."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
