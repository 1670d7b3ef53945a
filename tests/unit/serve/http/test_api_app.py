"""The frame around all routes: request ids, keys, limits, and every error in the wire form."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any
from unittest import TestCase

import httpx
import pytest
from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from sqlalchemy.exc import OperationalError

from agent_rft.actors.runtime.telemetry.recorder import Recorder
from agent_rft.errors import InvalidJob, Problem
from agent_rft.serve.http.auth import Admin, KeyRateLimit, Reader, Writer
from agent_rft.serve.http.error_responses import internal_error
from agent_rft.serve.http.pagination import LIMIT, After
from agent_rft.serve.http.schemas.base import ListEntry, Page
from agent_rft.serve.http.sse import event_stream
from agent_rft.serve.stores.key_store import ApiKey
from agent_rft.spec.operator.operator_config import ServerLimits
from agent_rft.wire.api_errors import ApiError
from tests.support.api import TOKEN, client_of

Limit = Annotated[int, Query(ge=1, le=10, description=LIMIT)]


class Body(BaseModel):
    count: int
    note: str | None = None


def router() -> APIRouter:
    routes = APIRouter(tags=["things"])

    @routes.get("/things")
    async def things(key: Reader, after: After = None, limit: Limit = 2) -> Page[ListEntry]:
        start = int(after or 0)
        return Page[ListEntry].from_entries([ListEntry(id=str(start + i + 1)) for i in range(limit)], has_more=True)

    @routes.post("/things")
    async def make(key: Writer, body: Body) -> Body:
        return body

    @routes.delete("/things/{name}")
    async def delete(key: Admin, name: str) -> None:
        raise ApiError(404, f"No such thing: {name}", param="name", code="not_found")

    @routes.get("/broken")
    async def broken(key: Reader) -> None:
        raise RuntimeError("the password is hunter2")

    @routes.get("/mistaken")
    async def mistaken(key: Reader) -> None:
        raise InvalidJob("no", [Problem("invalid_template", "grader.input", "is wrong", "fix it")])

    @routes.get("/stream")
    async def stream(key: Reader) -> StreamingResponse:
        return StreamingResponse(iter([b"a", b"b"]))

    return routes


def error_of(response: httpx.Response) -> dict[str, Any]:
    """Returns the error of a response, after a check of its wire form."""
    (error,) = response.json().values()
    assert set(error) == {"message", "type", "param", "code"} and error["message"] and error["type"]
    assert response.headers["x-request-id"]
    return dict(error)


async def test_each_response_has_an_id_that_the_client_cannot_choose() -> None:
    async with client_of([router()]) as client:
        first, second = [(await client.get("/v1/things")).headers["x-request-id"] for _ in range(2)]
        assert first != second and first.startswith("req_")
        for path, theirs in (("things", "mine-1"), ("nowhere", "mine 1; evil"), ("things", first)):
            own = (await client.get(f"/v1/{path}", headers={"x-request-id": theirs})).headers["x-request-id"]
            assert own.startswith("req_") and own not in (theirs, first)
        assert (await client.get("/v1/stream")).text == "ab"


async def test_requests_are_measured_by_route_and_clients_cannot_make_up_labels() -> None:
    recorder = Recorder()
    async with client_of([router()], recorder=recorder) as client:
        await client.get("/v1/things")
        for name in ("1", "2"):
            await client.delete(f"/v1/things/{name}")
        await client.get("/v1/made/up")
        await client.request("MADEUP", "/v1/things")
        await client.get("/v1/broken")
    (family,) = recorder.registry.collect()
    counts = {tuple(s.labels.values()): s.value for s in family.samples if s.name.endswith("_count")}
    assert family.name == "agent_rft_api_request_seconds"
    assert counts == {
        ("200", "GET", "/v1/things"): 1,
        ("404", "DELETE", "/v1/things/{name}"): 2,
        ("404", "GET", "other"): 1,
        ("405", "other", "/v1/things"): 1,
        ("500", "GET", "/v1/broken"): 1,
    }


async def test_a_page_says_where_the_next_one_starts() -> None:
    async with client_of([router()]) as client:
        answer = (await client.get("/v1/things", params={"after": "4"})).json()
    assert answer == {
        "object": "list",
        "data": [{"id": "5"}, {"id": "6"}],
        "has_more": True,
        "first_id": "5",
        "last_id": "6",
    }


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "param", "code"),
    [
        ("GET", "/v1/nowhere", {}, 404, None, "unknown_url"),
        ("GET", "/v1/things/", {}, 404, None, "unknown_url"),
        ("PUT", "/v1/things", {}, 405, None, "method_not_allowed"),
        ("GET", "/v1/things?limit=0", {}, 400, "limit", "invalid_value"),
        ("GET", "/v1/things?limit=11", {}, 400, "limit", "invalid_value"),
        ("GET", "/v1/things?limit=many", {}, 400, "limit", "invalid_value"),
        ("GET", "/v1/things?after=" + "x" * 201, {}, 400, "after", "invalid_value"),
        ("GET", "/v1/things?after=a%00b", {}, 400, None, "invalid_url"),
        ("DELETE", "/v1/things/a%00b", {}, 400, None, "invalid_url"),
        ("DELETE", "/v1/things/x", {}, 404, "name", "not_found"),
        ("GET", "/v1/mistaken", {}, 400, "grader.input", "invalid_template"),
        ("POST", "/v1/things", {"json": {}}, 400, "count", "missing_required_parameter"),
        ("POST", "/v1/things", {}, 400, None, "missing_required_parameter"),
        ("POST", "/v1/things", {"json": {"count": "x"}}, 400, "count", "invalid_value"),
        ("POST", "/v1/things", {"json": [1]}, 400, None, "invalid_value"),
        ("POST", "/v1/things", {"json": None}, 400, None, "missing_required_parameter"),
        ("POST", "/v1/things", {"data": {"count": "1"}}, 415, None, "unsupported_media_type"),
        ("POST", "/v1/things", {"content": b'{"count": 1}'}, 415, None, "unsupported_media_type"),
    ],
)
async def test_an_invalid_request_is_answered_with_an_error_in_the_wire_form(
    method: str, path: str, options: dict[str, Any], status: int, param: str | None, code: str
) -> None:
    async with client_of([router()]) as client:
        response = await client.request(method, path, **options)
    error = error_of(response)
    assert (response.status_code, error["param"], error["code"]) == (status, param, code)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{", "Expecting property name"),
        (b'{"count": NaN}', "NaN is not a JSON number"),
        (b'{"count": 1e999}', "too large"),
        (b'{"count": ' + b"1" * 5000 + b"}", "has 5,000 digits"),
        (b'{"note": "\xff"}', "not UTF-8 text"),
        (b'{"note": "\\ud800"}', "half of a surrogate pair"),
        (b'{"note": "a\\u0000b"}', "the character"),
        (b"[" * 10_000, "nested more than 100 levels deep"),
        (b"[" * 100_000, "more than 25,000 values"),
        (b"[" + b"[]," * 20_000 + b"0]", "more than 25,000 values"),
        (b'{"note": ' + b"[" * 200 + b"]" * 200 + b"}", "nested more than 100 levels deep"),
    ],
)
async def test_an_unusable_body_is_refused_on_every_route(body: bytes, why: str) -> None:
    async with client_of([router()]) as client:
        response = await client.post("/v1/things", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400 and why in error_of(response)["message"]


async def test_text_in_any_language_and_escapes_are_accepted() -> None:
    body = b'{"count": 1, "note": "\\ud83d\\ude00 \\\\u0000 \xc3\xa4"}'
    async with client_of([router()]) as client:
        response = await client.post("/v1/things", content=body, headers={"Content-Type": "application/json"})
    assert response.json() == {"count": 1, "note": "😀 \\u0000 ä"}


@pytest.mark.parametrize("has_length", [True, False])
async def test_a_body_over_the_limit_is_a_413_with_or_without_a_content_length(has_length: bool) -> None:
    async def chunks() -> Any:
        for _ in range(100):
            yield b" " * 100

    content: Any = b" " * 10_000 if has_length else chunks()
    async with client_of([router()], limits=ServerLimits(max_body_bytes=1000)) as client:
        response = await client.post("/v1/things", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 413 and error_of(response)["code"] == "too_large"


async def test_an_unexpected_error_is_logged_and_shows_the_client_nothing() -> None:
    async with client_of([router()]) as client:
        with TestCase().assertLogs("agent_rft.serve") as logged:
            response = await client.get("/v1/broken", headers={"x-request-id": "mine"})
    assert response.status_code == 500 and error_of(response)["type"] == "server_error"
    assert "hunter2" not in response.text and "Traceback" not in response.text
    line = f"{response.headers['x-request-id']} (mine): GET /v1/broken failed"
    assert line in logged.output[-1] and "hunter2" in logged.output[-1]


@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        (None, "missing_api_key"),
        ("", "missing_api_key"),
        ("Bearer", "missing_api_key"),
        ("Basic " + TOKEN, "missing_api_key"),
        ("Bearer sk-rft-unknown-secret", "invalid_api_key"),
        ("Bearer " + "x" * 5000, "invalid_api_key"),
    ],
)
async def test_without_a_key_nothing_is_revealed_not_even_which_routes_exist(
    authorization: str | None, code: str
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    async with client_of([router()], token="") as client:
        for path in ("/v1/things", "/v1/nowhere"):
            response = await client.post(path, headers=headers, content=b"{")
            error = error_of(response)
            assert response.status_code == 401 and error["code"] == code and error["type"] == "authentication_error"
            assert "sk-rft-unknown" not in response.text


async def test_a_scope_includes_the_lesser_scopes() -> None:
    statuses = {}
    for token in ("sk-rft-read", "sk-rft-write", TOKEN):
        async with client_of([router()], token) as client:
            answers = [
                await client.get("/v1/things"),
                await client.post("/v1/things", json={"count": 1}),
                await client.delete("/v1/things/x"),
            ]
        statuses[token] = [answer.status_code for answer in answers]
        assert all(error_of(answer)["type"] == "permission_error" for answer in answers if answer.status_code == 403)
    assert statuses == {"sk-rft-read": [200, 403, 403], "sk-rft-write": [200, 200, 403], TOKEN: [200, 200, 404]}


async def test_a_key_over_its_rate_limit_is_told_when_to_retry() -> None:
    now = [0.0]
    rate = KeyRateLimit(requests_per_minute=12, clock=lambda: now[0])
    async with client_of([router()], rate=rate) as client:
        assert [(await client.get("/v1/things")).status_code for _ in range(3)] == [200, 200, 429]
        refused = await client.get("/v1/things")
        assert error_of(refused)["code"] == "rate_limit_exceeded" and refused.headers["retry-after"] == "5"
        now[0] += 5.0
        assert (await client.get("/v1/things")).status_code == 200


def test_each_key_has_its_own_rate() -> None:
    rate = KeyRateLimit(requests_per_minute=6, clock=lambda: 0.0)
    slow, fast = ApiKey("a", "a", ("read",), 0), ApiKey("b", "b", ("read",), 0, requests_per_minute=60)
    assert [rate.take(slow) > 0 for _ in range(2)] == [False, True]
    assert [rate.take(fast) > 0 for _ in range(11)] == [False] * 10 + [True]


async def test_the_openapi_page_loads_nothing_from_other_hosts() -> None:
    async with client_of([router()], token="") as client:
        page = (await client.get("/docs")).text
        assert "//" not in re.sub(r"<!--.*?-->", "", page), "every address on it is a path of this server"
        loaded = [*re.findall(r'(?:src|href)="([^"]+)"', page), *re.findall(r"url: '([^']+)'", page)]
        assert len(loaded) == 4, "script, style, icon and the API's description"
        for path in loaded:
            answer = await client.get(path)
            assert (answer.status_code, bool(answer.content)) == (200, True), path
        assert (await client.get("/redoc")).status_code == 404


async def test_health_and_the_openapi_page_need_no_key_and_openai_headers_are_accepted() -> None:
    async with client_of([router()], token="") as client:
        assert (await client.get("/health")).json() == {"status": "ok"}
        assert "swagger" in (await client.get("/docs")).text
        described = (await client.get("/openapi.json")).json()
    assert "/v1/things" in described["paths"]
    responses = described["paths"]["/v1/things"]["post"]["responses"]
    assert "4XX" in responses and "422" not in responses
    async with client_of([router()]) as client:
        headers = {"OpenAI-Organization": "org", "OpenAI-Project": "project"}
        assert (await client.get("/v1/things", headers=headers)).status_code == 200


async def test_base_url_answers_with_the_address_to_use() -> None:
    async with client_of([router()]) as client:
        answer = await client.get("/v1")
        assert answer.status_code == 200
        assert answer.json()["base_url"] == str(client.base_url).rstrip("/") + "/v1"


@pytest.mark.parametrize(("method", "path"), [("GET", "/things"), ("POST", "/things"), ("DELETE", "/things/a")])
async def test_route_without_its_prefix_is_answered_with_the_base_url(method: str, path: str) -> None:
    async with client_of([router()]) as client:
        answer = await client.request(method, path)
        error = error_of(answer)
        assert (answer.status_code, error["code"]) == (404, "unknown_url")
        assert error["message"].endswith(f"Set the base URL to {str(client.base_url).rstrip('/')}/v1")
        other = error_of(await client.request(method, "/nowhere"))
        assert "base URL" not in other["message"]


def _outage() -> OperationalError:
    return OperationalError("SELECT secret", {}, Exception("connection refused\nIs it running?"))


async def test_request_during_a_database_outage_gets_503_and_one_log_line(records: list[str]) -> None:
    routes = router()

    @routes.get("/away")
    async def away(key: Reader) -> None:
        raise _outage()

    @routes.get("/away/stream")
    async def stream(key: Reader) -> StreamingResponse:
        return event_stream(_failing(_outage()))

    async with client_of([routes]) as client:
        answer = await client.get("/v1/away", headers={"x-request-id": "a"})
        streamed = await client.get("/v1/away/stream", headers={"x-request-id": "b"})
    error = error_of(answer)
    assert (answer.status_code, error["code"], error["type"]) == (503, "database_unavailable", "server_error")
    assert answer.headers["retry-after"] == "5"
    assert streamed.status_code == 200 and '"code":"database_unavailable"' in streamed.text
    ids = [response.headers["x-request-id"] for response in (answer, streamed)]
    assert records == [
        f"{ids[0]} (a): GET /v1/away failed: the database is unavailable: connection refused",
        f"{ids[1]} (b): GET /v1/away/stream failed: the database is unavailable: connection refused",
    ]
    assert "refused" not in answer.text + streamed.text


@pytest.fixture
def records() -> Iterator[list[str]]:
    """The messages that the server logs."""
    found: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    logger, handler = logging.getLogger("agent_rft.serve"), Collect()
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


async def _failing(error: Exception) -> AsyncIterator[dict[str, Any]]:
    yield {"number": 1}
    raise error


@pytest.mark.parametrize(
    ("path", "status", "logged"),
    [
        ("/v1/things", 200, ""),
        ("/v1/nowhere", 404, ""),
        ("/v1/broken", 500, "GET /v1/broken failed"),
        ("/v1/full", 503, "GET /v1/full was answered with 503: The model is being started."),
        ("/v1/engine", 500, "GET /v1/engine was answered with 500: the engine has lost its GPU"),
        ("/v1/damaged", 400, "GET /v1/damaged was answered with 400: /models/a: truncated"),
        ("/v1/events/engine", 200, "GET /v1/events/engine was answered with 500: the engine has lost its GPU"),
        ("/v1/events/broken", 200, "GET /v1/events/broken failed"),
    ],
)
async def test_each_failed_request_has_one_record_in_the_log(
    path: str, status: int, logged: str, records: list[str]
) -> None:
    routes, engine = router(), internal_error("the engine has lost its GPU")
    failures = {
        "full": ApiError(503, "The model is being started.", code="model_unavailable", type="server_error"),
        "engine": engine,
        "damaged": ApiError(400, "The model 'a' cannot be served.", cause="/models/a: truncated"),
    }

    @routes.get("/{name}")
    async def fail(name: str, key: Reader) -> None:
        raise failures.get(name) or ApiError(404, "No such thing.")

    @routes.get("/events/{name}")
    async def events(name: str, key: Reader) -> StreamingResponse:
        return event_stream(_failing(engine if name == "engine" else RuntimeError("a bug")))

    async with client_of([routes]) as client:
        answer = await client.get(path)
    assert answer.status_code == status
    assert records == ([f"{answer.headers['x-request-id']}: {logged}"] if logged else [])
    assert "GPU" not in answer.text and "truncated" not in answer.text
