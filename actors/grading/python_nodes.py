"""Python graders that run in an actor on dedicated nodes.

Each GraderPool has one such actor. The actor gets the sources and the samples to grade, but no secrets. Its environment
variables, arguments and calls contain no job headers, judge keys or server secrets. Like every process in the cluster,
it has Ray's token.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from typing import Any, cast

import ray

from agent_rft.actors.graders.grader_protocol import Grader
from agent_rft.actors.graders.kinds.python_grader import PythonRunner
from agent_rft.actors.runtime.actor_calls import RESTART_S
from agent_rft.actors.runtime.channel import ChannelActor, ChannelClient
from agent_rft.actors.runtime.grader_nodes import PYTHON_GRADER
from agent_rft.actors.runtime.rollout_stages import WorkInProgress
from agent_rft.actors.sandbox.sandbox_start import TRY_AGAIN, SandboxFailed, choose_sandbox_method, sandbox_report
from agent_rft.errors import GraderFailed, UserError
from agent_rft.spec.graders import PythonGrader
from agent_rft.spec.operator.operator_config import OperatorConfig
from agent_rft.types import Grade

ACTOR_NAME = "the python grader process"
CLOSE_S = 30.0
"""Maximum seconds to wait for a grader to close. A grader that takes longer ends when the pool kills the actor."""
KEPT_PREFIXES = ("PYTHONPATH", "RAY_")
"""Prefixes of the environment variables that the actor keeps. The job's other variables are set to empty strings."""


@ray.remote(num_cpus=0, resources={PYTHON_GRADER: 1}, max_concurrency=10_000, max_restarts=-1)
class PythonGraderActor(ChannelActor):
    """Actor that runs the python graders that clients add to it. After a restart, clients must add them again."""

    def __init__(self, unsandboxed: bool) -> None:
        self._operator = OperatorConfig(unsandboxed_python=unsandboxed)
        self._num_workers = _num_workers_here()
        self._graders: dict[int, PythonRunner] = {}
        self._serve_methods({"check": self._check, "add": self._add, "grade": self._grade, "remove": self._remove})

    async def _check(self) -> None:
        await _check_local_sandbox(self._operator)

    async def _add(
        self, key: int, spec: dict[str, Any], label: str, num_workers: int | None, start_ahead: bool
    ) -> None:
        if key not in self._graders:  # a concurrent grade may have added it
            grader = PythonGrader.model_validate(spec)
            workers = num_workers or self._num_workers
            self._graders[key] = PythonRunner(
                grader, label, self._operator, num_workers=workers, start_ahead=start_ahead
            )

    async def _grade(
        self, key: int, sample: dict[str, Any], item: dict[str, Any], trace_id: str
    ) -> tuple[float, float] | None:
        """Return value and latency_s; None if the grader has not been added."""
        if key not in self._graders:
            return None
        grade = await self._graders[key].grade(sample, item, trace_id)
        return grade.value, grade.latency_s

    async def _remove(self, key: int) -> None:
        if (grader := self._graders.pop(key, None)) is not None:
            await grader.close()

    async def heartbeat(self) -> list[WorkInProgress]:
        """Return an empty list, because the engines report the grades in progress."""
        return []


class PythonNodes:
    """Client of a PythonGraderActor.

    The first call starts the actor, and waits for a node to join if needed. `close` ends the actor.
    """

    @classmethod
    def from_operator(cls, operator: OperatorConfig) -> PythonNodes | None:
        """Create a client; return None if python graders run in this process, or if Ray is not initialized."""
        return cls(operator) if operator.python_grader_nodes and ray.is_initialized() else None

    def __init__(self, operator: OperatorConfig, restart_s: float = RESTART_S) -> None:
        self._unsandboxed = operator.unsandboxed_python
        self._wait_s = max(restart_s, operator.wait_for_nodes_s)
        self._numbers = itertools.count()
        self._actor: Any = None
        self._channel: ChannelClient | None = None

    def make_python_grader(
        self, spec: PythonGrader, label: str, *, num_workers: int | None = None, start_ahead: bool = True
    ) -> Grader:
        """Create a grader of kind `python` that runs in the actor. The arguments are those of PythonRunner."""
        arguments = (spec.model_dump(mode="json"), label, num_workers, start_ahead)
        return _RemotePythonGrader(self, next(self._numbers), arguments)

    async def call(self, method: str, *arguments: Any) -> Any:
        if self._channel is None:
            options: dict[str, Any] = (
                {"runtime_env": {"env_vars": hidden}} if (hidden := _empty_job_variables()) else {}
            )
            self._actor = cast(Any, PythonGraderActor).options(**options).remote(self._unsandboxed)
            self._channel = ChannelClient(self._actor, ACTOR_NAME, GraderFailed, restart_s=self._wait_s)
        return await self._channel.call(method, *arguments)

    @property
    def is_open(self) -> bool:
        return self._actor is not None

    def close(self) -> None:
        """Kill the actor and everything that runs in it."""
        actor, self._actor = self._actor, None
        if actor is not None and ray.is_initialized():
            ray.kill(actor)


class _RemotePythonGrader:
    """Client of a python grader that runs in a PythonGraderActor.

    `nodes` sends the calls to the actor. `key` identifies the grader in the actor.
    """

    def __init__(self, nodes: PythonNodes, key: int, settings: tuple[Any, ...]) -> None:
        self._nodes = nodes
        self._key = key
        self._settings = settings

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        while True:
            match await self._nodes.call("grade", self._key, sample, item, trace_id):
                case None:  # first grade, or the actor has restarted
                    await self._nodes.call("add", self._key, *self._settings)
                case [float(value), float(latency_s)]:
                    return Grade(value, latency_s=latency_s)
                case _:  # the node is trusted no more than a sandbox
                    raise GraderFailed(f"{ACTOR_NAME} returned something other than a grade")

    async def close(self) -> None:
        if self._nodes.is_open:
            with suppress(GraderFailed, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._nodes.call("remove", self._key)


async def check_sandbox(operator: OperatorConfig) -> None:
    """Check that a sandbox can be created on the machine on which python graders will run.

    Raises:
        UserError: The machine cannot create a sandbox.
        GraderFailed: No node was free for python graders in time.
    """
    nodes = PythonNodes.from_operator(operator)
    if nodes is None:
        await _check_local_sandbox(operator)
        return
    try:
        await nodes.call("check")
    finally:
        nodes.close()


async def _check_local_sandbox(operator: OperatorConfig) -> None:
    try:
        choose_sandbox_method(await asyncio.to_thread(sandbox_report), operator.unsandboxed_python)
    except SandboxFailed as error:
        message = f"{error.message}: {TRY_AGAIN}"
        raise UserError(
            message,
            code="no_sandbox",
            problem=error.message,
            fix=TRY_AGAIN,
            public_message=f"no sandbox was ready in time: {TRY_AGAIN}",
        ) from None


def _num_workers_here() -> int:
    here = ray.get_runtime_context().get_node_id()
    (resources,) = [node["Resources"] for node in ray.nodes() if node["NodeID"] == here]
    return max(1, int(resources[PYTHON_GRADER]))


def _empty_job_variables() -> dict[str, str]:
    """Return empty values for the job's environment variables, which Ray would otherwise pass to the actor."""
    variables = ray.get_runtime_context().runtime_env.get("env_vars") or {}
    return {name: "" for name in variables if not name.startswith(KEPT_PREFIXES)}
