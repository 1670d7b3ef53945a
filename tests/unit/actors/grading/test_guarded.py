"""Guards set the reward, an error in a guard is a failure, and the held-out grader costs no rollout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from agent_rft.actors.graders.grader_sample import make_sample
from agent_rft.actors.grading.grader_factory import all_grader_problems
from agent_rft.actors.grading.grader_pool import GraderPool
from agent_rft.errors import GraderFailed, InvalidJob
from agent_rft.metrics import find_metric
from agent_rft.spec.graders import GuardSpec
from agent_rft.spec.job import Reinforcement
from agent_rft.spec.operator.operator_config import ModelEndpoint, OperatorConfig
from agent_rft.trainer.loop.rl_metrics import rollout_metrics
from agent_rft.types import Grade
from tests.support.builders import grader_spec, group_request, rollout
from tests.support.fakes_http import LOCAL, FakeEndpoint, FakeTime, Received, hangs, says, until

ITEM = {"reference": "Paris"}
SAMPLE = make_sample("It is Paris, surely", (), "answer", wants_json=False)
PASSES = {"type": "string_check", "input": "a", "reference": "a", "operation": "eq"}
FAILS = PASSES | {"reference": "b"}
SHORT = {"type": "length", "max_chars": 10}
Pool = Callable[..., GraderPool]


def guards(**by_name: dict[str, Any]) -> list[GuardSpec]:
    return [GuardSpec.model_validate({"name": name} | values) for name, values in by_name.items()]


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    made = []

    def make(grader: dict[str, Any], held_out: dict[str, Any] | None = None, **more: Any) -> GraderPool:
        other = None if held_out is None else grader_spec(**held_out)
        options = {"timing": FakeTime().timing(), "operator": LOCAL, **more}
        made.append(GraderPool(grader_spec(**grader), held_out=other, **options))
        return made[-1]

    yield make
    for one in made:
        await one.close()


async def test_a_guard_that_rejects_sets_the_value_and_keeps_the_reason_and_the_grade(pool: Pool) -> None:
    graders = pool(PASSES, guards=guards(brief={"grader": SHORT, "reward": -0.5}))
    grade = await graders.grade(SAMPLE, ITEM, "t")
    assert (grade.value, grade.guard, grade.scores) == (-0.5, "brief", {"ungated": 1.0})
    assert grade.reason == "brief gave 0, below its pass_threshold 1: 19 characters exceed the limit of 10"


async def test_guards_that_pass_change_nothing_but_keep_the_ungated_grade(pool: Pool) -> None:
    grader = {"type": "multi", "graders": {"a": PASSES, "b": FAILS}, "calculate_output": "a / 2 + b"}
    graders = pool(grader, guards=guards(brief={"grader": SHORT | {"max_chars": 19}}, other={"grader": PASSES}))
    grade = await graders.grade(SAMPLE, ITEM, "t")
    assert (grade.value, grade.guard, grade.reason) == (0.5, None, "")
    assert grade.scores == {"a": 1.0, "b": 0.0, "ungated": 0.5}


async def test_without_guards_the_grade_is_the_grader_s(pool: Pool) -> None:
    assert await pool(PASSES).grade(SAMPLE, ITEM, "t") == Grade(1.0)


@pytest.mark.parametrize(("threshold", "rejects"), [(0.5, False), (0.51, True)])
async def test_a_guard_passes_at_its_pass_threshold(pool: Pool, threshold: float, rejects: bool) -> None:
    async with FakeEndpoint(says({"score": 0.5})) as server:
        check = {"type": "endpoint", "url": server.url, "pass_threshold": threshold}
        grade = await pool(PASSES, guards=guards(honest={"grader": check})).grade(SAMPLE, ITEM, "t")
    assert (grade.guard == "honest") is rejects
    assert grade.value == (0.0 if rejects else 1.0)


@pytest.mark.parametrize(("score", "train", "expected"), [(1, True, True), (1, False, False), (0, False, False)])
async def test_a_guard_may_leave_a_rollout_out_of_training(
    pool: Pool, score: float, train: bool, expected: bool
) -> None:
    async with FakeEndpoint(says({"score": score, "train": train})) as server:
        endpoint = {"type": "endpoint", "url": server.url}
        assert (await pool(PASSES, guards=guards(g={"grader": endpoint})).grade(SAMPLE, ITEM, "t")).train is expected
        assert (await pool(endpoint, guards=guards(g={"grader": FAILS})).grade(SAMPLE, ITEM, "t")).train is expected
        assert (await pool(PASSES, endpoint).grade(SAMPLE, ITEM, "t")).train  # the held-out grader's does not count


async def test_of_several_guards_that_reject_the_first_one_counts(pool: Pool) -> None:
    both = guards(first={"grader": FAILS, "reward": -1}, second={"grader": SHORT, "reward": -2})
    grade = await pool(PASSES, guards=both).grade(SAMPLE, ITEM, "t")
    assert (grade.guard, grade.value) == ("first", -1.0)


async def test_an_error_in_a_guard_is_a_failure_and_not_a_pass(pool: Pool) -> None:
    async with FakeEndpoint(says("down", 500)) as server:
        check = {"type": "endpoint", "name": "judge", "url": server.url}
        with pytest.raises(GraderFailed, match=r"grader 'judge'.*HTTP 500"):
            await pool(PASSES, guards=guards(honest={"grader": check})).grade(SAMPLE, ITEM, "t")


async def test_a_judge_as_a_guard_gives_the_reason_and_its_tokens_count(pool: Pool) -> None:
    content = '{"steps": [{"description": "d", "conclusion": "it copies the reference"}], "result": "cheats"}'
    body = {"choices": [{"message": {"content": content}}], "usage": {"total_tokens": 40}}
    judge = {
        "type": "label_model",
        "model": "judge",
        "input": [{"role": "user", "content": "{{ sample.output_text }}"}],
        "labels": ["honest", "cheats"],
        "passing_labels": ["honest"],
    }
    async with FakeEndpoint(says(body)) as server:
        operator = OperatorConfig(models={"judge": ModelEndpoint(base_url=server.url)})
        graders = pool(PASSES, operator=operator, guards=guards(honest={"grader": judge}))
        grade = await graders.grade(SAMPLE, ITEM, "t")
    assert grade.reason.endswith("cheats: it copies the reference")
    assert grade.judge_tokens == {"judge": 40}


async def test_grader_guards_and_held_out_grader_run_concurrently(pool: Pool) -> None:
    together = asyncio.Barrier(3)

    async def behave(request: Received) -> web.StreamResponse:
        await together.wait()  # passes only when all are here
        return web.json_response({"score": 1.0})

    async with FakeEndpoint(behave) as server:
        endpoint = {"type": "endpoint", "url": server.url}
        grade = await pool(endpoint, endpoint, guards=guards(g={"grader": endpoint})).grade(SAMPLE, ITEM, "t")
    assert (grade.value, grade.held_out) == (1.0, 1.0)


# -- held out ----------------------------------------------------------------------------------------------------------


async def test_the_held_out_grade_is_kept_beside_the_grade(pool: Pool) -> None:
    grade = await pool(PASSES, FAILS).grade(SAMPLE, ITEM, "t")
    assert (grade.value, grade.held_out, grade.held_out_error) == (1.0, 0.0, "")


@pytest.mark.parametrize("status", [500, 401])
async def test_a_held_out_grader_that_fails_costs_no_rollout(pool: Pool, status: int) -> None:
    async with FakeEndpoint(says("no", status)) as server:
        graders = pool(PASSES, {"type": "endpoint", "name": "other", "url": server.url})
        grade = await graders.grade(SAMPLE, ITEM, "t")
    assert (grade.value, grade.held_out) == (1.0, None)
    assert f"HTTP {status}" in grade.held_out_error
    assert "grader 'other'" in grade.held_out_error


async def test_a_held_out_grader_that_hangs_ends_by_its_own_deadline(pool: Pool) -> None:
    async with FakeEndpoint(hangs) as server:
        held_out = {"type": "endpoint", "url": server.url, "timeout_s": 0.1}
        grade = await pool(PASSES, held_out).grade(SAMPLE, ITEM, "t")
        await until(lambda: server.open_now == 0)
    assert grade.value == 1.0 and "deadline of 0.1 s" in grade.held_out_error


# -- counted -----------------------------------------------------------------------------------------------------------


def test_guards_held_out_grades_and_judges_tokens_are_in_the_metrics() -> None:
    grades = [
        Grade(1.0, {"a": 0.5, "ungated": 1.0}, held_out=0.5, judge_tokens={"judge": 30}),
        Grade(0.0, {"a": 1.0, "ungated": 1.0}, guard="brief", held_out=1.0, judge_tokens={"judge": 10}),
        Grade(-1.0, {"ungated": 0.0}, guard="brief", held_out_error="down"),
        Grade(0.0, {}, train=False),  # an invalid_grade has no parts
    ]
    metrics = rollout_metrics([replace(rollout(group_request(), i), grade=g) for i, g in enumerate(grades)])
    assert metrics["guard/brief"] == 2
    assert metrics["grader/a/score_mean"] == 0.75
    assert metrics["grader/ungated/score_mean"] == pytest.approx(2 / 3)
    assert metrics["held_out_grade_mean"] == 0.75
    assert metrics["held_out_failures"] == metrics["rollouts_untrained"] == 1
    assert metrics["judge_tokens/judge"] == 40
    assert all(find_metric(name) for name in metrics)


# -- before the job starts ---------------------------------------------------------------------------------------------


def test_problems_of_guards_and_the_held_out_grader_name_their_fields() -> None:
    wrong = PASSES | {"input": "{{ row.x }}"}
    judge = {"type": "score_model", "model": "gone", "input": [{"role": "user", "content": "x"}]}
    reinforcement = Reinforcement.model_validate(
        {
            "grader": PASSES,
            "guards": [{"name": "a", "grader": PASSES}, {"name": "a", "grader": wrong}],
            "held_out_grader": {"type": "multi", "graders": {"j": judge, "ungated": PASSES}, "calculate_output": "j"},
        }
    )
    base = "method.reinforcement"
    assert [(problem.code, problem.field) for problem in all_grader_problems(reinforcement, OperatorConfig())] == [
        ("invalid_template", f"{base}.guards[1].grader.input"),
        ("duplicate_name", f"{base}.guards[1].name"),
        ("invalid_grader_name", f"{base}.held_out_grader.graders.ungated"),
        ("unknown_model", f"{base}.held_out_grader.graders.j.model"),
    ]
    with pytest.raises(InvalidJob):
        GraderPool.for_job(reinforcement, OperatorConfig())


async def test_the_pool_of_a_job_has_all_its_graders() -> None:
    reinforcement = Reinforcement.model_validate(
        {"grader": PASSES, "guards": [{"name": "a", "grader": FAILS, "reward": -1}], "held_out_grader": PASSES}
    )
    pool = GraderPool.for_job(reinforcement, OperatorConfig())
    grade = await pool.grade(SAMPLE, ITEM, "t")
    assert (grade.value, grade.guard, grade.held_out) == (-1.0, "a", 1.0)
    await pool.close()
