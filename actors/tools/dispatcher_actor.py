"""Dispatcher actors, which make tool calls and manage tool sessions, and the client of these actors.

Rollouts are sharded over the actors: one shard makes all tool calls of a rollout and manages its session. Each shard
gets a share of the limits of every endpoint, so that all shards together respect the limits.
"""

from __future__ import annotations

import asyncio
import gc
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, TypeVar, cast

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from agent_rft.actors.endpoints.client import collect_process_stats
from agent_rft.actors.endpoints.endpoint_statistics import merge_stats, to_live_metrics
from agent_rft.actors.endpoints.signing import Signer
from agent_rft.actors.runtime.actor_calls import READ_TIMEOUT_S, call_actor
from agent_rft.actors.runtime.channel import ChannelActor, ChannelClient
from agent_rft.actors.runtime.grader_nodes import AVOID_PYTHON_GRADERS
from agent_rft.actors.runtime.process_setup import lower_priority
from agent_rft.actors.runtime.rollout_stages import WorkInProgress
from agent_rft.actors.runtime.telemetry.exporter import MetricsAddress, start_telemetry
from agent_rft.actors.runtime.telemetry.tracing import create_tracer
from agent_rft.actors.runtime.watchdog import WatchedActor, watch_restartable_actor
from agent_rft.actors.tools.dispatcher import Dispatcher
from agent_rft.actors.tools.tool_sessions import CLOSE_S, ToolSessions
from agent_rft.errors import ToolFailed
from agent_rft.spec.endpoints import Endpoint, SessionSpec, ToolSpec
from agent_rft.spec.operator.operator_config import OperatorConfig
from agent_rft.types import ToolCall, ToolResult

E = TypeVar("E", bound=Endpoint)
ACTOR_NAME = "the tool dispatcher"
MAX_SESSION_MESSAGES = 100


@ray.remote(num_cpus=0, max_concurrency=10_000, max_restarts=-1, label_selector=AVOID_PYTHON_GRADERS)
class DispatcherActor(ChannelActor):
    """Actor that runs a Dispatcher in a separate process, and receives one message per conversation turn.

    If the job has a `session`, the actor also manages the tool sessions, and records them in `journal`, a file on this
    node. Ray may restart the actor at any time. A restarted actor has lost its counters. It ends the tool sessions that
    `journal` lists as open.
    """

    def __init__(
        self,
        tools: Sequence[ToolSpec],
        operator: OperatorConfig,
        session: SessionSpec | None = None,
        journal: Path | None = None,
        name: str = "dispatcher",
        metrics: MetricsAddress | None = None,
        signer: Signer | None = None,
    ) -> None:
        self._tracer = create_tracer(operator.traces, name, metrics)
        # The endpoints answered the job's check, so a single 403 must not end the job.
        self._dispatcher = Dispatcher(tools, operator, signer=signer, tracer=self._tracer, has_answered=True)
        start_telemetry(metrics, name).add_source(lambda: to_live_metrics(collect_process_stats()))
        self._news: deque[str] = deque(maxlen=MAX_SESSION_MESSAGES)
        if session is None:
            self._sessions = None
        else:
            self._sessions = ToolSessions(
                session,
                journal,
                operator,
                on_message=self._news.append,
                signer=signer,
                tracer=self._tracer,
                has_answered=True,
            )
        self._serve_methods({"call_turn": self._call_turn, "open_session": self._open_session})
        gc.freeze()  # otherwise each full garbage collection traverses all imported modules
        lower_priority()

    async def _call_turn(self, trace_id: str, item: dict[str, Any], calls: Sequence[Sequence[Any]]) -> list[Any]:
        if self._sessions is not None and not self._sessions.is_open(trace_id):
            raise ToolFailed(f"the session of {trace_id} has ended, so no tool is called", kind="session_over")
        results = await self._dispatcher.call_turn(trace_id, item, [ToolCall(*call) for call in calls])
        return [astuple(result) for result in results]

    async def _open_session(self, trace_id: str, item: dict[str, Any], owner: str) -> None:
        if self._sessions is not None:
            await self._sessions.start(trace_id, item, owner)

    async def heartbeat(self) -> list[WorkInProgress]:
        """Return an empty list, since the engines report the calls that this actor makes."""
        return []

    async def endpoint_stats(self) -> dict[str, dict[str, Any]]:
        return collect_process_stats()

    async def close_session(self, trace_id: str, reason: str) -> None:
        if self._sessions is not None:
            self._sessions.end(trace_id, reason)

    async def end_owner_sessions(self, owner: str, reason: str) -> None:
        if self._sessions is not None:
            self._sessions.end_owner(owner, reason)

    async def close_sessions(self, reason: str) -> int:
        return 0 if self._sessions is None else await self._sessions.close(reason)

    async def flush_traces(self) -> None:
        """Send the remaining spans; see `Tracer.flush`."""
        await asyncio.to_thread(self._tracer.flush)

    async def take_session_messages(self) -> list[str]:
        news = list(self._news)
        self._news.clear()
        return news


def start_dispatchers(
    tools: Sequence[ToolSpec],
    operator: OperatorConfig,
    count: int,
    session: SessionSpec | None = None,
    journals: Path | None = None,
    get_options: Callable[[str, int], dict[str, Any]] = lambda name, index: {},
    metrics: MetricsAddress | None = None,
    signer: Signer | None = None,
) -> list[Any]:
    """Start dispatcher actors that split the limits of each endpoint.

    Starts `count` actors, or fewer if the limit of an endpoint is lower than `count`. `get_options` takes an actor's
    name and index, and returns its Ray options. With sessions, the actors run on the caller's node.
    """
    actor, on_this_node = cast(Any, DispatcherActor), {}
    limits = [tool.max_concurrency for tool in tools]
    if session is not None:
        limits += [session.max_concurrency, *([] if session.max_open is None else [session.max_open])]
        node = ray.get_runtime_context().get_node_id()
        on_this_node = {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
    count = min([count, *limits])
    paths = [None] * count if journals is None else prepare_journals(journals, count)
    return [
        actor.options(**get_options(f"dispatcher-{index}", index) | on_this_node).remote(
            [split_limits(tool, index, count) for tool in tools],
            operator,
            None if session is None else split_limits(session, index, count),
            path,
            f"dispatcher-{index}",
            metrics,
            signer,
        )
        for index, path in enumerate(paths)
    ]


def watch_dispatchers(actors: Sequence[Any]) -> list[WatchedActor]:
    """Return the dispatchers as targets of the watchdog.

    If a dispatcher is restarted, its calls in progress are lost, and their rollouts are retried.
    """

    def watch(index: int, actor: Any) -> WatchedActor:
        name = ACTOR_NAME if len(actors) == 1 else f"{ACTOR_NAME} ({index + 1} of {len(actors)})"

        def waits_here(doing: WorkInProgress) -> bool:
            return (
                doing.stage in ("tool calls", "session start") and _compute_shard(doing.trace_id, len(actors)) == index
            )

        return watch_restartable_actor(name, actor, ToolFailed, waits_here)

    return [watch(index, actor) for index, actor in enumerate(actors)]


def _compute_shard(trace_id: str, count: int) -> int:
    return zlib.crc32(trace_id.encode()) % count


def split_limits(endpoint: E, index: int, count: int) -> E:
    """Return the endpoint's settings for shard `index` of `count`, with this shard's share of the limits."""

    def split(limit: int) -> int:
        share, rest = divmod(limit, count)
        return share + (index < rest)

    rate = None if endpoint.rate_limit_per_s is None else endpoint.rate_limit_per_s / count
    update: dict[str, Any] = {"max_concurrency": split(endpoint.max_concurrency), "rate_limit_per_s": rate}
    if isinstance(endpoint, SessionSpec) and endpoint.max_open is not None:
        update["max_open"] = split(endpoint.max_open)
    return endpoint.model_copy(update=update)


def prepare_journals(folder: Path, count: int) -> list[Path]:
    """Return the paths of the journals of `count` shards.

    If the job had more shards earlier, the journals of the additional shards are appended to the first journal.
    """
    paths = [folder.resolve() / f"sessions-{index}.jsonl" for index in range(count)]
    for orphan in sorted(set(folder.resolve().glob("sessions-*.jsonl")) - set(paths)):
        with paths[0].open("ab") as first:
            first.write(b"\n" + orphan.read_bytes())
        orphan.unlink()
    return paths


class DispatcherClient:
    """Client of all dispatcher actors, for engines and the driver. Has the methods of Dispatcher and ToolSessions."""

    def __init__(self, *actors: Any) -> None:
        self._actors = actors
        # The dispatcher enforces the deadlines of calls, which may take hours; the watchdog restarts a hung process.
        self._channels = [ChannelClient(actor, ACTOR_NAME, ToolFailed, deadline_s=None) for actor in actors]

    async def call_turn(self, trace_id: str, item: dict[str, Any], calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Call Dispatcher.call_turn in the rollout's shard; also raises ToolFailed if the shard's process dies."""
        channel = self._channels[self._find_shard(trace_id)]
        results = await channel.call("call_turn", trace_id, item, [astuple(call) for call in calls])
        return [ToolResult(*result) for result in results]

    async def endpoint_stats(self) -> dict[str, dict[str, Any]]:
        """Return EndpointClient.stats of each tool and session server, by client name, such as "tool 'search'"."""
        return merge_stats(await asyncio.gather(*(self._ask(actor.endpoint_stats.remote()) for actor in self._actors)))

    async def open_session(self, trace_id: str, item: dict[str, Any], owner: str) -> None:
        """Call ToolSessions.start in the rollout's shard; also raises ToolFailed if the shard's process dies."""
        await self._channels[self._find_shard(trace_id)].call("open_session", trace_id, item, owner)

    def close_session(self, trace_id: str, reason: str) -> None:
        """Call ToolSessions.end in the rollout's shard.

        If the shard's process has died, the session ends after the process restarts.
        """
        self._actors[self._find_shard(trace_id)].close_session.remote(trace_id, reason)

    def end_owner_sessions(self, owner: str, reason: str) -> None:
        """Call ToolSessions.end_owner in all dispatchers."""
        for actor in self._actors:
            actor.end_owner_sessions.remote(owner, reason)

    async def close_sessions(self, reason: str) -> int:
        """Call ToolSessions.close in all dispatchers; return the total number of sessions whose end is unconfirmed."""
        unconfirmed: list[int] = await asyncio.gather(
            *(self._ask(actor.close_sessions.remote(reason), CLOSE_S + READ_TIMEOUT_S) for actor in self._actors)
        )
        return sum(unconfirmed)

    async def take_session_messages(self) -> list[str]:
        """Return new messages for the user about sessions; each message is returned once."""
        news = await asyncio.gather(*(self._ask(actor.take_session_messages.remote()) for actor in self._actors))
        return [text for texts in news for text in texts]

    def _find_shard(self, trace_id: str) -> int:
        return _compute_shard(trace_id, len(self._actors))

    async def _ask(self, ref: Any, timeout_s: float = READ_TIMEOUT_S) -> Any:
        return await call_actor(ref, ACTOR_NAME, ToolFailed, timeout_s)


class WorkerSessions:
    """Tool sessions of the episodes that run in one engine worker.

    `owner` identifies the worker. A restarted worker has a new `owner`.
    """

    def __init__(self, dispatcher: DispatcherClient, owner: str) -> None:
        self._dispatcher = dispatcher
        self._owner = owner

    async def start(self, trace_id: str, item: dict[str, Any]) -> None:
        await self._dispatcher.open_session(trace_id, item, self._owner)

    def end(self, trace_id: str, reason: str) -> None:
        self._dispatcher.close_session(trace_id, reason)
