"""Trial runs of graders and tools through the API, which answers as the wire contract says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_rft.actors.grading.trial_slots import TrialSlots
from agent_rft.serve.http.grader_trials import TrialFactory
from agent_rft.serve.routes.trial_routes import make_router
from agent_rft.spec.operator.operator_config import ModelEndpoint, OperatorConfig
from tests.support.api import client_of, openai_of
from tests.support.bad_requests import SECRET
from tests.support.fakes_http import LOCAL, FakeEndpoint, MovableLoop, hangs, in_movable_time, says, until

EXACT = {
    "type": "string_check",
    "name": "exact",
    "input": "{{ sample.output_text }}",
    "reference": "{{item.answer}}",
    "operation": "eq",
}


async def run(operator: OperatorConfig = LOCAL, **body: Any) -> dict[str, Any]:
    async with client_of([make_router(TrialFactory(operator))]) as client:
        response = await client.post("/v1/fine_tuning/alpha/graders/run", json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def test_the_sdk_validates_and_runs_a_grader() -> None:
    grader: Any = EXACT
    async with client_of([make_router(TrialFactory(LOCAL))]) as client:
        alpha = openai_of(client).fine_tuning.alpha.graders
        valid = await alpha.validate(grader=grader)
        assert valid.grader is not None and valid.grader.name == "exact"
        answer = await alpha.run(grader=grader, model_sample="42", item={"answer": "42"})
    assert answer.reward == 1.0 and answer.sub_rewards == {}
    assert (answer.metadata.name, answer.metadata.type) == ("exact", "string_check")
    assert answer.metadata.execution_time >= 0 and not answer.metadata.errors.other_error


async def test_a_reward_is_always_a_float_in_json() -> None:
    async with client_of([make_router(TrialFactory(LOCAL))]) as client:
        body = {"grader": EXACT, "model_sample": "42", "item": {"answer": "42"}}
        text = (await client.post("/v1/fine_tuning/alpha/graders/run", json=body)).text
    assert '"reward":1.0' in text


async def test_parts_of_a_multi_grader_are_sub_rewards_and_json_answers_are_parsed() -> None:
    length = {"type": "length", "input": "{{ sample.output_json.text }}", "max_chars": 3}
    grader = {"type": "multi", "graders": {"a": EXACT, "b": length}, "calculate_output": "(a + b) / 4"}
    answer = await run(grader=grader, model_sample='{"text": "abc"}', item={"answer": "x"})
    assert answer["reward"] == 0.25 and answer["sub_rewards"] == {"a": 0.0, "b": 1.0} == answer["metadata"]["scores"]


async def test_nulls_mean_absent_keys() -> None:
    grader = EXACT | {"name": None, "pass_threshold": None}
    answer = await run(grader=grader, model_sample="", item=None, trace_id=None)
    assert answer["metadata"]["errors"]["invalid_variable_error"]  # there is no item.answer
    assert answer["metadata"]["name"] == "string_check"


@pytest.mark.parametrize(
    ("grader", "error"),
    [
        (EXACT | {"reference": "{{ item.nothing }}"}, "invalid_variable_error"),
        (EXACT | {"input": "{{ sample.output_json.x }}"}, "invalid_variable_error"),
        (
            {"type": "multi", "graders": {"a": EXACT}, "calculate_output": "1 / a"},
            "formula_parse_error",
        ),
        ({"type": "multi", "graders": {"a": EXACT}, "calculate_output": "log(a)"}, "formula_parse_error"),
    ],
)
async def test_a_failed_grade_has_reward_0_and_exactly_one_error(grader: dict[str, Any], error: str) -> None:
    answer = await run(grader=grader, model_sample="x", item={"answer": "y"})
    assert answer["reward"] == 0.0
    assert [name for name, value in answer["metadata"]["errors"].items() if value is True] == [error]


async def test_a_python_grader_is_run_and_its_exception_is_shown() -> None:
    source = "def grade(sample, item):\n    return len(sample['output_text']) / item['max']\n"
    body = {"grader": {"type": "python", "source": source}, "model_sample": "abc"}
    operator = LOCAL.model_copy(update={"unsandboxed_python": True})
    assert (await run(operator, **body, item={"max": 4}))["reward"] == 0.75
    errors = (await run(operator, **body, item={"max": 0}))["metadata"]["errors"]
    assert errors["python_grader_runtime_error"] is True
    assert "ZeroDivisionError" in errors["python_grader_runtime_error_details"]


async def test_a_judge_uses_the_operators_model_and_its_tokens_are_counted() -> None:
    verdict = '{"steps": [], "result": 0.5}'
    reply = {"choices": [{"message": {"content": verdict}}], "usage": {"total_tokens": 7}}
    grader = {"type": "score_model", "model": "gpt-judge", "input": [{"role": "user", "content": "grade it"}]}
    async with FakeEndpoint(says(reply)) as judge:
        models = {"gpt-judge": ModelEndpoint(base_url=judge.url)}
        answer = await run(LOCAL.model_copy(update={"models": models}), grader=grader, model_sample="x")
    assert answer["reward"] == 0.5
    assert answer["model_grader_token_usage_per_model"] == {"gpt-judge": {"total_tokens": 7}}
    assert answer["metadata"]["token_usage"] == 7 and answer["metadata"]["sampled_model_name"] == "gpt-judge"


@pytest.mark.parametrize("kind", ["endpoint", "multi", "score_model"])
def test_a_trial_of_a_grader_ends_after_ten_minutes_even_if_its_grades_may_take_hours(kind: str) -> None:
    async def test(loop: MovableLoop) -> None:
        async with FakeEndpoint(hangs) as endpoint:
            models = {"judge": ModelEndpoint(base_url=endpoint.url, timeout_s=18_000)}
            mine = {"type": "endpoint", "url": endpoint.url, "timeout_s": 18_000}
            graders: dict[str, dict[str, Any]] = {
                "endpoint": mine,
                "multi": {"type": "multi", "graders": {"mine": mine}, "calculate_output": "mine"},
                "score_model": {"type": "score_model", "model": "judge", "input": [{"role": "user", "content": "?"}]},
            }
            operator = LOCAL.model_copy(update={"models": models})
            answer = asyncio.create_task(run(operator, grader=graders[kind], model_sample="x"))
            await until(lambda: endpoint.open_now == 1)
            loop.move(590)
            await asyncio.sleep(0.01)
            assert not answer.done()
            loop.move(11)
            errors = (await answer)["metadata"]["errors"]
        expected = "model_grader_server_error" if kind == "score_model" else "unresponsive_reward_error"
        assert [name for name, value in errors.items() if value is True] == [expected]

    in_movable_time(test)


async def test_an_endpoint_grader_receives_the_sample_and_its_headers_which_are_never_shown() -> None:
    async with FakeEndpoint(says({"score": 0.25})) as endpoint:
        grader = {
            "type": "endpoint",
            "url": f"{endpoint.url}?key={SECRET}",
            "headers": {"X-Key": SECRET},
            "rate_limit": 9,
        }
        answer = await run(grader=grader, model_sample="hi", item={"a": 1}, trace_id="trace_mine")
        (received,) = endpoint.received
        async with client_of([make_router(TrialFactory(LOCAL))]) as client:
            shown = await client.post("/v1/fine_tuning/alpha/graders/validate", json={"grader": grader})
    assert answer["reward"] == 0.25
    assert received.headers["X-Key"] == SECRET and received.body["trace_id"] == "trace_mine"
    assert received.body["sample"]["output_text"] == "hi" and received.body["item"] == {"a": 1}
    echoed = shown.json()["grader"]
    assert SECRET not in shown.text and echoed["headers"] == {"X-Key": "**********"} and echoed["rate_limit"] == 9


async def test_an_endpoint_that_refuses_the_call_is_a_400() -> None:
    async with FakeEndpoint(says({"error": SECRET}, status=401)) as endpoint:
        grader = {"type": "endpoint", "url": endpoint.url, "headers": {"Authorization": f"Bearer {SECRET}"}}
        body = {"grader": grader, "model_sample": "x"}
        async with client_of([make_router(TrialFactory(LOCAL))]) as client:
            refused = await client.post("/v1/fine_tuning/alpha/graders/run", json=body)
    error = refused.json()["error"]
    assert refused.status_code == 400 and (error["param"], error["code"]) == ("grader", "endpoint_refused")
    assert SECRET not in refused.text


async def test_a_tool_is_called_as_in_training() -> None:
    async with FakeEndpoint(says({"output": {"balance": 5}})) as tool:
        body = {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "balance",
            "arguments": '{"account": 7}',
            "trace_id": "trace_1",
            "item": {"row": 1},
            "server_url": tool.url,
            "headers": {"Authorization": "Bearer of-the-tool"},
            "anything": "else",
        }
        async with client_of([make_router(TrialFactory(LOCAL))]) as client:
            answer = (await client.post("/v1/fine_tuning/alpha/tool/run", json=body)).json()
        (received,) = tool.received
    assert answer["output"] == '{"balance": 5}' and answer["type"] == "function_call_output"
    assert (answer["id"], answer["call_id"], answer["error"]) == ("fc_1", "call_1", None)
    assert received.headers["Authorization"] == "Bearer of-the-tool"
    sent = ("type", "call_id", "name", "arguments", "trace_id", "item")
    assert {key: received.body[key] for key in sent} == {key: body[key] for key in sent}


async def test_a_tools_error_is_shown_as_the_model_would_see_it() -> None:
    async with (
        FakeEndpoint(says("no such account", status=404)) as tool,
        client_of([make_router(TrialFactory(LOCAL))]) as client,
    ):
        body = {"name": "balance", "arguments": {"account": 8}, "server_url": tool.url}
        answer = (await client.post("/v1/fine_tuning/alpha/tool/run", json=body)).json()
    assert answer["error"] == "tool_error" and answer["output"] == "Error: HTTP 404 Not Found. no such account"


async def test_a_tool_that_returns_no_output_is_a_424_that_names_the_tool() -> None:
    async with FakeEndpoint(says({"nothing": SECRET})) as tool, client_of([make_router(TrialFactory(LOCAL))]) as client:
        body = {"name": "balance", "server_url": f"{tool.url}?key={SECRET}"}
        useless = await client.post("/v1/fine_tuning/alpha/tool/run", json=body)
    assert useless.status_code == 424 and useless.json()["error"]["code"] == "tool_failed"
    assert SECRET not in useless.text and "tool 'balance'" in useless.text


async def test_a_trial_waits_for_one_of_the_slots_and_is_refused_if_none_becomes_free() -> None:
    arrived, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def waits(request: Any) -> Any:
        arrived.release()
        await go_on.wait()
        return await says({"output": "done"})(request)

    slots = TrialSlots(1, max_waiting=2, wait_s=60)
    async with FakeEndpoint(waits) as tool, client_of([make_router(TrialFactory(LOCAL, slots))]) as client:
        tries = [
            asyncio.create_task(
                client.post("/v1/fine_tuning/alpha/tool/run", json={"name": "slow", "server_url": tool.url})
            )
            for _ in range(4)
        ]
        await arrived.acquire()
        (refused,), _ = await asyncio.wait(tries, return_when=asyncio.FIRST_COMPLETED)
        assert refused.result().status_code == 429 and refused.result().headers["retry-after"] == "5"
        assert refused.result().json()["error"]["code"] == "too_many_trials"
        assert (slots.num_held, slots.num_waiting, tool.open_now) == (1, 2, 1)
        go_on.set()
        answers = [(await each).status_code for each in tries]
    assert sorted(answers) == [200, 200, 200, 429] and tool.most_open == 1
    assert slots.num_held == slots.num_waiting == 0
