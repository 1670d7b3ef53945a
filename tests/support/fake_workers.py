"""Fakes of the Ray actors that a fleet starts: a worker whose engine and rollouts the test controls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent_rft.actors.engine.vllm_engine import PromptScores
from agent_rft.actors.rollout.episode import RolloutRequest
from agent_rft.actors.runtime.actor_calls import LOST
from agent_rft.errors import EngineFailed, RftError
from agent_rft.rows.rollout_json import outcome_to_json, task_from_json
from agent_rft.trainer.learner.weight_buckets import BucketLayout, WeightLoadResult
from agent_rft.types import DiscardedRollout
from tests.support.builders import group_request, rollout

BUCKET, CHECKSUM = np.arange(8, dtype=np.uint8), 28
"""The weights of a fake learner, and their checksum."""


class Method:
    """A method of an actor, as its callers see it; expected errors are returned as values."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self._call = call

    def options(self, **options: Any) -> Method:
        return self

    def remote(self, *arguments: Any) -> asyncio.Future[Any]:
        async def outcome() -> Any:
            try:
                return await self._call(*arguments)
            except RftError as error:
                return error

        return asyncio.ensure_future(outcome())


class FakeWorker:
    """A worker that starts once `may_start` is set, and whose rollouts end when the test ends them.

    It loads weights while `may_load` is set, as it is at first.

    A call that must not happen while the engine sleeps fails the test.
    """

    def __init__(self) -> None:
        self.asleep = False
        self.cannot_sleep = False
        self.lacks_weights = False
        """Whether its weights were discarded, and it has loaded none since."""
        self.loaded: list[int] = []
        """The versions that it has loaded, in order."""
        self.cannot_load = False
        self.may_start = asyncio.Event()
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.is_loading = False
        self.version = 0
        self.busy_s: float | None = 0.0
        """Seconds for which its engine had requests; None if the engine does not answer."""
        self.canary_values: NDArray[np.float32] | None = np.zeros(4, dtype=np.float32)
        self.experts: NDArray[np.uint8] | None = None
        self.requests: list[RolloutRequest] = []
        self._running: dict[tuple[str, int], asyncio.Future[None]] = {}
        self._discards: dict[tuple[str, int], str] = {}
        names = (
            "start init_transport get_channel_address offload reload stage_bucket load_staged shutdown "
            "score_prompt call heartbeat engine_stats"
        )
        for name in names.split():
            setattr(self, name, Method(getattr(self, f"_{name}")))

    @property
    def rows(self) -> list[str]:
        """The rows of the rollouts in flight."""
        return [row for row, _ in self._running]

    def end(self, row: str, sample: int, discarded: str = "") -> None:
        """End a rollout with a grade, or without one for the reason `discarded`."""
        self._discards[row, sample] = discarded
        self._running[row, sample].set_result(None)

    def end_all(self) -> None:
        """End all rollouts in flight with a grade."""
        for row, sample in list(self._running):
            self.end(row, sample)

    def die(self) -> None:
        """Lose the process, and with it all rollouts."""
        for running in self._running.values():
            running.set_exception(EngineFailed("its process was lost", kind=LOST))

    async def _start(self) -> None:
        await self.may_start.wait()

    async def _init_transport(self, info: dict[str, Any]) -> None:
        pass

    async def _get_channel_address(self) -> None:
        return None

    async def _heartbeat(self) -> None:
        pass

    async def _engine_stats(self) -> dict[str, Any]:
        if self.busy_s is None:
            raise EngineFailed("it does not answer")
        return {"version": self.version, "sampled_tokens": 0, "busy_s": self.busy_s}

    async def _offload(self, discards: bool) -> bool:
        if self.cannot_sleep:
            raise EngineFailed("its process ended")
        self.asleep, self.lacks_weights = True, self.lacks_weights or discards
        return self.lacks_weights

    async def _reload(self) -> None:
        self.asleep = False

    async def _stage_bucket(self, data: NDArray[np.uint8], layout: BucketLayout) -> None:
        pass

    async def _load_staged(self, version: int) -> WeightLoadResult:
        assert not self.asleep
        self.is_loading = True
        await self.may_load.wait()
        self.is_loading = False
        if self.cannot_load:
            raise EngineFailed("it cannot load weights")
        self.version, self.lacks_weights = version, False
        self.loaded.append(version)
        return WeightLoadResult(0.1, (CHECKSUM,))

    async def _score_prompt(self, token_ids: Sequence[int]) -> PromptScores:
        if self.canary_values is None:
            raise EngineFailed("it does not answer")
        assert len(token_ids) == len(self.canary_values) + 1
        return PromptScores(self.canary_values, self.experts)

    async def _shutdown(self) -> None:
        pass

    async def _call(self, method: str, arguments: Sequence[Any]) -> dict[str, Any]:
        """Run a rollout, as `RolloutWorker` does."""
        task, *rest = arguments
        request = RolloutRequest(task_from_json(task), *rest)
        sample = request.sample
        self.requests.append(request)
        key = request.task.row_id, sample
        self._running[key] = asyncio.get_running_loop().create_future()
        try:
            await self._running[key]
        finally:
            del self._running[key]
        if reason := self._discards.pop(key):
            return outcome_to_json(DiscardedRollout("", request.task.row_id, sample, reason, "as the test says"))
        return outcome_to_json(rollout(group_request(task=request.task), sample))
