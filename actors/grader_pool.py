"""Each grade ends by its deadline: with a finite number or with an error, never with 0 for a failure.

How many grades run at a time is bounded where they cost something: at each endpoint, by its `max_concurrency`.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import ray

from actors.graders.base import Grader, finite_number
from actors.graders.factory import make_grader
from actors.graders.sample import sample_of
from actors.http_client import REAL_TIMING, Timing
from actors.outcome import ask, outcome_of
from trainer.errors import GraderFailed, RftError
from trainer.grader_spec import EndpointGrader, GraderSpec, MultiGrader
from trainer.operator import NOTHING_ALLOWED, Operator
from trainer.types import Grade

LOCAL_DEADLINE_S = 120.0
"""What the wire contract gives to graders that run here."""
GRACE_S = 5.0
"""An endpoint's own deadline comes first: its error says more."""


class GraderPool:
    """Runs a job's grader. `grader` and `deadline_s` (of one grade, waiting for a slot included) may be handed in."""

    def __init__(
        self,
        spec: GraderSpec,
        *,
        operator: Operator = NOTHING_ALLOWED,
        grader: Grader | None = None,
        deadline_s: float | None = None,
        timing: Timing = REAL_TIMING,
    ) -> None:
        """
        Raises:
            InvalidJob: the grader has mistakes.
        """
        self._what = f"grader {spec.name or spec.type!r}"
        self._grader = make_grader(spec, operator, timing) if grader is None else grader
        self._deadline_s = _deadline_s(spec) if deadline_s is None else deadline_s

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        """The grade of one rollout.

        Raises:
            GraderFailed: there is none.
            EndpointRefused: an endpoint answered 401 or 403.
        """
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

    async def dry_run(self, item: dict[str, Any], answer: str = "") -> Grade | RftError:
        """What the grader says of `answer`, without tool calls, to one dataset row: its grade, or why it gave none."""
        return await outcome_of(self.grade(sample_of(answer, (), "answer", wants_json=True), item, "trace_dry_run"))

    async def close(self) -> None:
        await self._grader.close()


def _deadline_s(spec: GraderSpec) -> float:
    """Parts run side by side, so the longest of them counts."""
    if isinstance(spec, MultiGrader):
        return max(_deadline_s(part) for part in spec.graders.values())
    return spec.timeout_s + GRACE_S if isinstance(spec, EndpointGrader) else LOCAL_DEADLINE_S


# -- over Ray ----------------------------------------------------------------------------------------------------------


@ray.remote(num_cpus=0, max_concurrency=10_000, max_restarts=-1)
class GraderPoolActor:
    """A GraderPool in a process of its own. It keeps nothing between calls, so it may be started anew at any time."""

    def __init__(self, spec: GraderSpec, operator: Operator) -> None:
        self._pool = GraderPool(spec, operator=operator)
        gc.freeze()  # else full collections walk all that was imported

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade | RftError:
        return await outcome_of(self._pool.grade(sample, item, trace_id))

    async def dry_run(self, item: dict[str, Any], answer: str = "") -> Grade | RftError:
        return await self._pool.dry_run(item, answer)


class GraderPoolClient:
    """What engines hold: a GraderPool's methods, answered by the actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        """As GraderPool.grade; raises GraderFailed also where the pool's process died."""
        grade: Grade = await ask(self._actor.grade.remote(sample, item, trace_id), "the grader pool", GraderFailed)
        return grade

    async def dry_run(self, item: dict[str, Any], answer: str = "") -> Grade | RftError:
        """As GraderPool.dry_run."""
        ref = self._actor.dry_run.remote(item, answer)
        grade: Grade | RftError = await outcome_of(ask(ref, "the grader pool", GraderFailed))
        return grade
