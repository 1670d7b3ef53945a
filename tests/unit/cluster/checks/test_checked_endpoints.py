"""Tools, sessions and graders in the check of a job: real servers on localhost get the first calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG, ModelEndpoint
from tests.support.builders import EXACT
from tests.support.fakes_http import Behavior, FakeEndpoint, Received, hangs, says, unused_port
from tests.support.job_case import SECRET, Case, row


async def test_tools_that_fail_their_first_call(case: Case) -> None:
    await _tool_fails(case, says({"answer": "1"}), "tool_failed", "server_url", '"output"')
    await _tool_fails(case, says("down", 500), "tool_failed", "server_url", "HTTP 500")
    await _tool_fails(case, says("", 307), "wrong_path", "server_url", "HTTP 307")
    await _tool_fails(case, says("", 405), "wrong_path", "server_url", "does not accept POST")
    await _tool_fails(case, says(f"bad token {SECRET}", 401), "endpoint_refused", "headers", "HTTP 401")
    await _tool_fails(case, says("too large for nginx", 413), "tool_failed", "server_url", "client_max_body_size")
    await _tool_fails(case, says("\x1b[31mpay\x1b[0m first", 402), "tool_failed", "server_url", "body: pay first")


@pytest.mark.parametrize("wrap", [lambda parts: parts, lambda parts: {"content": parts, "isError": False}])
async def test_a_tool_that_returns_an_image_is_refused(case: Case, wrap: Callable[[list[Any]], Any]) -> None:
    image = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}
    await _tool_fails(case, says({"output": wrap([image])}), "tool_failed", "server_url", "a part of the type 'image'")


async def test_a_tool_that_returns_text_parts_or_an_error_is_accepted(case: Case) -> None:
    for error in (False, True):
        output = {"content": [{"type": "text", "text": "none"}], "isError": error}
        async with FakeEndpoint(says({"output": output})) as case.tool:
            await case.prepare()


async def _tool_fails(case: Case, behave: Behavior, code: str, part: str, text: str) -> None:
    async with FakeEndpoint(behave) as case.tool:
        problem = await case.only_problem()
    assert (problem.code, problem.field) == (code, f"method.reinforcement.tools[0].{part}")
    assert text in problem.message + problem.fix
    assert case.tool.url in problem.message or part == "server_url"


async def test_a_tool_that_is_not_running_is_named_with_its_url(case: Case) -> None:
    url = f"http://127.0.0.1:{unused_port()}/cat"
    case.reinforcement = {"tools": [{"name": "cat", "server_url": url, "max_retries": 0}]}
    problem = await case.only_problem()
    assert problem.code == "tool_failed"
    assert url in problem.message
    assert "refused" in problem.message.lower()
    assert "check that the endpoint is running" in problem.fix
    assert "check that the endpoint is running" not in problem.message


async def test_first_calls_are_made_in_a_session_that_is_ended(case: Case) -> None:
    async with FakeEndpoint(says({})) as server:
        case.reinforcement = {"session": {"start_url": f"{server.url}/start", "end_url": f"{server.url}/end"}}
        await case.prepare()
        await case.prepare()
    start, end = (received.body for received in server.received[:2])
    assert (start["type"], start["item"], end["type"], end["reason"]) == (
        "session_start",
        row(),
        "session_end",
        "dry_run",
    )
    assert len({start["trace_id"], end["trace_id"], *(call.body["trace_id"] for call in case.tool.received[:1])}) == 1


@pytest.mark.parametrize(
    ("path", "answer", "code", "field"),
    [
        ("start", 500, "session_failed", "start_url"),
        ("start", 404, "session_failed", "start_url"),
        ("start", 401, "endpoint_refused", "headers"),
        ("end", 404, "session_failed", "end_url"),
        ("end", 307, "session_failed", "end_url"),
    ],
)
async def test_sessions_that_cannot_be_opened_or_ended(
    case: Case, path: str, answer: int, code: str, field: str
) -> None:
    async def behave(request: Received) -> web.StreamResponse:
        return web.json_response("no machine", status=answer if request.path.endswith(path) else 200)

    async with FakeEndpoint(behave) as server:
        case.reinforcement = {
            "session": {"start_url": f"{server.url}/start", "end_url": f"{server.url}/end", "max_retries": 0}
        }
        problem = await case.only_problem()
    assert (problem.code, problem.field) == (code, f"method.reinforcement.session.{field}")
    assert f"HTTP {answer}" in problem.message and ("no machine" in problem.message or answer in (307, 500))


async def test_a_session_at_an_unusable_url(case: Case) -> None:
    case.reinforcement = {"session": {"end_url": "ftp://machines.example/end"}}
    problem = await case.only_problem()
    assert (problem.code, problem.field) == ("invalid_endpoint", "method.reinforcement.session.end_url")


async def test_a_missing_document_is_accepted_but_a_missing_path_is_not(case: Case) -> None:
    async def documents(request: Received) -> web.StreamResponse:
        if request.path == urlsplit(case.tool.url).path:
            arguments = json.loads(request.body["arguments"])  # each request is a call: no server has to bear another
            return web.json_response({"detail": f"no document {arguments}"}, status=404)
        return web.Response(status=404, text=f"Cannot POST {request.path}")

    async with FakeEndpoint(documents) as case.tool:
        await case.prepare()
        case.reinforcement = {"tools": [{"name": "cat", "server_url": case.tool.url + "/cta"}]}
        problem = await case.only_problem()
    assert (problem.code, problem.field) == ("wrong_path", "method.reinforcement.tools[0].server_url")


@pytest.mark.parametrize(
    "answer",
    ['{"score": "0.5"}', '{"score": NaN}', '{"score": null}', "{}", "", "0.5", "fine", '{"score": true}', "[1]"],
)
async def test_a_grader_that_returns_no_number_is_refused(case: Case, answer: str) -> None:
    async with FakeEndpoint(says(answer)) as case.grader:
        problem = await case.only_problem()
    assert (problem.code, problem.field) == ("grader_failed", "method.reinforcement.grader")
    assert '{"score": number}' in problem.fix


async def test_a_judge_s_server_without_log_probabilities_is_found_by_the_check(case: Case) -> None:
    asked = [{"role": "user", "content": "Is {{ sample.output_text }} right? Say yes or no."}]
    label = {"type": "label_model", "model": "judge", "labels": ["yes", "no"], "passing_labels": ["yes"]}
    case.reinforcement = {"grader": label | {"input": asked}}
    answer = {"choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "length"}]}
    async with FakeEndpoint(says(answer)) as server:
        judge = ModelEndpoint(base_url=server.url, scoring="logprobs")
        case.operator = case.operator.model_copy(update={"models": {"judge": judge}})
        problem = await case.only_problem()
    assert (problem.code, problem.field) == ("grader_failed", "method.reinforcement.grader")
    assert "no top_logprobs" in problem.message and "remove `scoring` from models.judge" in problem.fix


async def test_a_judge_that_refuses_schemas_is_reported_once_by_the_check(case: Case) -> None:
    judge = {"type": "score_model", "model": "judge", "input": [{"role": "user", "content": "How good is it?"}]}
    case.reinforcement = {"grader": judge, "held_out_grader": judge}
    verdict = {"choices": [{"message": {"role": "assistant", "content": '{"steps": [], "result": 1}'}}]}

    async def behave(request: Received) -> web.StreamResponse:
        if request.body["response_format"]["type"] == "json_schema":
            return web.json_response({"error": {"message": "use another response_format"}}, status=400)
        return web.json_response(verdict)

    async with FakeEndpoint(behave) as server:
        models = {"judge": ModelEndpoint(base_url=server.url)}
        case.operator = case.operator.model_copy(update={"models": models})
        warnings = [warning for warning in await case.warnings() if "no_json_schema" in warning]
    assert len(warnings) == 1 and "set response_format: json_object in models.judge" in warnings[0]


async def test_a_judge_with_a_wrong_key_is_named_with_its_own_setting_and_reason(case: Case) -> None:
    judge = {"type": "score_model", "model": "judge", "input": [{"role": "user", "content": "How good is it?"}]}
    case.reinforcement = {"grader": judge}
    async with FakeEndpoint(says({"error": {"message": "Incorrect API key provided"}}, 401)) as server:
        models = {"judge": ModelEndpoint(base_url=server.url)}
        case.operator = case.operator.model_copy(update={"models": models})
        problem = await case.only_problem()
    assert (problem.code, problem.field) == ("endpoint_refused", "method.reinforcement.grader")
    assert "Incorrect API key provided" in problem.message and "`api_key` of models.judge" in problem.fix


async def test_a_grader_that_refuses_the_token(case: Case) -> None:
    async with FakeEndpoint(says(SECRET, 403)) as case.grader:
        problem = await case.only_problem()
    assert (problem.code, problem.field) == ("endpoint_refused", "method.reinforcement.grader.headers")
    assert case.grader.url in problem.message


async def test_guards_and_the_held_out_grader_are_checked_and_called_too(case: Case) -> None:
    guard = {"name": "brief", "grader": EXACT | {"input": "{{ item.gone }}"}}
    case.reinforcement = {"guards": [guard]}
    assert {problem.code for problem in await case.problems()} == {"missing_value"}
    async with FakeEndpoint(says("down", 500)) as server:
        case.reinforcement = {"held_out_grader": {"type": "endpoint", "url": server.url, "timeout_s": 0.2}}
        problem = await case.only_problem()
    assert (problem.code, problem.field) == ("grader_failed", "method.reinforcement.held_out_grader")


async def test_a_slow_grader_fails_at_its_own_deadline(case: Case) -> None:
    async with FakeEndpoint(hangs) as case.grader:
        case.reinforcement = {"grader": {"type": "endpoint", "url": case.grader.url, "timeout_s": 0.2}}
        problem = await case.only_problem()
    assert "deadline of 0.2 s" in problem.message


async def test_addresses_that_the_operator_does_not_allow_are_found_before_any_call(case: Case) -> None:
    case.operator = DEFAULT_CONFIG
    case.reinforcement = {"session": {"start_url": "http://169.254.169.254/latest"}}
    problems = await case.problems()
    reinforcement = "method.reinforcement"
    assert [(problem.code, problem.field) for problem in problems] == [
        ("forbidden_address", f"{reinforcement}.tools[0].server_url"),
        ("forbidden_address", f"{reinforcement}.session.start_url"),
        ("forbidden_address", f"{reinforcement}.grader.url"),
    ]
    assert "allowed_networks" in problems[0].fix
    assert case.tool.received == case.grader.received == []


async def test_host_names_of_such_addresses_are_found_by_the_first_call(case: Case) -> None:
    case.operator = DEFAULT_CONFIG
    case.reinforcement = {
        "tools": [{"name": "cat", "server_url": "http://localhost:9/cat"}],
        "grader": {"type": "endpoint", "url": "http://localhost:9/grade"},
    }
    tool_problem, grader_problem = await case.problems()
    assert (tool_problem.code, tool_problem.field) == (
        "forbidden_address",
        "method.reinforcement.tools[0].server_url",
    )
    assert "resolves to" in tool_problem.message and "loopback" in tool_problem.message
    assert "allowed_networks" in tool_problem.fix and "allowed_networks" not in tool_problem.message
    assert (grader_problem.code, grader_problem.field) == ("forbidden_address", "method.reinforcement.grader")


JSON_GRADER = {"type": "string_check", "input": "{{sample.output_json.n}}", "reference": "1", "operation": "eq"}


async def test_a_grader_that_reads_json_gets_json_that_fits_the_response_format(case: Case) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    case.reinforcement = {
        "grader": JSON_GRADER,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    }
    await case.prepare()


async def test_a_grader_that_reads_json_needs_a_response_format(case: Case) -> None:
    case.reinforcement = {"grader": JSON_GRADER}
    problem = await case.only_problem()
    assert problem.code == "grader_failed"
    assert "response_format" in problem.fix


async def test_a_grader_that_reads_tool_calls_gets_one(case: Case) -> None:
    name = "{{ sample.output_tools[0].function.name }}"
    case.reinforcement = {"grader": {"type": "string_check", "input": name, "reference": "cat", "operation": "eq"}}
    await case.prepare()
