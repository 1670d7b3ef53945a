"""Events of engines, other actors, endpoint outages and components of the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from agent_rft.events.base_event import Event, Private, append_reason

TrackerCause = Literal["not_installed", "not_allowed", "failed"]
TRACKER_CAUSES: Mapping[TrackerCause, str] = {
    "not_installed": ": its package is not installed",
    "not_allowed": ": the operator has not set it up",
    "failed": "",
}


class EngineWaiting(Event, level="warn"):
    """An engine is waiting for free cluster resources.

    The run has started with the other engines. The waiting engine joins the run when it gets its resources.
    """

    engine: str
    """The engine, such as `engine-1`."""

    def __str__(self) -> str:
        return f"{self.engine} is waiting for free cluster resources; it will join the run once they are free"


class EngineReplaced(Event, level="warn"):
    """An engine was stopped and is being replaced. Its rollouts start again on other engines.

    A single replacement needs no action. If replacements with the same reason repeat, check the node for a lack of
    memory and for GPU errors.
    """

    engine: str
    """The engine, such as `engine-1`; the replacement has the same name."""
    reason: Private[str]
    """Reason for stopping the engine."""

    def __str__(self) -> str:
        return append_reason(f"{self.engine} is being replaced", self.reason)


class EngineUnstable(Event, level="warn"):
    """An engine was replaced several times in a row and never survived until the next weight update.

    The number of replacements between two weight updates is limited, and each update resets the count. The job fails
    only if the limit is exceeded. After each replacement, the engine's rollouts start again. Find the common reason in
    the engine's `engine_replaced` events: lack of memory (`agent-rft plan`), GPU errors, or a preempted node.
    """

    engine: str
    """The engine, such as `engine-1`."""
    times: int
    """Number of consecutive replacements, including the last one."""
    reason: Private[str]
    """Reason for the last replacement."""

    def __str__(self) -> str:
        times = f"{self.times} times in a row without a weight update in between"
        return append_reason(f"{self.engine} was replaced {times}", self.reason)


class WeightsNotCompared(Event, level="warn"):
    """Some tensors of this model cannot be compared by checksum: the engines transform or ignore them on loading.

    For these tensors, only the canary (`canary_gap`) shows whether an engine has the learner's weights. With weights in
    bfloat16, the canary is not precise enough to detect a single outdated tensor. No action is needed unless
    `canary_gap` rises.
    """

    tensors: tuple[str, ...]
    """Names of some tensors that cannot be compared."""
    num_tensors: int
    """Total number of tensors that cannot be compared."""

    def __str__(self) -> str:
        tensors = f"{self.num_tensors} tensors when they load weights ({', '.join(self.tensors)})"
        return f"the engines transform or ignore {tensors}; only the canary can show whether these tensors are outdated"


class EngineRestarted(Event, level="warn"):
    """A replacement engine was lost while starting, and is being started again. If this repeats, check the node."""

    engine: str
    """The engine, such as `engine-1`."""
    reason: Private[str]
    """Reason why the engine was lost."""

    def __str__(self) -> str:
        return append_reason(f"{self.engine} is being restarted", self.reason)


class EngineJoined(Event):
    """An engine with the newest weights is ready for rollouts. Nothing to do."""

    engine: str
    """The engine, such as `engine-1`."""

    def __str__(self) -> str:
        return f"{self.engine} is ready, with the newest weights"


class ActorSilent(Event, level="warn"):
    """An actor does not answer: it hangs, its node is overloaded, or its network connection is interrupted.

    Check the actor's node. If the actor stays silent, the run treats it as dead.
    """

    actor: str
    """The actor, such as `engine-1`, `learner rank 0` or `dispatcher`."""
    silent_s: float
    """Seconds since the actor's last answer."""
    work: tuple[str, ...] = ()
    """The actor's last reported work or, if `is_waited_for`, the rollouts that wait for the actor."""
    is_waited_for: bool = False
    """Whether `work` lists rollouts that wait for the actor."""

    def __str__(self) -> str:
        silence = f"{self.actor} has not answered for {self.silent_s:.0f} s"
        if not self.work:
            return silence
        what = "waiting for it" if self.is_waited_for else "last reported work"
        return f"{silence}; {what}: {', '.join(self.work)}"


class ActorRecovered(Event):
    """An actor answers again. Nothing to do."""

    actor: str
    """The actor of the preceding `actor_silent`."""
    silent_s: float
    """Seconds for which the actor did not answer."""

    def __str__(self) -> str:
        return f"{self.actor} answers again after {self.silent_s:.0f} s without an answer"


class WorkStalled(Event, level="warn"):
    """An actor answers, but one stage of its work takes too long.

    Possible causes are slow hardware, a full disk or a bug.
    """

    actor: str
    """The actor, such as `learner rank 0`."""
    stage: str
    """The stage of the actor's work."""
    duration_s: float
    """Seconds in this stage so far."""

    def __str__(self) -> str:
        return f"{self.actor} has been in the stage '{self.stage}' for {self.duration_s:.0f} s"


class EndpointOutageStarted(Event, level="warn"):
    """A tool, session server, grader or judge fails every call. Only occasional probes are sent; other calls wait.

    Start the server, or fix its URL. The job resumes after the next successful probe, within a minute. If a call
    reaches its deadline before then, its rollout is discarded, not graded 0.
    """

    endpoint: str
    """Name of the endpoint, such as `tool 'search'`."""

    def __str__(self) -> str:
        return f"{self.endpoint} is down: only probes are sent to it, and all other calls wait"


class EndpointOutageEnded(Event):
    """An endpoint answers again after an outage. Nothing to do."""

    endpoint: str
    """Name of the endpoint, such as `tool 'search'`."""
    started_at: float
    """Time when the outage was detected, in Unix seconds. The outage ended at most a few seconds before this event."""
    duration_s: float
    """Duration of the outage in seconds."""
    delayed_calls: int
    """Calls that had to wait because of the outage."""
    failed_calls: int
    """Calls that ended without an answer during the outage; their rollouts were discarded."""

    def __str__(self) -> str:
        effect = f"{self.delayed_calls} calls were delayed, {self.failed_calls} failed"
        return f"{self.endpoint} is up again after {self.duration_s:.0f} s; {effect}"


class RolloutsStalled(Event, level="warn"):
    """No rollout has ended for a long time, although some are in flight. Usually a tool answers slowly.

    `longest_rollouts` lists the oldest rollouts in flight and what each of them is waiting for.
    """

    idle_s: float
    """Seconds since the last rollout ended."""
    num_in_flight: int
    """Rollouts in flight."""
    longest_rollouts: tuple[str, ...] = ()
    """The rollouts that have been in flight longest, each with its stage and the actor that it is waiting for."""

    def __str__(self) -> str:
        longest = ", ".join(self.longest_rollouts) or "waiting for an engine"
        return f"no rollout has ended for {self.idle_s:.0f} s; {self.num_in_flight} are in flight: {longest}"


class ComponentFailed(Event, level="error"):
    """A component of the driver failed because of a bug. The run continues without it. Please report the bug."""

    component: str
    """The component, such as `watchdog`."""
    error: Private[str]
    """Type and message of the error."""

    def __str__(self) -> str:
        return append_reason(f"the {self.component} failed", self.error)


class SinkCutOff(Event, level="warn"):
    """A sink (live view, run folder, API, plug-in) raised an error, hung or fell behind, and gets no more events.

    Training continues. If the sink is your own code, fix it; the next run uses the sink again.
    """

    sink: str
    """Class of the sink, or name of the plug-in."""
    reason: Private[str]
    """The error that the sink raised, or the limit that the sink exceeded: seconds for one call, or number of waiting
    events."""

    def __str__(self) -> str:
        return append_reason(f"the sink {self.sink} was disconnected and gets no more events", self.reason)


class TrackerFailed(Event, level="warn"):
    """A tracker of the job's `integrations` cannot be used, and gets no more metrics. Training continues.

    The run folder contains all metrics. The tracker is tried again in the next run, or when this run is resumed.
    """

    tracker: str
    """Type of the tracker, such as `wandb`."""
    cause: TrackerCause
    """`not_installed`: the tracker's package is missing; install agent-rft with the tracker's extra. `not_allowed`: the
    URL or key of the tracker is missing in the operator's `trackers`.

    `failed`: the tracker raised an error, hung or fell behind, for example because its server cannot be reached or
    rejects the key.
    """
    reason: Private[str]
    """For `not_installed` and `not_allowed`: the command to run or the setting to set. For `failed`: the error that the
    tracker raised, or the limit that the tracker exceeded."""

    def __str__(self) -> str:
        cause = TRACKER_CAUSES[self.cause]
        return append_reason(f"{self.tracker} gets no more metrics of this run{cause}", self.reason)


class Notice(Event, level="warn"):
    """Advice at the start of a run about something that is allowed but rarely intended.

    Programs should not parse the text.
    """

    text: str
    """The advice, as a sentence."""

    def __str__(self) -> str:
        return self.text
