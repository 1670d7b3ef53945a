"""Each grade ends by its deadline: with a finite number or with an error, never with 0 for a failure.

How many grades run at a time is bounded where they cost something: at each endpoint, by its `max_concurrency`.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import ray

from actors.endpoints.client import process_stats
from actors.endpoints.model_client import ModelClients
from actors.endpoints.stats import live_endpoint_metrics
from actors.graders.base import Grader, finite_number
from actors.grading.factory import make_grader
from actors.grading.guarded import Guarded
from actors.runtime.calls import QUICK_S, ask
from actors.runtime.channel import Channel, Reachable
from actors.runtime.exporter import MetricsAddress, start_telemetry
from actors.runtime.in_flight import Doing
from actors.runtime.process import lower_priority
from actors.runtime.timing import REAL_TIMING, Timing
from actors.runtime.watchdog import Watched, watched_helper
from trainer.errors import GraderFailed, RftError
from trainer.spec.graders import (
    EndpointGrader,
    GraderSpec,
    GuardSpec,
    LabelModelGrader,
    MultiGrader,
    PythonGrader,
    ScoreModelGrader,
    TextSimilarityGrader,
)
from trainer.spec.job import Reinforcement
from trainer.spec.operator import NOTHING_ALLOWED, Operator
from trainer.types import Grade

LOCAL_DEADLINE_S = 120.0
"""What the wire contract gives to graders that run here."""
QUEUE_S = 480.0
"""What a python grader may wait for a worker beyond that: a burst of hundreds stands in line for one a core. The run
itself has the grader's own `timeout_s`."""
WHAT = "the grader pool"
GRACE_S = 5.0
"""An endpoint's own deadline comes first: its error says more. The tries of a judge whose answers cannot be read share
one deadline."""


class GraderPool:
    """Runs a job's grader, with its guards and the held-out grader beside it. `grader` and `deadline_s` (of one grade,
    waiting for a slot included) may be handed in for the grader itself.
    """

    def __init__(
        self,
        spec: GraderSpec,
        *,
        operator: Operator = NOTHING_ALLOWED,
        guards: Sequence[GuardSpec] = (),
        held_out: GraderSpec | None = None,
        grader: Grader | None = None,
        deadline_s: float | None = None,
        timing: Timing = REAL_TIMING,
    ) -> None:
        """Raises:
        InvalidJob: a grader has mistakes.
        """
        models = ModelClients(operator.models, timing)

        def bounded(spec: GraderSpec, what: str) -> Grader:
            limit_s = _deadline_s(spec, operator)
            return _Bounded(make_grader(spec, operator, timing, models), what, limit_s)

        if grader is None:
            grader = make_grader(spec, operator, timing, models)
        limit_s = _deadline_s(spec, operator) if deadline_s is None else deadline_s
        self._grader: Grader = _Bounded(grader, f"grader {spec.name or spec.type!r}", limit_s)
        if not guards and held_out is None:
            return
        self._grader = Guarded(
            self._grader,
            [(guard, bounded(guard.grader, f"guard {guard.name!r}")) for guard in guards],
            None if held_out is None else bounded(held_out, f"held-out grader {held_out.name or held_out.type!r}"),
        )

    @classmethod
    def of(cls, reinforcement: Reinforcement, operator: Operator, timing: Timing = REAL_TIMING) -> GraderPool:
        """The pool with all graders of a job."""
        guards, held_out = reinforcement.guards, reinforcement.held_out_grader
        return cls(reinforcement.grader, operator=operator, guards=guards, held_out=held_out, timing=timing)

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        """The grade of one rollout.

        Raises:
            GraderFailed: there is none.
            EndpointRefused: an endpoint answered 401 or 403.
        """
        return await self._grader.grade(sample, item, trace_id)

    async def close(self) -> None:
        await self._grader.close()


class _Bounded:
    """A grader each of whose grades ends by `deadline_s`, with a finite number or with an error that names it."""

    def __init__(self, grader: Grader, what: str, deadline_s: float) -> None:
        self._grader = grader
        self._what = what
        self._deadline_s = deadline_s

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        try:
            async with asyncio.timeout(self._deadline_s) as deadline:
                grade = await self._grader.grade(sample, item, trace_id)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise GraderFailed(
                f"{self._what} gave no grade within {self._deadline_s:g} s", kind="deadline", trace_id=trace_id
            ) from None
        finite_number(grade.value, f"{self._what} failed: its grade")
        return grade

    async def close(self) -> None:
        await self._grader.close()


def _deadline_s(spec: GraderSpec, operator: Operator) -> float:
    """Parts run side by side, so the longest of them counts."""
    match spec:
        case MultiGrader():
            return max(_deadline_s(part, operator) for part in spec.graders.values())
        case EndpointGrader():
            return spec.timeout_s + GRACE_S
        case PythonGrader():
            return spec.timeout_s + QUEUE_S
        case ScoreModelGrader() | LabelModelGrader() | TextSimilarityGrader() if spec.model in operator.models:
            return operator.models[spec.model].timeout_s + GRACE_S
    return LOCAL_DEADLINE_S


# -- as an actor -------------------------------------------------------------------------------------------------------


@ray.remote(num_cpus=0, max_concurrency=10_000, max_restarts=-1)
class GraderPoolActor(Reachable):
    """A GraderPool in a process of its own. It keeps nothing between calls, so it may be started anew at any time."""

    def __init__(self, reinforcement: Reinforcement, operator: Operator, metrics: MetricsAddress | None = None) -> None:
        self._pool = GraderPool.of(reinforcement, operator)
        self._recorder = start_telemetry(metrics, "grader-pool")
        self._recorder.begin("grade_s")
        self._recorder.add(lambda: live_endpoint_metrics(process_stats()))
        self._reach_by({"grade": self._grade})
        gc.freeze()  # else full collections walk all that was imported
        lower_priority()

    async def _grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> tuple[Any, ...]:
        begun = time.monotonic()
        try:
            grade = await self._pool.grade(sample, item, trace_id)
        except RftError as error:
            self._recorder.record(f"grade_errors/{error.details.get('kind', 'other')}")
            raise
        self._recorder.record("grade_s", time.monotonic() - begun)
        return astuple(grade)

    async def endpoint_stats(self) -> dict[str, dict[str, Any]]:
        return process_stats()

    async def pulse(self) -> list[Doing]:
        """It answers; what waits here, the engines know."""
        return []


def watched_graders(actor: Any) -> Watched:
    """For the watchdog. With a pool that it gives up, grades are lost and their rollouts tried again."""
    return watched_helper(WHAT, actor, GraderFailed, lambda doing: doing.stage == "grading")


class GraderPoolClient:
    """What engines hold: a GraderPool's methods, answered by the actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._channel = Channel(actor, WHAT, GraderFailed)

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        """As GraderPool.grade; raises GraderFailed also where the pool's process died."""
        return Grade(*await self._channel.call("grade", sample, item, trace_id))

    async def endpoint_stats(self) -> dict[str, dict[str, Any]]:
        """What was counted at each endpoint that grades, by its name ("grader 'endpoint'")."""
        ref = self._actor.endpoint_stats.remote()
        stats: dict[str, dict[str, Any]] = await ask(ref, WHAT, GraderFailed, QUICK_S)
        return stats
