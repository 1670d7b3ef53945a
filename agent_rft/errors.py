"""Error classes. The class of an error shows who or what is responsible for it.

All errors can be pickled, because Ray passes them between processes.

- `UserError` and its subclasses stop the job. Their messages are shown to the user unchanged.
- `DiscardError` and its subclasses end one rollout without a grade.
- `TrainingHalted` ends training, because further updates could not be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class RftError(Exception):
    """Base class of all errors that agent-rft raises on purpose.

    `details` are additional plain values for logs and events. They never contain secrets.
    """

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    @property
    def public_message(self) -> str:
        """Message for a server's clients: the value of `public_message` in `details` or, if it is missing, `message`.

        An error has this detail if its `message` names a path or quotes another program's error. Such a `message` is
        only for the server's log.
        """
        return str(self.details.get("public_message", self.message))

    @property
    def problem(self) -> str:
        """Message without the part that describes the fix."""
        return str(self.details.get("problem", self.message))

    @property
    def fix(self) -> str:
        """Last part of the message, which describes the fix; empty if the message describes no fix."""
        return str(self.details.get("fix", ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.details)


def _rebuild(cls: type[RftError], message: str, details: dict[str, Any]) -> RftError:
    return cls(message, **details)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a job: code, field of the job, message, fix, and the file and line if known.

    If several rows have the problem, `rows` lists all their lines, such as "1-7, 9", and `line` is the first of these
    lines.
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
        """Field with its line or rows, such as `training_file, line 3`."""
        line = "" if self.line is None else f", line {self.line}"
        return self.field + (f", rows {self.rows}" if self.rows else line)

    def __str__(self) -> str:
        line = f", rows {self.rows}" if self.rows else f":{self.line}" if self.line else ""
        location = "" if self.file is None else f" ({self.file}{line})"
        return f"{self.field}{location}: {self.message} [{self.code}]\n    -> {self.fix}"


class UserError(RftError):
    """Error in the job, its data or its endpoints, which only the user can fix."""


class InvalidJob(UserError):
    """The job failed its checks. `problems` holds all problems found, not only the first."""

    def __init__(self, message: str, problems: list[Problem] | None = None, **details: Any) -> None:
        super().__init__(message, problems=problems or [], **details)
        self.problems: list[Problem] = problems or []

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"  {problem}" for problem in self.problems)])


class OutdatedFormat(UserError):
    """A database, a run folder or a file was created by a version before 0.2.0. Later versions cannot read it."""

    @classmethod
    def for_path(cls, subject: str, public_subject: str | None = None) -> OutdatedFormat:
        """Return the error for `subject`, such as a path; a server's clients see `public_subject` instead."""
        message = "{} was created by a version before 0.2.0; finish or export it with that version"
        return cls(message.format(subject), public_message=message.format(public_subject or subject))


class EndpointRefused(UserError):
    """An endpoint rejects the job's key with status 401, or most requests with status 403.

    A retry cannot fix this configuration error.
    """


class UnsealFailed(UserError):
    """A sealed string cannot be decrypted.

    It was sealed with another master secret or for another purpose, or it was modified afterwards.
    """


class ActorStartFailed(UserError):
    """A process of the job cannot start, because its node does not meet a requirement."""


class DiscardError(RftError):
    """A rollout was lost because of an infrastructure failure.

    The rollout has no grade and is excluded from the statistics of its group.
    """

    reason = "other"


class ToolFailed(DiscardError):
    """A tool call failed after all retries or at its deadline.

    The cause may be the tool, an account without credit, or a row that is too large for a call. The rollout is not
    graded. Most other responses with status 400 to 499 do not end the rollout, because the model sees them as errors.
    Check the metrics of the endpoint's errors, and search your server's log for the trace id.
    """

    reason = "tool_failed"


class GraderFailed(DiscardError):
    """A grader call failed after all retries or at its deadline.

    The failure is never treated as a grade of 0. If the grader fails only for some samples, these samples are missing
    from training. Grade them again with `agent-rft grade RUN`, which lists the errors.
    """

    reason = "grader_failed"


class RolloutTimeout(DiscardError):
    """A rollout's model and tool time exceeded `limits.rollout_timeout_s`.

    Usually the cause is a slow tool. Raise the limit, or allow fewer calls. If the model itself takes too long, set
    `limits.on_timeout` to `grade`. Time in which the rollout only waits does not count toward this limit; rollouts that
    wait too long are discarded with the reason `rollout_waited`.
    """

    reason = "rollout_timeout"


class RolloutWaitTimeout(DiscardError):
    """A rollout waited more than six times as long as `limits.rollout_timeout_s`.

    It waited for an engine, a session, tools or its grade, so the model is not the cause. The message names the
    resource for which the rollout waited longest. Increase the capacity of this resource. If the resource is a tool,
    grader or session server that can handle more calls, raise its `max_concurrency`. Otherwise lower `max_staleness` or
    the rollouts per step, so that fewer rollouts run concurrently.
    """

    reason = "rollout_waited"


class EngineFailed(DiscardError):
    """The engine of a rollout died, or was removed because it failed or differed from the learner.

    The engine is replaced, and the rollout is tried again.
    """

    reason = "engine_failed"


class TemplateFailed(DiscardError):
    """The model's chat template could not render a rollout's conversation after a turn of the model.

    Usually the template does not support tool results, or rejects them. Set a template that renders them.
    """

    reason = "template_failed"


class LearnerFailed(RftError):
    """A learner rank died, failed or timed out, so no update can be trusted.

    The learner restarts from the last checkpoint. If the learner fails too often at the same step, the run ends.
    """


class TrainingHalted(RftError):
    """Training was ended, because further updates could not be trusted.

    Reasons are gradients that are not finite, batches without signal, engines that had to be replaced too often, and
    log-probabilities that differ between engines and learner.
    """


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first individual error in an exception group, which may contain other groups.

    The other errors are usually consequences of the first error.
    """
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
