"""Events of rollouts and of the endpoints and sessions that they use."""

from __future__ import annotations

from dataclasses import field

from agent_rft.events.base import Event, Private
from agent_rft.types import Purpose

MAX_SHOWN_TOOLS = 6


class RolloutDiscarded(Event, level="warn"):
    """One attempt at a rollout ended without a grade; it is tried again as often as `max_rollout_retries` allows.

    Single ones are normal. If there are many of one `reason` and `endpoint`, look at that endpoint.
    """

    trace_id: str
    """The id in each request of this attempt, by which your servers' logs can be searched."""
    row_id: str
    """The row: its line and a digest of its content."""
    sample: int
    """The number of the rollout in its group, from 0."""
    purpose: Purpose
    """`train`, `validation` or `test`."""
    reason: str
    """`tool_failed`, `grader_failed`, `rollout_timeout`, `rollout_waited`, `engine_failed` or
    `template_failed`."""
    cause: str
    """The error's message."""
    endpoint: str = ""
    """The endpoint that failed, or what `rollout_waited` mostly waited for, such as `engine-1` or `tool 'search'`."""

    @property
    def quiet(self) -> bool:
        return True

    def __str__(self) -> str:
        return f"a rollout of row {self.row_id} was discarded: {self.cause}"


class RolloutsProgressed(Event):
    """Where the rollouts of the current step or evaluation are, every few seconds. For live views: it is not stored.

    The API has one every half minute. Nothing to do; `slowest_row` and `errors` say where to look if it goes slowly.
    """

    purpose: Purpose
    """`train`, `validation` or `test`."""
    ended: int
    """Rollouts of the next batch, or of the evaluation, that were graded or given up."""
    total: int
    """Rollouts that the batch or evaluation needs."""
    in_flight: int
    """Attempts at rollouts in progress, those for later batches included."""
    calls: dict[str, float] = field(default_factory=dict)
    """Tool calls by tool, of the rollouts that ended since the last step or evaluation."""
    errors: dict[str, float] = field(default_factory=dict)
    """Those of them that were answered with an error."""
    slowest_s: float = 0.0
    """Seconds since the oldest attempt in progress began."""
    # Rows and answers are private to a job's owner; each key that may read the job sees its events.
    slowest_row: Private[str] = ""
    """Its row."""
    newest_trace: Private[str] = ""
    """The trace id of the rollout that was graded last."""
    newest_row: Private[str] = ""
    """Its row."""
    newest_grade: Private[float] = 0.0
    """Its grade."""
    newest_calls: Private[tuple[str, ...]] = ()
    """Its first tool calls, shortened."""
    newest_answer: Private[str] = ""
    """Its answer, shortened."""

    @property
    def passing(self) -> bool:
        return True

    @property
    def quiet(self) -> bool:
        return True

    def __str__(self) -> str:
        calls = f"; calls: {self.describe_calls()}" if self.calls else ""
        return f"rollouts: {self.describe_counts()}{calls}"

    def describe_counts(self) -> str:
        """Return the counts as text: `17/32 ended, 15 in flight, slowest 12 s (row 31)`."""
        slowest = f", slowest {self.slowest_s:.0f} s (row {_line(self.slowest_row)})" if self.in_flight else ""
        return f"{self.ended}/{self.total} ended, {self.in_flight} in flight{slowest}"

    def describe_calls(self) -> str:
        """Return the tools with the most calls, and their errors: `search 40, cat 25 (2 errors)`."""
        tools = sorted(self.calls, key=lambda tool: -self.calls[tool])
        hidden = len(tools) - MAX_SHOWN_TOOLS
        more = [f"{hidden} more"] if hidden > 0 else []
        return ", ".join([*map(self._describe_tool, tools[:MAX_SHOWN_TOOLS]), *more])

    def _describe_tool(self, tool: str) -> str:
        errors = self.errors.get(tool, 0.0)
        return f"{tool} {self.calls[tool]:.0f}" + (f" ({errors:.0f} error{'s' * (errors > 1)})" if errors else "")

    def describe_newest(self) -> str:
        """Return the rollout that was graded last: `row 12, grade 1.000: 4427, after cat {"path": "x"}`.

        Empty if no rollout was graded yet.
        """
        if not self.newest_trace:
            return ""
        after = f", after {' → '.join(self.newest_calls)}" if self.newest_calls else ""
        answer = self.newest_answer or "no answer"
        return f"row {_line(self.newest_row)}, grade {self.newest_grade:.3f}: {answer}{after}"


class EndpointDown(Event, level="warn"):
    """Most of the last rollouts were discarded; new ones are held back, except for probes.

    The job waits and loses no data. Get the endpoint working again: rollouts resume by themselves (`endpoint_up`).
    """

    endpoint: str
    """The endpoint that failed most often or, if none did, the most frequent reason."""
    num_by_endpoint: int
    """Rollouts of the last `num_rollouts` that were discarded because of it."""
    num_failed: int
    """Rollouts of the last `num_rollouts` that were discarded for any reason."""
    num_rollouts: int
    """How many of the last rollouts were looked at."""
    cause: str
    """The message of the last error of the endpoint."""

    def __str__(self) -> str:
        return (
            f"{self.num_failed} of the last {self.num_rollouts} rollouts were discarded, {self.num_by_endpoint} "
            f"because of {self.endpoint}: new ones are held back until a probe is graded. Last error: {self.cause}"
        )


class EndpointUp(Event):
    """A probe was graded, so rollouts resume. Nothing to do."""

    endpoint: str
    """The `endpoint` of the `endpoint_down` before."""

    def __str__(self) -> str:
        return "a probe was graded: rollouts resume"


class SessionProblem(Event, level="warn"):
    """Tool sessions of rollouts cannot be ended or may still be open, so your server may hold resources for them.

    Look at the session server's log, and let it end sessions that were idle for long.
    """

    detail: str
    """What happened, as a sentence."""

    def __str__(self) -> str:
        return self.detail


def _line(row_id: str) -> str:
    return row_id.partition("-")[0]
