"""Errors whose class says who is responsible. All survive pickling, because they may cross a Ray boundary.

`UserError` and its subclasses stop the job and are shown to the user unchanged. `Discard` ends one rollout without a
grade. `Halted` stops training because its numbers can no longer be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class RftError(Exception):
    """Base class of all errors raised on purpose. `details` are plain values for logs and events, never secrets."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    @property
    def public(self) -> str:
        """What a server's clients are told: the message, except where it quotes the error of a program or names a path.

        Such an error is raised with the detail `public`; its message is for the server's log.
        """
        return str(self.details.get("public", self.message))

    @property
    def problem(self) -> str:
        """The message without its remedy, if it has one."""
        return str(self.details.get("problem", self.message))

    @property
    def remedy(self) -> str:
        """The end of the message that says what to do; empty if there is none."""
        return str(self.details.get("remedy", ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.details)


def _rebuild(cls: type[RftError], message: str, details: dict[str, Any]) -> RftError:
    return cls(message, **details)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem with a job: the field, what is wrong, how to fix it, and the file and line if known.

    `rows` are all lines of a mistake that several rows share, such as "1-7, 9"; `line` is the first of them.
    """

    code: str
    field: str
    message: str
    remedy: str
    file: str | None = None
    line: int | None = None
    rows: str = ""

    @property
    def place(self) -> str:
        """The field with its line or rows: `training_file, line 3`."""
        line = "" if self.line is None else f", line {self.line}"
        return self.field + (f", rows {self.rows}" if self.rows else line)

    def __str__(self) -> str:
        line = f", rows {self.rows}" if self.rows else f":{self.line}" if self.line else ""
        location = "" if self.file is None else f" ({self.file}{line})"
        return f"{self.field}{location}: {self.message} [{self.code}]\n    -> {self.remedy}"


class UserError(RftError):
    """The job, its data or its endpoints are wrong, and only the user can fix it."""


class InvalidJob(UserError):
    """The job failed its checks. `problems` holds all problems found, not only the first."""

    def __init__(self, message: str, problems: list[Problem] | None = None, **details: Any) -> None:
        super().__init__(message, problems=problems or [], **details)
        self.problems: list[Problem] = problems or []

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"  {problem}" for problem in self.problems)])


class MadeBefore(UserError):
    """A version before 0.2.0 made a database, a run folder or one of its files; no later version reads it."""

    @classmethod
    def of(cls, what: str, public: str | None = None) -> MadeBefore:
        """Create the error for a thing, with its path or URL; `public` names it to the clients of a server."""
        message = "{} was made before 0.2.0; finish or export it with the version that made it"
        return cls(message.format(what), public=message.format(public or what))


class EndpointRefused(UserError):
    """An endpoint refuses its key (401, or most answers are 403): a configuration error that no retry can fix."""


class CannotOpen(UserError):
    """A text was sealed with another master secret, for something else, or was changed since."""


class CannotStart(UserError):
    """A process of the job fails every time it starts, because something it needs is missing on its node."""


class Discard(RftError):
    """One rollout was lost to an infrastructure failure. It has no grade and no part in its group's statistics."""

    reason = "other"


class ToolFailed(Discard):
    """A tool call failed after all retries or at its deadline.

    The tool may be at fault, or the row too large for a call, so the model is not graded for it. An answer with a
    status of 400 to 499 does not count: the model sees it as an error, except those about sizes and missing credit.
    Look at the errors of the endpoint by kind, and at your server's log by trace id.
    """

    reason = "tool_failed"


class GraderFailed(Discard):
    """The grader returned no finite number, after all retries or at its deadline. Never treated as a grade of 0.

    If it fails for some samples only, those are missing in training: grade them again with `agent-rft grade RUN`, which
    lists its errors.
    """

    reason = "grader_failed"


class RolloutTimeout(Discard):
    """A rollout's model and tool time was longer than `limits.rollout_timeout_s`.

    Mostly a tool is slow. Raise the limit or allow fewer calls. Waiting does not count; see rollout_waited.
    """

    reason = "rollout_timeout"


class RolloutWaited(Discard):
    """A rollout waited longer than six times `limits.rollout_timeout_s`: for an engine, a session, tools or its grade.

    The model is not at fault. The message names what it waited for longest: give that more capacity or, for a tool,
    grader or session server that can handle more, raise its `max_concurrency`. Else lower `max_staleness` or the
    rollouts per step, so that fewer rollouts run at a time.
    """

    reason = "rollout_waited"


class EngineFailed(Discard):
    """The engine of a rollout died or was fenced off. The engine is replaced, and the rollout is tried again."""

    reason = "engine_failed"


class TemplateFailed(Discard):
    """The model's chat template could not render a rollout's conversation after a turn of the model.

    Most templates that do this know no tool results, or refuse them. Give the job a template that renders them.
    """

    reason = "template_failed"


class LearnerFailed(RftError):
    """A learner rank died, failed or timed out, so no update can be trusted.

    The learner starts again from the last checkpoint; the run ends if that has failed too often at one step.
    """


class Halted(RftError):
    """Training stopped because its numbers can no longer be trusted (gradients, starvation, engine drift)."""


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first leaf error of a task group; the others are mostly its consequences."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
