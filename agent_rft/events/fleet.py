"""Events of engines and other actors, of endpoint outages, and of the parts of the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from agent_rft.events.base import Event, Private, append_reason

IntegrationCause = Literal["not_installed", "not_allowed", "failed"]
INTEGRATION_CAUSES: Mapping[IntegrationCause, str] = {
    "not_installed": ": its package is not installed",
    "not_allowed": ": the operator has not set it up",
    "failed": "",
}


class EngineWaiting(Event, level="warn"):
    """An engine waits for resources, while the run has begun with the others. It joins when there is room."""

    engine: str
    """The engine, such as `engine-1`."""

    def __str__(self) -> str:
        return f"the cluster has no room for {self.engine} yet; it joins when there is room"


class EngineReplaced(Event, level="warn"):
    """An engine was stopped and a replacement starts; its rollouts begin again on other engines.

    One is nothing to worry about. If it repeats with the same reason, look at the node: memory, GPU errors.
    """

    engine: str
    """The engine, such as `engine-1`; the replacement has the same name."""
    reason: Private[str]
    """Why it was stopped."""

    def __str__(self) -> str:
        return append_reason(f"{self.engine} is being replaced", self.reason)


class EngineUnstable(Event, level="warn"):
    """An engine was replaced several times in a row, and never worked from one weight update to the next.

    The job continues, because each update renews the number of replacements that are allowed, but the engine's rollouts
    start again each time. Look for the common reason of its `engine_replaced` events: memory (`agent-rft plan`), GPU
    errors, or a node that is preempted.
    """

    engine: str
    """The engine, such as `engine-1`."""
    times: int
    """Replacements in a row, this one included."""
    reason: Private[str]
    """Why it was stopped the last time."""

    def __str__(self) -> str:
        times = f"{self.times} times in a row without working from one weight update to the next"
        return append_reason(f"{self.engine} was replaced {times}", self.reason)


class WeightsNotCompared(Event, level="warn"):
    """The engines transform or ignore some tensors of this model as they load them, and their checksums say nothing.

    Whether an engine has the learner's weights is then seen only by the canary (`canary_gap`), which in bfloat16 does
    not notice a single tensor that stays old. Nothing to do unless `canary_gap` rises.
    """

    tensors: tuple[str, ...]
    """Names of some of them."""
    num_tensors: int
    """How many they are."""

    def __str__(self) -> str:
        tensors = f"{self.num_tensors} tensors in another form ({', '.join(self.tensors)})"
        return f"the engines load {tensors}: only the canary compares them with the learner"


class EngineRestarted(Event, level="warn"):
    """A replacement was lost while it started, and starts again. If it repeats, look at the node as well."""

    engine: str
    """The engine, such as `engine-1`."""
    reason: Private[str]
    """Why it was lost."""

    def __str__(self) -> str:
        return append_reason(f"{self.engine} is being restarted", self.reason)


class EngineJoined(Event):
    """An engine with the newest weights is ready for rollouts. Nothing to do."""

    engine: str
    """The engine, such as `engine-1`."""

    def __str__(self) -> str:
        return f"{self.engine} is ready, with the newest weights"


class ActorSilent(Event, level="warn"):
    """An actor does not answer: it hangs, its node is overloaded, or the network between them is interrupted.

    If it stays silent it is given up, as if it had died. Look at its node.
    """

    actor: str
    """The actor, such as `engine-1`, `learner rank 0` or `dispatcher`."""
    silent_s: float
    """Seconds since its last answer."""
    work: tuple[str, ...] = ()
    """Its last known work or, if `waiting`, the rollouts that wait for it."""
    waiting: bool = False
    """Whether `work` are rollouts that wait for the actor."""

    def __str__(self) -> str:
        silence = f"{self.actor} has not answered for {self.silent_s:.0f} s"
        if not self.work:
            return silence
        what = "waiting for it" if self.waiting else "last seen at"
        return f"{silence}; {what}: {', '.join(self.work)}"


class ActorAnswered(Event):
    """An actor answers again. Nothing to do."""

    actor: str
    """The actor of an `actor_silent` before."""
    silent_s: float
    """Seconds for which it did not answer."""

    def __str__(self) -> str:
        return f"{self.actor} answers again, after {self.silent_s:.0f} s"


class WorkStalled(Event, level="warn"):
    """An actor answers, but has been in one stage of its own work for too long: slow hardware, a full disk, a bug."""

    actor: str
    """The actor, such as `learner rank 0`."""
    stage: str
    """The stage of its work."""
    for_s: float
    """Seconds in this stage so far."""

    def __str__(self) -> str:
        return f"{self.actor} has been in {self.stage} for {self.for_s:.0f} s"


class EndpointOutageBegan(Event, level="warn"):
    """A tool, session server, grader or judge only fails: it gets a probe now and then, and all other calls wait.

    Start the server or repair its URL. The job goes on after the next probe that succeeds, within a minute. Calls that
    reach their deadline before are discarded with their rollouts, never graded 0.
    """

    endpoint: str
    """Its name, such as `tool 'search'`."""

    def __str__(self) -> str:
        return f"{self.endpoint} is down: it only receives probes, and all other calls wait"


class EndpointOutageEnded(Event):
    """An endpoint answers again after an outage. Nothing to do."""

    endpoint: str
    """Its name, such as `tool 'search'`."""
    began_at: float
    """When it was first seen to be down, in Unix seconds; it ended at the time of the event, to a few seconds."""
    seconds: float
    """How long it was down."""
    delayed_calls: int
    """Calls that had to wait because of it."""
    failed_calls: int
    """Calls that ended without an answer meanwhile; their rollouts were discarded."""

    def __str__(self) -> str:
        effect = f"{self.delayed_calls} calls were delayed, {self.failed_calls} failed"
        return f"{self.endpoint} is up again after {self.seconds:.0f} s; {effect}"


class RolloutsStalled(Event, level="warn"):
    """No rollout has ended for a long time, although some are in flight: mostly a tool that answers slowly.

    `longest` says what the oldest of them wait for.
    """

    idle_s: float
    """Seconds since the last rollout ended."""
    num_in_flight: int
    """Rollouts in flight."""
    longest: tuple[str, ...] = ()
    """Those that have been in flight longest, with their stages and actors."""

    def __str__(self) -> str:
        longest = ", ".join(self.longest) or "waiting for an engine"
        return f"no rollout has ended for {self.idle_s:.0f} s, {self.num_in_flight} are in flight: {longest}"


class ComponentFailed(Event, level="error"):
    """A part of the driver failed because of a bug; the run continues without it. Report it."""

    component: str
    """The part, such as `watchdog`."""
    error: Private[str]
    """Type and message of the error."""

    def __str__(self) -> str:
        return append_reason(f"the {self.component} failed", self.error)


class SinkCutOff(Event, level="warn"):
    """A sink (live view, run folder, API, plug-in) raised, hung or fell behind, and gets no more events.

    Training continues. For a sink of your own, fix it; it is called again in the next run.
    """

    sink: str
    """The sink's class or the plug-in's name."""
    reason: Private[str]
    """What it raised, or how it fell behind."""

    def __str__(self) -> str:
        return append_reason(f"the sink {self.sink} was cut off and gets no more events", self.reason)


class IntegrationFailed(Event, level="warn"):
    """A tracker of the job's `integrations` cannot be used, and gets no more numbers. Training continues.

    The run's folder has all of them. The tracker is tried again in the next run, or when this one is resumed.
    """

    integration: str
    """Its type, such as `wandb`."""
    cause: IntegrationCause
    """`not_installed`: install the package's extra. `not_allowed`: the operator's `integrations` lacks its address or
    key.

    `failed`: it raised an error, hung or fell behind, such as when its server cannot be reached or refuses the key.
    """
    reason: Private[str]
    """What is missing, or what it raised."""

    def __str__(self) -> str:
        cause = INTEGRATION_CAUSES[self.cause]
        return append_reason(f"{self.integration} gets no numbers of this run{cause}", self.reason)


class Notice(Event, level="warn"):
    """Advice from the checks before the start, about settings that are allowed but rarely intended. For people only."""

    text: str
    """The advice, as a sentence."""

    def __str__(self) -> str:
        return self.text
