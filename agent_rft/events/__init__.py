"""Events of a run: one frozen, versioned dataclass per kind.

Programs must react to the type of an event, never to its message. Each event is emitted once and read by all sinks:
live view, run folder, API, Prometheus, third-party sinks. `kind` and `VERSION` are stored with the event. Adding a
field with a default does not change the version. Increase the version for any other change.

    stream.emit(EngineReplaced(engine="engine-0", reason="it did not answer"))

Import events from this package, not from its modules.
"""

from __future__ import annotations

from agent_rft.events import base_event, fleet_events, learning_events, progress_events, rollout_events
from agent_rft.events.base_event import *
from agent_rft.events.fleet_events import *
from agent_rft.events.learning_events import *
from agent_rft.events.progress_events import *
from agent_rft.events.rollout_events import *

KINDS: dict[str, type[base_event.Event]] = {
    base_event.event_kind(cls): cls
    for module in (progress_events, learning_events, rollout_events, fleet_events)
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, base_event.Event) and cls is not base_event.Event
}
