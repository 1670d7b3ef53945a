"""The events of a run: one frozen, versioned type per kind. Control flow depends on types, never on messages.

Events are emitted once and read by all sinks: live view, run folder, API, Prometheus, third-party sinks.
`kind` and `VERSION` are stored. A field with a default may be added; any other change raises the version.

    stream.emit(EngineReplaced(engine="engine-0", reason="it did not answer"))

Import events from this package, not from its modules.
"""

from __future__ import annotations

from agent_rft.events import base, fleet, learning, rollouts, run
from agent_rft.events.base import *
from agent_rft.events.fleet import *
from agent_rft.events.learning import *
from agent_rft.events.rollouts import *
from agent_rft.events.run import *

KINDS: dict[str, type[base.Event]] = {
    base.event_kind(cls): cls
    for module in (run, learning, rollouts, fleet)
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, base.Event) and cls is not base.Event
}
