"""Judges that are read by log-probabilities: the request, the grade, when there is none, and what cannot be read so."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agent_rft.actors.graders.grader_sample import make_sample
from agent_rft.actors.graders.kinds.judge_logprobs import MIN_LABEL_SHARE
from agent_rft.actors.grading.grader_factory import all_grader_problems, grader_problems
from agent_rft.actors.grading.grader_pool import GraderPool
from agent_rft.errors import GraderFailed, Problem
from agent_rft.spec.graders import GraderSpec
from agent_rft.spec.job import Reinforcement
from agent_rft.spec.operator.operator_config import ModelEndpoint, OperatorConfig
from agent_rft.types import Grade
from tests.support.builders import grader_spec
from tests.support.fakes_http import FakeEndpoint, FakeTime, says

SAMPLE = make_sample("It is Paris", (), "answer", wants_json=False)
INPUT = [{"role": "user", "content": "Is {{ sample.output_text }} right? yes or no"}]
KEY = "sk-judge-key-0815"


def label(**changes: Any) -> GraderSpec:
    settings = {"type": "label_model", "labels": ["yes", "no"], "passing_labels": ["yes"], "model": "judge"}
    return grader_spec(**settings | {"input": INPUT} | changes)


def score(**changes: Any) -> GraderSpec:
    return grader_spec(**{"type": "score_model", "model": "judge", "input": INPUT} | changes)


def operator(url: str = "http://localhost") -> OperatorConfig:
    return OperatorConfig(models={"judge": ModelEndpoint(base_url=f"{url}/v1", api_key=KEY, scoring="logprobs")})


def first_token(**shares: float) -> dict[str, Any]:
    """A chat completion whose first token has these probabilities."""
    return tokens([{"token": token, "logprob": math.log(share)} for token, share in shares.items()])


def tokens(top_logprobs: Any, **message: Any) -> dict[str, Any]:
    logprobs = {"content": [{"token": "x", "logprob": -1.0, "bytes": None, "top_logprobs": top_logprobs}]}
    choice = {"message": {"content": "x"} | message, "finish_reason": "length", "logprobs": logprobs}
    return {"choices": [choice], "usage": {"total_tokens": 31}}


async def graded(spec: GraderSpec, body: Any, status: int = 200) -> tuple[Grade, list[dict[str, Any]]]:
    async with FakeEndpoint(says(body, status)) as server:
        pool = GraderPool(spec, operator=operator(server.url + "/run"), timing=FakeTime().timing())
        try:
            return await pool.grade(SAMPLE, {}, "trace"), [request.body for request in server.received]
        finally:
            await pool.close()


async def test_one_token_is_asked_for_with_its_alternatives_and_no_schema() -> None:
    spec = label(sampling_params={"temperature": 0, "seed": 7, "max_completions_tokens": 900})
    _, [body] = await graded(spec, first_token(yes=0.9, no=0.1))
    assert body == {
        "model": "judge",
        "messages": [{"role": "user", "content": "Is It is Paris right? yes or no"}],
        "seed": 7,
        "logprobs": True,
        "top_logprobs": 20,
        "max_completion_tokens": 1,
        "temperature": 1,
        "top_p": 1,
    }


async def test_a_label_s_grade_is_the_share_of_the_passing_labels() -> None:
    grade, _ = await graded(label(), first_token(yes=0.6, no=0.2, The=0.1))
    assert grade.value == pytest.approx(0.75)
    assert grade.reason == "yes 0.600, no 0.200"
    assert grade.judge_tokens == {"judge": 31}
    grade, _ = await graded(label(passing_labels=["yes", "no"]), first_token(yes=0.6, no=0.2))
    assert grade.value == 1.0


async def test_a_score_is_the_mean_of_the_digits() -> None:
    grade, _ = await graded(score(range=[1, 5]), first_token(**{"1": 0.25, "5": 0.25, "3": 0.3, "7": 0.2}))
    assert grade.value == pytest.approx((1 * 0.25 + 5 * 0.25 + 3 * 0.3) / 0.8)
    grade, _ = await graded(score(), first_token(**{"1": 0.8, "0": 0.1}))
    assert grade.value == pytest.approx(8 / 9)


async def test_case_spaces_and_first_parts_of_a_label_count_but_no_single_letters() -> None:
    spec = label(labels=["correct", "incorrect"], passing_labels=["correct"])
    shares = {" Correct": 0.4, "corr": 0.2, "inc": 0.2, "in": 0.05, "I": 0.1, "correctly": 0.05}
    grade, _ = await graded(spec, first_token(**shares))
    assert grade.value == pytest.approx(0.6 / 0.8)


async def test_a_token_that_begins_two_labels_says_neither() -> None:
    spec = label(labels=["strong", "string"], passing_labels=["strong"])
    with pytest.raises(GraderFailed, match=r"begins with a label is only 0\.30"):
        await graded(spec, first_token(strong=0.3, str=0.7))


@pytest.mark.parametrize("share", [0.0001, MIN_LABEL_SHARE - 0.01])
async def test_a_judge_that_mostly_says_something_else_gives_no_grade_and_the_error_has_what_it_says(
    share: float,
) -> None:
    with pytest.raises(GraderFailed, match=r"likely first tokens: 'The' 0\.5.*ask for one of the labels") as failed:
        await graded(label(), first_token(The=0.505, yes=share))
    assert failed.value.details["code"] == "model_grader_parse_error"


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]},
        {"choices": [{"message": {"content": "yes"}, "logprobs": None}]},
        {"choices": [{"message": {"content": "yes"}, "logprobs": {"content": []}}]},
        {"choices": [{"message": {"content": "yes"}, "logprobs": {"tokens": ["yes"], "token_logprobs": [-0.1]}}]},
        tokens([]),
        tokens("yes"),
        tokens([{"token": "yes"}]),
        tokens([{"token": 7, "logprob": -0.1}]),
        tokens([{"token": "yes", "logprob": "-0.1"}]),
        tokens([{"token": "yes", "logprob": 0.9}]),
        tokens([{"token": "yes", "logprob": True}]),
        tokens([{"token": "yes", "logprob": -0.1}] * 20),
        {"choices": []},
    ],
)
async def test_an_answer_without_usable_log_probabilities_is_a_failure_with_a_fix(body: dict[str, Any]) -> None:
    with pytest.raises(GraderFailed, match=r"remove `scoring` from models\.judge in the operator") as failed:
        await graded(label(), body)
    assert failed.value.details["code"] == "model_grader_parse_error"
    assert failed.value.fix.startswith("serve the judge with a server that returns top_logprobs")


async def test_a_server_that_refuses_log_probabilities_is_a_failure_with_the_same_fix() -> None:
    with pytest.raises(GraderFailed, match=r"not supported.*remove `scoring` from models.judge") as failed:
        await graded(label(), {"error": {"message": f"logprobs is not supported for {KEY}"}}, 400)
    assert failed.value.details["code"] == "model_grader_server_error"
    assert "top_logprobs" in failed.value.fix and KEY not in repr(failed.value)


async def test_a_refusal_and_a_server_that_is_down_are_no_grades_and_no_fault_of_log_probabilities() -> None:
    with pytest.raises(GraderFailed, match="refused to grade") as failed:
        await graded(label(), tokens([], refusal="I cannot"))
    assert failed.value.details["code"] == "model_grader_refusal_error"
    with pytest.raises(GraderFailed, match="HTTP 500") as failed:
        await graded(label(), {}, 500)
    assert "scoring" not in failed.value.message


# -- before the job starts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "field", "mistake"),
    [
        (score(range=[0, 10]), "range", "two digits"),
        (score(range=[0, 0.5]), "range", "two digits"),
        (score(range=[-1, 1]), "range", "two digits"),
        (label(labels=["good", "Good enough"], passing_labels=["good"]), "labels", "'good'"),
        (label(labels=["yes", "yes"]), "labels", "'yes'"),
        (label(labels=["yes", " no"]), "labels", "' no'"),
        (label(labels=["yes", ""]), "labels", "''"),
        (label(labels=["yes", *(f"{i:02}" for i in range(20))]), "labels", "more than 20"),
    ],
)
def test_what_one_token_cannot_tell_apart_is_a_problem(spec: GraderSpec, field: str, mistake: str) -> None:
    problem = grader_problems(spec, operator(), "grader")[0]
    assert (problem.code, problem.field) == ("logprobs_unsupported", f"grader.{field}")
    assert mistake in problem.message and problem.fix


@pytest.mark.parametrize("spec", [score(range=[1, 9]), score(), label(), label(model="judge-2026-01-01")])
def test_digits_and_labels_that_begin_differently_are_none(spec: GraderSpec) -> None:
    assert grader_problems(spec, operator()) == []


def test_only_a_judge_read_so_has_these_limits() -> None:
    plain = OperatorConfig(models={"judge": ModelEndpoint(base_url="http://localhost/v1")})
    assert grader_problems(score(range=[0, 10]), plain) == []


def guard_problems(grader: GraderSpec) -> list[Problem]:
    guard = {"name": "polite", "reward": 0, "grader": grader.model_dump()}
    main = {"type": "length", "max_chars": 9}
    return all_grader_problems(Reinforcement.model_validate({"grader": main, "guards": [guard]}), operator())


def test_a_guard_needs_a_threshold_that_can_be_reached() -> None:
    [problem] = guard_problems(label())
    assert problem.field == "method.reinforcement.guards[0].grader.pass_threshold"
    assert problem.code == "logprobs_unsupported" and "for example to 0.5" in problem.fix
    assert guard_problems(label(pass_threshold=0.5)) == []
    assert [problem.code for problem in guard_problems(score(range=[1, 5], pass_threshold=5))] == [
        "logprobs_unsupported"
    ]
    assert guard_problems(score(range=[1, 5], pass_threshold=3)) == []
