"""Events of rollouts and of the endpoints and sessions that they use."""

from __future__ import annotations

from dataclasses import field

from agent_rft.events.base_event import Event, Private
from agent_rft.types import Purpose

MAX_SHOWN_TOOLS = 6


class RolloutDiscarded(Event, level="warn"):
    """A rollout attempt ended without a grade. The rollout is retried up to `max_rollout_retries` times.

    A few discarded rollouts are normal. If many have the same `reason` and `endpoint`, check that endpoint.
    """

    trace_id: str
    """Id of this attempt, sent with each of its requests. Search your servers' logs for it."""
    row_id: str
    """Id of the row: its line number and a digest of its content."""
    sample: int
    """Index of the rollout in its group, from 0."""
    purpose: Purpose
    """`train`, `validation` or `test`."""
    reason: str
    """`tool_failed`, `grader_failed`, `rollout_timeout`, `rollout_waited`, `engine_failed` or
    `template_failed`."""
    cause: str
    """Message of the error."""
    endpoint: str = ""
    """The endpoint that failed. For `rollout_waited`, the endpoint or engine that the rollout waited for longest,
    such as `engine-1` or `tool 'search'`."""

    @property
    def is_quiet(self) -> bool:
        return True

    def __str__(self) -> str:
        return f"a rollout of row {self.row_id} was discarded: {self.cause}"


class RolloutsProgressed(Event):
    """Progress of the rollouts of the current step or evaluation, emitted every few seconds.

    The event is for live views and is not stored in the run folder. The API lists at most one such event every
    30 s. If progress is slow, check `slowest_row` and `errors`.
    """

    purpose: Purpose
    """`train`, `validation` or `test`."""
    ended: int
    """Rollouts of the next batch, or of the evaluation, that were graded or failed after all retries."""
    total: int
    """Rollouts that the batch or evaluation needs."""
    in_flight: int
    """Rollout attempts in progress, including attempts for later batches."""
    calls: dict[str, float] = field(default_factory=dict)
    """Number of calls of each tool, in rollouts that ended since the last step or evaluation."""
    errors: dict[str, float] = field(default_factory=dict)
    """Number of calls of each tool that were answered with an error."""
    slowest_s: float = 0.0
    """Seconds since the oldest attempt in progress began."""
    # Private: rows and answers are only for the job's owner, but every key that may read the job sees its events.
    slowest_row: Private[str] = ""
    """Row of the oldest attempt in progress."""
    newest_trace: Private[str] = ""
    """Trace id of the rollout that was graded last."""
    newest_row: Private[str] = ""
    """Row of the rollout that was graded last."""
    newest_grade: Private[float] = 0.0
    """Grade of the rollout that was graded last."""
    newest_calls: Private[tuple[str, ...]] = ()
    """The first four tool calls of the rollout that was graded most recently. Long calls are shortened."""
    newest_answer: Private[str] = ""
    """Answer of the rollout that was graded last, shortened."""

    @property
    def is_transient(self) -> bool:
        return True

    @property
    def is_quiet(self) -> bool:
        return True

    def __str__(self) -> str:
        calls = f"; calls: {self.describe_calls()}" if self.calls else ""
        return f"rollouts: {self.describe_counts()}{calls}"

    def describe_counts(self) -> str:
        """Describe the counts: `17/32 ended, 15 in flight, slowest 12 s (row 31)`."""
        slowest = (
            f", slowest {self.slowest_s:.0f} s (row {_parse_line_number(self.slowest_row)})" if self.in_flight else ""
        )
        return f"{self.ended}/{self.total} ended, {self.in_flight} in flight{slowest}"

    def describe_calls(self) -> str:
        """Describe the tools with the most calls, and their errors: `search 40, cat 25 (2 errors)`."""
        tools = sorted(self.calls, key=lambda tool: -self.calls[tool])
        hidden = len(tools) - MAX_SHOWN_TOOLS
        more = [f"{hidden} more"] if hidden > 0 else []
        return ", ".join([*map(self._describe_tool, tools[:MAX_SHOWN_TOOLS]), *more])

    def _describe_tool(self, tool: str) -> str:
        errors = self.errors.get(tool, 0.0)
        return f"{tool} {self.calls[tool]:.0f}" + (f" ({errors:.0f} error{'s' * (errors > 1)})" if errors else "")

    def describe_newest(self) -> str:
        """Describe the rollout that was graded most recently: its row, grade, answer and first tool calls.

        Example: `row 12, grade 1.000: 4427, after cat {"path": "x"}`, where 4427 is the answer. Empty before the first
        grade.
        """
        if not self.newest_trace:
            return ""
        after = f", after {' → '.join(self.newest_calls)}" if self.newest_calls else ""
        answer = self.newest_answer or "no answer"
        return f"row {_parse_line_number(self.newest_row)}, grade {self.newest_grade:.3f}: {answer}{after}"


class RolloutsThrottled(Event, level="warn"):
    """Most of the recent rollouts were discarded. New rollouts are throttled: only occasional probe rollouts run.

    The job waits and loses no data. Get the endpoint working again; rollouts then resume automatically
    (`rollouts_resumed`).
    """

    endpoint: str
    """The endpoint that failed most often or, if no endpoint failed, the most frequent discard reason."""
    num_by_endpoint: int
    """Number of recent rollouts that were discarded because of the endpoint."""
    num_failed: int
    """Number of recent rollouts that were discarded for any reason."""
    num_rollouts: int
    """Number of recent rollouts that were considered."""
    cause: str
    """Message of the endpoint's last error."""

    def __str__(self) -> str:
        return (
            f"{self.num_failed} of the last {self.num_rollouts} rollouts were discarded, {self.num_by_endpoint} "
            f"because of {self.endpoint}: new rollouts wait until a probe rollout is graded. Last error: {self.cause}"
        )


class RolloutsResumed(Event):
    """A probe rollout was graded, so all rollouts resume. Nothing to do."""

    endpoint: str
    """The `endpoint` of the preceding `rollouts_throttled`."""

    def __str__(self) -> str:
        return "a probe rollout was graded, so new rollouts no longer wait"


class SessionProblem(Event, level="warn"):
    """Tool sessions could not be ended or may still be open, so your server may still hold resources for them.

    Check the session server's log, and let the server end sessions that have been idle for a long time.
    """

    detail: str
    """Description of the problem, as a sentence."""

    def __str__(self) -> str:
        return self.detail


def _parse_line_number(row_id: str) -> str:
    return row_id.partition("-")[0]
