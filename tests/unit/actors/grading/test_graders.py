"""Graders return a finite number, or fail with the reason; never 0 for a failure."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from agent_rft.actors.endpoints.network.response_limits import MAX_BODY_BYTES
from agent_rft.actors.graders.grader_protocol import MAX_REASON_CHARS, check_finite_number, wire_errors
from agent_rft.actors.graders.grader_sample import make_sample
from agent_rft.actors.graders.kinds.endpoint_grader import MAX_PARTS
from agent_rft.actors.graders.kinds.grade_expression import expression_problems, parse_expression
from agent_rft.actors.graders.kinds.multi_grader import Multi
from agent_rft.actors.grading.grader_factory import grader_problems, make_grader
from agent_rft.actors.grading.grader_pool import GraderPool
from agent_rft.actors.runtime.timing import Timing
from agent_rft.errors import EndpointRefused, GraderFailed, InvalidJob
from agent_rft.spec.graders import GraderSpec, MultiGrader
from agent_rft.spec.job import Reinforcement
from agent_rft.types import Grade, ToolCall, ToolResult, Turn
from tests.support.builders import grader_spec
from tests.support.fakes_http import (
    LOCAL,
    FakeEndpoint,
    FakeTime,
    Received,
    hangs,
    one_by_one,
    says,
    until,
    unused_port,
)

SECRET = "sk-very-secret-4711"
ITEM = {"reference": "Paris", "weight": 2}
SAMPLE = make_sample("It is Paris", (), "answer", wants_json=False)
Pool = Callable[..., GraderPool]


def check(
    operation: str = "like", reference: str = "{{ item.reference }}", text: str = "{{ sample.output_text }}"
) -> Any:
    return {"type": "string_check", "input": text, "reference": reference, "operation": operation}


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    """A factory of grader pools, which closes them after the test."""
    made = []

    def make(spec: GraderSpec, **more: Any) -> GraderPool:
        made.append(GraderPool(spec, operator=LOCAL, **{"timing": FakeTime().timing(), **more}))
        return made[-1]

    yield make
    for one in made:
        await one.close()


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [True, None, "1.0", math.nan, math.inf, -math.inf, 10**400, [1.0], {"score": 1}])
def test_a_value_that_is_not_a_finite_number_is_a_failure(value: object) -> None:
    with pytest.raises(GraderFailed, match=r"the score is .*, but must be"):
        check_finite_number(value, "the score")


@pytest.mark.parametrize("value", [0, 1, -2.5, 1e-300])
def test_finite_numbers_pass(value: float) -> None:
    assert check_finite_number(value, "the score") == value


# -- string_check ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "reference", "grade"),
    [
        ("eq", "It is Paris", 1.0),
        ("eq", "it is paris", 0.0),
        ("ne", "It is Paris", 0.0),
        ("ne", "Rome", 1.0),
        ("like", "{{ item.reference }}", 1.0),
        ("like", "paris", 0.0),
        ("ilike", "PARIS", 1.0),
        ("ilike", "It is Paris, France", 0.0),
    ],
)
async def test_string_check(pool: Pool, operation: str, reference: str, grade: float) -> None:
    assert (await pool(grader_spec(**check(operation, reference))).grade(SAMPLE, ITEM, "t")).value == grade


async def test_a_row_without_the_templates_key_is_a_failure_and_not_a_zero(pool: Pool) -> None:
    with pytest.raises(GraderFailed, match=r"grader 'exact', reference.*item.gone") as failed:
        await pool(grader_spec(name="exact", **check(reference="{{ item.gone }}"))).grade(SAMPLE, ITEM, "t")
    assert failed.value.details["code"] == "invalid_variable_error"


# -- endpoint ----------------------------------------------------------------------------------------------------------


async def test_an_endpoint_gets_sample_item_and_trace_id(pool: Pool) -> None:
    async with FakeEndpoint(says({"score": 0.25})) as server:
        grader = grader_spec(type="endpoint", name="quality", url=server.url, headers={"X-Key": SECRET})
        grade = await pool(grader).grade(SAMPLE, ITEM, "trace_1")
    assert grade.value == 0.25
    assert server.received[0].body == {"sample": SAMPLE, "item": ITEM, "trace_id": "trace_1"}
    assert server.received[0].headers["X-Key"] == SECRET


@pytest.mark.parametrize(
    ("body", "grade"), [({"reward": 1}, 1.0), ({"score": 0.5, "reward": 1}, 0.5), ({"score": 0}, 0.0)]
)
async def test_the_answer_may_have_score_or_reward(pool: Pool, body: object, grade: float) -> None:
    async with FakeEndpoint(says(body)) as server:
        assert (await pool(grader_spec(type="endpoint", url=server.url)).grade(SAMPLE, ITEM, "t")).value == grade


@pytest.mark.parametrize(("body", "train"), [({}, True), ({"train": True}, True), ({"train": False}, False)])
async def test_an_endpoint_may_leave_a_rollout_out_of_training(pool: Pool, body: dict[str, bool], train: bool) -> None:
    async with FakeEndpoint(says({"score": 0.5} | body)) as server:
        grade = await pool(grader_spec(type="endpoint", url=server.url)).grade(SAMPLE, ITEM, "t")
    assert (grade.value, grade.train) == (0.5, train)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"score": True}, "the score in its answer is true, but must be a number"),
        ({"score": "0.5"}, "the score in its answer is a string, but must be a number"),
        ({"score": None}, "the score in its answer is null, but must be a number"),
        ({"score": None, "reward": 1.0}, "the score in its answer is null"),
        ('{"score": NaN}', "the score in its answer is nan, but must be a finite number"),
        ('{"reward": 1e999}', "the reward in its answer is inf"),
        ({"score": 1, "train": None}, "the value of `train` in its answer is null, but must be true or false"),
        ({"score": 1, "train": 0}, "the value of `train` in its answer is a number, but must be true or false"),
        ({"score": 1, "train": "false"}, "the value of `train` in its answer is a string, but must be true or false"),
        ({"score": 1, "train": [False]}, "the value of `train` in its answer is a list, but must be true or false"),
        ({"grade": 1.0}, 'the object has no "score"'),
        (0.5, "the body is not a JSON object"),
        ([0.5], "the body is not a JSON object"),
        ("good", "the body is not a JSON object"),
        ("", "body: (empty)"),
        (" " * (MAX_BODY_BYTES + 1), "the body is not a JSON object"),
    ],
)
async def test_an_answer_without_a_number_is_a_failure_that_says_so(pool: Pool, body: object, why: str) -> None:
    async with FakeEndpoint(says(body)) as server:
        with pytest.raises(GraderFailed) as failed:
            await pool(grader_spec(type="endpoint", name="quality", url=server.url)).grade(SAMPLE, ITEM, "t")
    assert why in str(failed.value)
    assert f"grader 'quality' (POST {server.url})" in str(failed.value)
    assert len(str(failed.value)) < 600


async def test_an_endpoints_reason_and_parts_are_kept_without_secrets_and_bounded(pool: Pool) -> None:
    answer = {"score": 0.5, "reason": f"no\n unit, {SECRET} " + "x" * 5000, "scores": {"value": 1, "unit": 0.0}}
    async with FakeEndpoint(says(answer)) as server:
        grader = pool(grader_spec(type="endpoint", url=server.url, headers={"X-Key": SECRET}))
        grade = await grader.grade(SAMPLE, ITEM, "t")
    assert grade.reason.startswith("no unit, [redacted] xxx") and SECRET not in grade.reason
    assert len(grade.reason) <= MAX_REASON_CHARS + 3 and grade.scores == {"value": 1.0, "unit": 0.0}


@pytest.mark.parametrize(
    "more",
    [
        {"reason": 7, "scores": [1]},
        {"reason": None, "scores": {"a": "1", "b": None, "c": True, "ungated": 9, "x" * 65: 1}},
        {"scores": '{"a": NaN}'},
    ],
)
async def test_what_is_wrong_with_a_reason_or_a_part_costs_no_grade(pool: Pool, more: dict[str, object]) -> None:
    async with FakeEndpoint(says({"score": 1} | more)) as server:
        grade = await pool(grader_spec(type="endpoint", url=server.url)).grade(SAMPLE, ITEM, "t")
    assert (grade.value, grade.scores, grade.reason) == (1.0, {}, "")


async def test_parts_with_ever_new_names_do_not_become_ever_more_metrics(pool: Pool) -> None:
    parts: set[str] = set()

    async def behave(request: Received) -> web.StreamResponse:
        return web.json_response({"score": 1, "scores": {f"row {request.body['item']['n']}": 1}})

    async with FakeEndpoint(behave) as server:
        graders = pool(grader_spec(type="endpoint", url=server.url))
        for n in range(40):
            parts |= set((await graders.grade(SAMPLE, {"n": n}, f"t{n}")).scores)
    assert parts == {f"row {n}" for n in range(MAX_PARTS)}


@pytest.mark.parametrize(("score", "grade"), [(0, 0.0), (1, 1.0), (0.5, 0.5), (1.01, None), (-1, None)])
async def test_a_score_outside_of_the_range_is_a_failure_and_never_clipped(
    pool: Pool, score: float, grade: float | None
) -> None:
    async with FakeEndpoint(says({"score": score})) as server:
        graders = pool(grader_spec(type="endpoint", name="quality", url=server.url, range=[0, 1]))
        if grade is not None:
            assert (await graders.grade(SAMPLE, ITEM, "t")).value == grade
            return
        with pytest.raises(GraderFailed) as error:
            await graders.grade(SAMPLE, ITEM, "t")
    assert error.value.message.endswith(f"the score in its answer is {score:g}, outside the grader's range of 0 to 1")
    assert wire_errors(error.value)["other_error"] is True


@pytest.mark.parametrize("kind", [{"type": "endpoint", "url": "http://localhost/x"}, {"type": "python", "source": ""}])
def test_a_range_rises_and_is_not_shown_unless_it_is_set(kind: dict[str, Any]) -> None:
    assert "range" not in grader_spec(**kind).model_dump(exclude_unset=True)
    with pytest.raises(ValueError, match="the first number must be less than the second"):
        grader_spec(**kind, range=[1, 1])


async def test_failures_of_a_graders_endpoint_are_retried(pool: Pool) -> None:
    async with FakeEndpoint(one_by_one([(500, ""), (429, ""), (500, ""), (500, ""), (200, {"score": 1})])) as server:
        assert (await pool(grader_spec(type="endpoint", url=server.url)).grade(SAMPLE, ITEM, "t")).value == 1.0


async def test_an_unreachable_grader_is_a_failure_that_names_it(pool: Pool) -> None:
    url = f"http://127.0.0.1:{unused_port()}/"
    with pytest.raises(GraderFailed, match=rf"grader 'gone' \(POST {url}\) failed: no connection"):
        await pool(grader_spec(type="endpoint", name="gone", url=url)).grade(SAMPLE, ITEM, "t")


async def test_a_4xx_of_a_grader_is_a_failure_and_not_retried(pool: Pool) -> None:
    async with FakeEndpoint(says({"detail": "no key 'answer' in item"}, 422)) as server:
        with pytest.raises(GraderFailed, match=r"HTTP 422.*no key 'answer' in item"):
            await pool(grader_spec(type="endpoint", url=server.url)).grade(SAMPLE, ITEM, "t")
    assert len(server.received) == 1


async def test_a_grader_that_answers_403_stops_the_job_and_shows_no_secret(pool: Pool) -> None:
    async with FakeEndpoint(says(SECRET, 403)) as server:
        with pytest.raises(EndpointRefused, match="HTTP 403 Forbidden") as refused:
            await pool(grader_spec(type="endpoint", url=server.url, headers={"X-Key": SECRET})).grade(SAMPLE, ITEM, "t")
    assert SECRET not in f"{refused.value!r}{refused.value.details}"


async def test_a_403_of_a_grader_that_has_answered_fails_one_grade(pool: Pool) -> None:
    async with FakeEndpoint(one_by_one([(200, {"score": 1}), (403, "closed"), (200, {"score": 0.5})])) as server:
        grader = pool(grader_spec(type="endpoint", url=server.url))
        await grader.grade(SAMPLE, ITEM, "t")
        message = r"HTTP 403 Forbidden, but a grader must respond with status 200.*closed"
        with pytest.raises(GraderFailed, match=message):
            await grader.grade(SAMPLE, ITEM, "t")
        assert (await grader.grade(SAMPLE, ITEM, "t")).value == 0.5


async def test_graders_of_a_run_have_answered_its_check() -> None:
    async with FakeEndpoint(says("closed", 403)) as server:
        job = Reinforcement.model_validate({"grader": {"type": "endpoint", "url": server.url}})
        graders = GraderPool.for_job(job, LOCAL, FakeTime().timing(), has_answered=True)
        with pytest.raises(GraderFailed, match="closed"):
            await graders.grade(SAMPLE, ITEM, "t")
        await graders.close()


@pytest.mark.parametrize("status", [413, 414, 431])
async def test_a_size_that_a_graders_proxy_refuses_has_a_fix(pool: Pool, status: int) -> None:
    item = {"page": "报" * 1_000}
    async with FakeEndpoint(says("too large for nginx", status)) as server:
        with pytest.raises(GraderFailed, match=rf"HTTP {status} .* bytes; body: too large for nginx; ") as failed:
            await pool(grader_spec(type="endpoint", url=server.url)).grade(SAMPLE, item, "t")
    assert failed.value.details["kind"] == "request_too_large"
    assert len(server.received[0].raw) < 3_000 + len(json.dumps({"sample": SAMPLE})) + 100


async def test_a_graders_reason_is_recorded_without_escape_sequences(pool: Pool) -> None:
    async with FakeEndpoint(says({"score": 1, "reason": "\x1b[31mno\x1b[0m\nunit"})) as server:
        assert (await pool(grader_spec(type="endpoint", url=server.url)).grade(SAMPLE, ITEM, "t")).reason == "no unit"


async def test_a_hanging_endpoint_fails_at_its_deadline_and_leaves_nothing_open(pool: Pool) -> None:
    async with FakeEndpoint(hangs) as server:
        grader = grader_spec(type="endpoint", name="slow", url=server.url, timeout_s=0.1)
        with pytest.raises(GraderFailed, match=r"grader 'slow'.*no answer by the deadline of 0.1 s"):
            await pool(grader, timing=Timing()).grade(SAMPLE, ITEM, "t")
        await until(lambda: server.open_now == 0)


async def test_a_hanging_request_of_a_hedged_grader_is_sent_again(pool: Pool) -> None:
    async def behave(request: Received) -> web.StreamResponse:
        return await (hangs if request.number == 1 else says({"score": 0.5}))(request)

    async with FakeEndpoint(behave) as server:
        grader = grader_spec(type="endpoint", url=server.url, hedge_after_s=0.02)
        assert (await pool(grader, timing=Timing()).grade(SAMPLE, ITEM, "t")).value == 0.5
    first, second = server.received
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]


# -- multi -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("a + b * 2", 2.0),
        ("(a + b) * 2", 3.0),
        ("a - b / 2", 0.75),
        ("2 * b ^ 2", 0.5),
        ("2 ^ -a", 0.5),
        ("-a ^ 2", -1.0),
        ("a + 1e-9", 1 + 1e-9),
        (".5 * +a", 0.5),
        ("min(a, b, 3)", 0.5),
        ("max(a, b)", 1.0),
        ("min(b)", 0.5),
        ("abs(b - a) + floor(b) + ceil(b)", 1.5),
        ("log(exp(b))", 0.5),
        ("sqrt(b * 0.5)", 0.5),
        ("  a \n + b ", 1.5),
    ],
)
def test_expressions(expression: str, value: float) -> None:
    assert parse_expression(expression, ("a", "b")).compute_value({"a": 1.0, "b": 0.5}, "x") == pytest.approx(
        value, abs=1e-15
    )


@pytest.mark.parametrize(
    "expression",
    [
        "a / b",
        "b ^ -1",
        "log(b)",
        "sqrt(b - 1)",
        "(a - 2) ^ 0.5",
        "exp(a * 1000)",
        "10 ^ (400 * a)",
        "1e308 * (10 * a)",
        "1e308 * (10 * a) - 1e308 * (10 * a)",
    ],
)
def test_an_expression_without_a_finite_value_is_a_failure(expression: str) -> None:
    with pytest.raises(GraderFailed, match=r"grader 'm'.*a = 1, b = 0") as failed:
        parse_expression(expression, ("a", "b")).compute_value({"a": 1.0, "b": 0.0}, "grader 'm'")
    assert expression in str(failed.value)


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("a + c", "the grader 'c' does not exist; use a, b"),
        ("a +", "the expression is invalid"),
        ("", "the expression is invalid"),
        ("a b", "the expression is invalid"),
        ("0.5", "does not use any grader"),
        ("mean(a, b)", "mean(...) with these arguments is not supported"),
        ("sqrt(a, b)", "sqrt takes one value, not 2"),
        ("min()", "min takes at least one value"),
        ("max(a, key=b)", "max(...) with these arguments is not supported"),
        ("a.real", "'a.real' is not one of"),
        ("a[0]", "'a[0]' is not one of"),
        ("a if b else 1", "is not one of"),
        ("a > b", "is not one of"),
        ("a % 2", "is not one of"),
        ("a // 2", "is not one of"),
        ("'a' * 3", "is not a finite number"),
        ("a + True", "is not a finite number"),
        ("a * 1e999", "is not a finite number"),
        ("a + 2j", "is not a finite number"),
        ("(lambda: a)()", "is not one of"),
        ("__import__('os').system('true')", "is not one of"),
        ("a" + " + a" * 100, "nested more than"),
        ("(" * 500 + "a" + ")" * 500, "the expression is invalid"),
        ("-" * 1900 + "a", "nested"),
        ("a + " * 1000 + "a", "longer than"),
        ("exp", "the grader 'exp' does not exist"),
        ("a\x00", "the expression is invalid"),
        ("a / (1 - 1)", "divides by 1 - 1, which is 0"),
        ("a + 9^9^9^9", "9 ** 9 ** 9 ** 9 has no finite value"),
        ("a * log(0)", "log(0) has no finite value"),
    ],
)
def test_an_invalid_expression_is_found_without_values(expression: str, problem: str) -> None:
    found = expression_problems(expression, ("a", "b"))
    assert problem in "; ".join(found)
    with pytest.raises(ValueError):
        parse_expression(expression, ("a", "b"))


async def test_parts_of_a_multi_grader_run_concurrently_and_their_scores_are_kept(pool: Pool) -> None:
    together = asyncio.Barrier(2)

    async def behave(request: Received) -> web.StreamResponse:
        await together.wait()  # passes only when both parts are here
        return web.json_response({"score": 0.5, "reason": "half of it", "scores": {"unit": 0}})

    async with FakeEndpoint(behave) as server:
        endpoint = {"type": "endpoint", "url": server.url}
        parts = {"exact": check(), "style": endpoint, "facts": endpoint}
        grader = grader_spec(type="multi", graders=parts, calculate_output="0.5 * exact + 0.25 * (style + facts)")
        grade = await pool(grader, timing=Timing()).grade(SAMPLE, ITEM, "trace_1")
    assert grade.value == 0.75
    assert grade.scores == {"exact": 1.0, "style": 0.5, "facts": 0.5, "style.unit": 0.0, "facts.unit": 0.0}
    assert grade.reason == "style: half of it; facts: half of it"
    assert grade.latency_s > 0
    assert len({request.headers["Idempotency-Key"] for request in server.received}) == 2


async def test_a_multi_grader_fails_with_its_part_and_cancels_the_others(pool: Pool) -> None:
    async with FakeEndpoint(hangs) as slow, FakeEndpoint(says({"score": None})) as broken:
        parts = {"slow": {"type": "endpoint", "url": slow.url}, "broken": {"type": "endpoint", "url": broken.url}}
        grader = grader_spec(type="multi", graders=parts, calculate_output="slow + broken")
        with pytest.raises(GraderFailed, match=r"grader 'broken'.*null"):
            await pool(grader, timing=Timing()).grade(SAMPLE, ITEM, "t")
        await until(lambda: slow.open_now == 0)


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True)])
async def test_a_multi_grader_is_trained_on_if_all_its_parts_are(pool: Pool, first: bool, second: bool) -> None:
    async with (
        FakeEndpoint(says({"score": 1, "train": first})) as one,
        FakeEndpoint(says({"score": 0, "train": second})) as two,
    ):
        parts = {name: {"type": "endpoint", "url": at.url} for name, at in (("one", one), ("two", two))}
        spec = grader_spec(type="multi", graders=parts, calculate_output="(one + two) / 2")
        grade = await pool(spec).grade(SAMPLE, ITEM, "t")
    assert (grade.value, grade.train) == (0.5, first and second)


class Failing:
    """A part that fails with `error`."""

    def __init__(self, error: GraderFailed) -> None:
        self._error = error

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        raise self._error

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("details", "is_invalid"),
    [
        ({"code": "python_grader_runtime_error", "path": "sample.output_json"}, True),
        ({"code": "invalid_variable_error", "path": "sample.output_json.total"}, True),
        ({"code": "python_grader_runtime_error"}, False),
        ({"code": "invalid_variable_error", "path": "item.total"}, False),
    ],
)
async def test_invalid_grade_replaces_only_errors_of_reading_the_sample(
    details: dict[str, str], is_invalid: bool
) -> None:
    spec = grader_spec(type="multi", graders={"a": check()}, calculate_output="a", invalid_grade=-0.5)
    assert isinstance(spec, MultiGrader)
    multi = Multi(spec, "m", {"a": Failing(GraderFailed("no value", **details))})
    if is_invalid:
        assert await multi.grade(SAMPLE, ITEM, "t") == Grade(-0.5, reason="invalid_grade: no value")
    else:
        with pytest.raises(GraderFailed, match="no value"):
            await multi.grade(SAMPLE, ITEM, "t")


def with_json(**more: Any) -> GraderSpec:
    parts = {"exact": check(), "json": check(text="{{ sample.output_json.city }}")}
    return grader_spec(type="multi", graders=parts | more, calculate_output="(exact + json) / 2", invalid_grade=-0.25)


async def test_a_sample_that_a_part_cannot_read_gets_the_invalid_grade(pool: Pool) -> None:
    readable = make_sample('{"city": "Paris"}', (), "answer", wants_json=True)
    assert (await pool(with_json()).grade(readable, ITEM, "t")).value == 1.0
    grade = await pool(with_json()).grade(SAMPLE, ITEM, "t")
    assert (grade.value, grade.scores) == (-0.25, {})
    assert "output_json" in grade.reason


async def test_without_an_invalid_grade_such_a_sample_is_a_failure(pool: Pool) -> None:
    grader = with_json().model_copy(update={"invalid_grade": None})
    with pytest.raises(GraderFailed, match="output_json") as failed:
        await pool(grader).grade(SAMPLE, ITEM, "t")
    assert wire_errors(failed.value)["invalid_variable_error"] is True


async def test_a_row_that_a_part_cannot_read_and_a_part_that_is_down_get_no_grade(pool: Pool) -> None:
    with pytest.raises(GraderFailed, match=r"item\.gone"):
        await pool(with_json(json=check(reference="{{ item.gone }}"))).grade(SAMPLE, ITEM, "t")
    async with FakeEndpoint(says("down", 500)) as server:
        with pytest.raises(GraderFailed, match="HTTP 500"):
            await pool(with_json(json={"type": "endpoint", "url": server.url})).grade(SAMPLE, ITEM, "t")


async def test_a_template_may_use_the_result_of_a_call(pool: Pool) -> None:
    result = ToolResult("call_search", "Paris it is", latency_s=0.5)
    sample = make_sample("", [replace(turn("", "search"), results=(result,))], "answer", wants_json=False)
    text = "{{ sample.output_tools[0].output }} after {{ sample.output_tools[0].latency_s }} s"
    grader = grader_spec(**check("eq", "Paris it is after 0.5 s", text))
    assert (await pool(grader).grade(sample, ITEM, "t")).value == 1.0


@pytest.mark.parametrize(("length", "grade"), [(5, 1.0), (6, 0.0), (0, 1.0)])
async def test_length(pool: Pool, length: int, grade: float) -> None:
    sample = make_sample("ä" * length, (), "answer", wants_json=False)
    assert (await pool(grader_spec(type="length", max_chars=5)).grade(sample, ITEM, "t")).value == grade


# -- errors of the wire contract ---------------------------------------------------------------------------------------


def test_each_error_is_one_of_the_wire_contract() -> None:
    assert not any(wire_errors(None).values())
    for error, name in (
        (GraderFailed("x", code="invalid_variable_error"), "invalid_variable_error"),
        (GraderFailed("x", code="formula_parse_error"), "formula_parse_error"),
        (GraderFailed("x", kind="deadline"), "unresponsive_reward_error"),
        (GraderFailed("x", kind="server_error"), "other_error"),
        (EndpointRefused("x"), "other_error"),
    ):
        assert [key for key, value in wire_errors(error).items() if value] == [name]
    errors = wire_errors(GraderFailed("line 3: boom", code="python_grader_runtime_error"))
    assert errors["python_grader_runtime_error_details"] == "line 3: boom"
    assert errors["model_grader_server_error_details"] is None


# -- before the job starts ---------------------------------------------------------------------------------------------


def test_problems_are_found_before_the_job_starts_with_their_fields() -> None:
    parts = {
        "exact": check(reference="{{ row.x }}"),
        "my grader": check(),
        "min": check(),
        "remote": {"type": "endpoint", "url": "localhost/x"},
    }
    grader = grader_spec(type="multi", graders=parts, calculate_output="exact + other")
    problems = grader_problems(grader)
    base = "method.reinforcement.grader"
    assert [(problem.code, problem.field) for problem in problems] == [
        ("invalid_grader_name", f"{base}.graders.my grader"),
        ("invalid_grader_name", f"{base}.graders.min"),
        ("invalid_expression", f"{base}.calculate_output"),
        ("invalid_template", f"{base}.graders.exact.reference"),
        ("invalid_endpoint", f"{base}.graders.remote.url"),
    ]
    assert all(problem.fix for problem in problems)
    with pytest.raises(InvalidJob, match=r"calculate_output: the grader 'other' does not exist"):
        make_grader(grader)


def test_a_valid_grader_has_no_problems() -> None:
    parts = {"exact": check(), "remote": {"type": "endpoint", "url": "http://localhost/x"}}
    assert grader_problems(grader_spec(type="multi", graders=parts, calculate_output="(exact + remote) / 2")) == []
    assert grader_problems(grader_spec(**check(reference="{{ row.x }}")), field="grader")[0].field == "grader.reference"


# -- the pool ----------------------------------------------------------------------------------------------------------


class Hanging:
    """A grader that never answers; `cancelled` says whether it was cancelled."""

    cancelled = False

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled = True
        raise AssertionError

    async def close(self) -> None: ...


class Says:
    """A grader that gives a fixed value."""

    def __init__(self, value: Any) -> None:
        self._value = value

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        return Grade(self._value)

    async def close(self) -> None: ...


async def test_a_hanging_grader_is_cancelled_at_the_pool_s_deadline(pool: Pool) -> None:
    hanging = Hanging()
    with pytest.raises(GraderFailed, match=r"grader 'exact' returned no grade within 0.05 s"):
        await pool(grader_spec(name="exact", **check()), grader=hanging, deadline_s=0.05).grade(SAMPLE, ITEM, "t")
    assert hanging.cancelled


@pytest.mark.parametrize("value", [math.nan, None, True])
async def test_a_grader_s_value_must_be_a_finite_number(pool: Pool, value: Any) -> None:
    with pytest.raises(GraderFailed):
        await pool(grader_spec(**check()), grader=Says(value)).grade(SAMPLE, ITEM, "t")


async def test_grades_of_one_endpoint_stay_within_its_max_concurrency(pool: Pool) -> None:
    async def behave(request: Received) -> web.StreamResponse:
        await asyncio.sleep(0.01)
        return web.json_response({"score": 1.0})

    async with FakeEndpoint(behave) as server:
        graders = pool(grader_spec(type="endpoint", url=server.url, max_concurrency=2), timing=Timing())
        await asyncio.gather(*(graders.grade(SAMPLE, ITEM, f"trace_{i}") for i in range(8)))
    assert server.most_open == 2


# -- the sample --------------------------------------------------------------------------------------------------------


def turn(text: str, *calls: str) -> Turn:
    return Turn(0, 1, text, tuple(ToolCall(f"call_{name}", name, '{"x": 1}') for name in calls))


def test_the_sample_holds_all_calls_of_the_trajectory_in_order() -> None:
    first = turn("thinking", "search", "open")
    result = ToolResult("call_search", "found", "tool_error", latency_s=0.5)
    turns = [replace(first, results=(result, ToolResult("call_open", "x"))), turn("more", "search"), turn("done")]
    sample = make_sample("done", turns, "answer", wants_json=False)
    assert [call["function"]["name"] for call in sample["output_tools"]] == ["search", "open", "search"]
    assert sample["output_tools"][0] == {
        "id": "call_search",
        "type": "function",
        "function": {"name": "search", "arguments": '{"x": 1}'},
        "output": "found",
        "latency_s": 0.5,
        "error": "tool_error",
    }
    assert sample["choices"][0]["message"]["tool_calls"] == []
    assert sample["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": "done", "tool_calls": []}, "finish_reason": "stop"}
    ]
    assert sample["output_text"] == "done"
    json.dumps(sample, allow_nan=False)


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("max_tokens", "length"), ("context", "length"), ("timeout", "length"), ("max_steps", "tool_calls")],
)
def test_the_finish_is_mapped_to_the_chat_api_s_finish_reason(finish: str, reason: str) -> None:
    [choice] = make_sample("", [turn("", "search")], finish, wants_json=False)["choices"]
    assert choice["finish_reason"] == reason
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "search"


@pytest.mark.parametrize(
    ("answer", "wants_json", "expected"),
    [
        ('{"a": 1}', True, {"a": 1}),
        ("null", True, None),
        ('{"a": 1}', False, "left out"),
        ("no JSON", True, "left out"),
        ('{"a": NaN}', True, "left out"),
        ('{"a": 1e999}', True, "left out"),
        ("[" * 100_000, True, "left out"),
    ],
)
def test_output_json_exists_only_if_it_was_asked_for_and_is_valid(
    answer: str, wants_json: bool, expected: object
) -> None:
    sample = make_sample(answer, (), "answer", wants_json)
    assert sample.get("output_json", "left out") == expected
    json.dumps(sample, allow_nan=False)
