"""Grader pool: returns a grade or an error by the grade's deadline. A failure never becomes a grade of 0.

The `max_concurrency` of an endpoint limits the concurrent calls to it; the pool itself has no limit. A sample that a
guard rejects gets the guard's reward.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence
from dataclasses import astuple, replace
from functools import partial
from typing import Any

import ray

from agent_rft.actors.endpoints.client import collect_process_stats
from agent_rft.actors.endpoints.endpoint_statistics import to_live_metrics
from agent_rft.actors.endpoints.model_client import ModelClients, OnNoSchemas, warn_once
from agent_rft.actors.endpoints.signing import Signer, create_signer
from agent_rft.actors.graders.grader_protocol import UNGATED, Grader, check_finite_number, sum_judge_tokens
from agent_rft.actors.grading.grader_factory import grade_deadline_s, make_grader
from agent_rft.actors.grading.python_nodes import PythonNodes
from agent_rft.actors.grading.trial_slots import WAIT_S, Slot
from agent_rft.actors.runtime.actor_calls import READ_TIMEOUT_S, call_actor
from agent_rft.actors.runtime.channel import ChannelActor, ChannelClient
from agent_rft.actors.runtime.grader_nodes import AVOID_PYTHON_GRADERS
from agent_rft.actors.runtime.process_setup import lower_priority
from agent_rft.actors.runtime.rollout_stages import WorkInProgress
from agent_rft.actors.runtime.telemetry.exporter import MetricsAddress, start_telemetry
from agent_rft.actors.runtime.telemetry.tracing import create_tracer, current_trace_id
from agent_rft.actors.runtime.timing import REAL_TIMING, Timing
from agent_rft.actors.runtime.watchdog import WatchedActor, watch_restartable_actor
from agent_rft.errors import GraderFailed, RftError
from agent_rft.spec.graders import GraderSpec, GuardSpec
from agent_rft.spec.job import Reinforcement
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG, OperatorConfig
from agent_rft.types import Grade

POOL_NAME = "the grader pool"


class GraderPool:
    """Runs a job's grader, its guards and its held-out grader."""

    def __init__(
        self,
        spec: GraderSpec,
        *,
        operator: OperatorConfig = DEFAULT_CONFIG,
        guards: Sequence[GuardSpec] = (),
        held_out: GraderSpec | None = None,
        grader: Grader | None = None,
        deadline_s: float | None = None,
        timing: Timing = REAL_TIMING,
        signer: Signer | None = None,
        slot: Slot | None = None,
        on_no_schemas: OnNoSchemas = warn_once,
        has_answered: bool = False,
    ) -> None:
        """Create the graders.

        `grader` replaces the grader of `spec`, and `deadline_s` replaces the time limit of its grades. `slot` is set
        only for trials: heavy graders (`is_heavy`) wait for a slot, and the time limit is WAIT_S longer.
        `on_no_schemas`: see ModelClient. `has_answered`: see EndpointClient.

        Raises:
            InvalidJob: A grader is invalid.
        """
        models = ModelClients(operator.models, timing, on_no_schemas, has_answered=has_answered)
        self._nodes = PythonNodes.from_operator(operator)
        python = None if self._nodes is None else self._nodes.make_python_grader

        def bounded(spec: GraderSpec, what: str) -> Grader:
            return _GraderWithDeadline(make(spec), what, grade_deadline_s(spec, operator))

        make = partial(
            make_grader,
            operator=operator,
            timing=timing,
            models=models,
            signer=signer,
            python=python,
            has_answered=has_answered,
        )
        if grader is None:
            grader = make(spec, slot=slot)
        limit_s = grade_deadline_s(spec, operator) if deadline_s is None else deadline_s
        limit_s += 0.0 if slot is None else WAIT_S
        self._grader: Grader = _GraderWithDeadline(grader, f"grader {spec.name or spec.type!r}", limit_s)
        if not guards and held_out is None:
            return
        self._grader = GuardedGrader(
            self._grader,
            [(guard, bounded(guard.grader, f"guard {guard.name!r}")) for guard in guards],
            None if held_out is None else bounded(held_out, f"held-out grader {held_out.name or held_out.type!r}"),
        )

    @classmethod
    def for_job(
        cls,
        reinforcement: Reinforcement,
        operator: OperatorConfig,
        timing: Timing = REAL_TIMING,
        *,
        has_answered: bool = False,
    ) -> GraderPool:
        """Create the pool with all graders of a job."""
        return cls(
            reinforcement.grader,
            operator=operator,
            guards=reinforcement.guards,
            held_out=reinforcement.held_out_grader,
            timing=timing,
            signer=create_signer(reinforcement),
            has_answered=has_answered,
        )

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        """Return the grade of one rollout.

        Raises:
            GraderFailed: A grader failed or missed its deadline.
            EndpointRefused: An endpoint that a grader calls refused the key.
        """
        return await self._grader.grade(sample, item, trace_id)

    async def close(self) -> None:
        if self._nodes is not None:
            self._nodes.close()
        await self._grader.close()


class _GraderWithDeadline:
    """A grader with a deadline. It returns a finite grade or raises an error that names the grader."""

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
                f"{self._what} returned no grade within {self._deadline_s:g} s", kind="deadline", trace_id=trace_id
            ) from None
        check_finite_number(grade.value, f"{self._what} failed: its grade")
        return grade

    async def close(self) -> None:
        await self._grader.close()


# -- actor -------------------------------------------------------------------------------------------------------------


@ray.remote(num_cpus=0, max_concurrency=10_000, max_restarts=-1, label_selector=AVOID_PYTHON_GRADERS)
class GraderPoolActor(ChannelActor):
    """Actor that runs a GraderPool in a separate process. It has no state, so Ray may restart it at any time."""

    def __init__(
        self, reinforcement: Reinforcement, operator: OperatorConfig, metrics: MetricsAddress | None = None
    ) -> None:
        self._pool = GraderPool.for_job(reinforcement, operator, has_answered=True)  # when the job was checked
        self._tracer = create_tracer(operator.traces, "grader-pool", metrics)
        self._recorder = start_telemetry(metrics, "grader-pool")
        self._recorder.initialize("grade_s")
        self._recorder.add_source(lambda: to_live_metrics(collect_process_stats()))
        self._serve_methods({"grade": self._grade})
        gc.freeze()  # otherwise each full collection traverses all imported modules
        lower_priority()

    async def _grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> tuple[Any, ...]:
        started = time.monotonic()
        try:
            with self._tracer.span(trace_id, "grade", gen_ai__evaluation__name="grade") as span:
                grade = await self._pool.grade(sample, item, trace_id)
                span.set_attribute("gen_ai.evaluation.score.value", grade.value)
                sampled = current_trace_id()
        except RftError as error:
            self._recorder.record(f"grading_errors/{error.details.get('kind', 'other')}")
            raise
        self._recorder.record("grade_s", time.monotonic() - started, sampled)
        return astuple(grade)

    async def endpoint_stats(self) -> dict[str, dict[str, Any]]:
        return collect_process_stats()

    async def flush_traces(self) -> None:
        """Send the remaining spans; see `Tracer.flush`."""
        await asyncio.to_thread(self._tracer.flush)

    async def heartbeat(self) -> list[WorkInProgress]:
        """Return an empty list, because the engines report the grades in progress."""
        return []


def watch_grader_pool(actor: Any) -> WatchedActor:
    """Return the pool's actor as a target of the watchdog.

    If the watchdog restarts the actor, grades in progress are lost, and their rollouts are retried.
    """
    return watch_restartable_actor(POOL_NAME, actor, GraderFailed, lambda doing: doing.stage == "grading")


class GraderPoolClient:
    """Client of a GraderPoolActor, with the interface of a GraderPool."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        # No deadline: a grade may take hours, and the pool enforces its deadline. The watchdog restarts a hung process.
        self._channel = ChannelClient(actor, POOL_NAME, GraderFailed, deadline_s=None)

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        """Call GraderPool.grade in the pool's process; raises GraderFailed if the process dies."""
        return Grade(*await self._channel.call("grade", sample, item, trace_id))

    async def endpoint_stats(self) -> dict[str, dict[str, Any]]:
        """Return EndpointClient.stats of each grader endpoint, by client name, such as "grader 'endpoint'"."""
        ref = self._actor.endpoint_stats.remote()
        stats: dict[str, dict[str, Any]] = await call_actor(ref, POOL_NAME, GraderFailed, READ_TIMEOUT_S)
        return stats


# -- guards ------------------------------------------------------------------------------------------------------------


class GuardedGrader:
    """Grader that runs a job's grader, guards and held-out grader concurrently.

    If several guards reject a sample, the first of them in the job's list sets the reward.
    """

    def __init__(self, grader: Grader, guards: Sequence[tuple[GuardSpec, Grader]], held_out: Grader | None) -> None:
        self._grader = grader
        self._guards = guards
        self._held_out = held_out

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        held_out: asyncio.Task[Grade | RftError] | None = None
        try:
            async with asyncio.TaskGroup() as group:
                main = group.create_task(self._grader.grade(sample, item, trace_id))
                guards = [group.create_task(guard.grade(sample, item, trace_id)) for _, guard in self._guards]
                if self._held_out is not None:
                    held_out = group.create_task(_grade_or_error(self._held_out, sample, item, trace_id))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        grade, checks = main.result(), [task.result() for task in guards]
        grade = self._apply_guards(grade, checks) if checks else grade
        if held_out is None:
            return grade
        outcome = held_out.result()
        if isinstance(outcome, RftError):
            return replace(grade, held_out_error=outcome.message)
        return replace(grade, held_out=outcome.value, judge_tokens=sum_judge_tokens([grade, outcome]))

    async def close(self) -> None:
        for grader in (self._grader, *(guard for _, guard in self._guards), self._held_out):
            if grader is not None:
                await grader.close()

    def _apply_guards(self, grade: Grade, checks: Sequence[Grade]) -> Grade:
        """Apply the guards to the grade; `checks` has the grade of each guard."""
        gated = replace(
            grade,
            scores=grade.scores | {UNGATED: grade.value},
            latency_s=max(grade.latency_s, *(check.latency_s for check in checks)),
            judge_tokens=sum_judge_tokens([grade, *checks]),
            train=grade.train and all(check.train for check in checks),
        )
        for (spec, _), check in zip(self._guards, checks, strict=True):
            if check.value < spec.grader.pass_threshold:
                reason = f"{spec.name} gave {check.value:g}, below its pass_threshold {spec.grader.pass_threshold:g}"
                reason += f": {check.reason}" if check.reason else ""
                return replace(gated, value=spec.reward, guard=spec.name, reason=reason)
        return gated


async def _grade_or_error(
    grader: Grader, sample: dict[str, Any], item: dict[str, Any], trace_id: str
) -> Grade | RftError:
    """Return the grade, or the error if grading fails."""
    try:
        return await grader.grade(sample, item, trace_id)
    except RftError as error:
        return error
