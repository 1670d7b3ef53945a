"""An endpoint's own reason reaches the person: quoted, bounded and without secrets; and who is to blame for a 403."""

from __future__ import annotations

from typing import Any

import pytest

from agent_rft.actors.endpoints.call_errors import EXCERPT_CHARS
from agent_rft.actors.endpoints.client import MIN_ANSWERS, WINDOW, EndpointClient
from agent_rft.errors import DiscardError, EndpointRefused, ToolFailed
from agent_rft.spec.endpoints import Endpoint
from tests.support.fakes_http import LOCAL, FakeEndpoint, FakeTime, one_by_one, says
from tests.unit.actors.conftest import Connect

SECRET = "sk-very-secret-4711"


async def error_of(client: EndpointClient) -> DiscardError | EndpointRefused:
    with pytest.raises((DiscardError, EndpointRefused)) as raised:
        await client.post({}, "call_1")
    assert isinstance(raised.value, DiscardError | EndpointRefused)
    return raised.value


# -- reasons -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 403, 408, 425, 429, 500, 503])
@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (
            {"error": {"message": f"{SECRET} has no access", "code": "no_access"}},
            "([redacted] has no access [no_access])",
        ),
        (f"region \x1b[31mnot\x1b[0m\r\nallowed for {SECRET}", "(region not allowed for [redacted])"),
        ({"error": "nobody knows you"}, '({"error": "nobody knows you"})'),
        ("y" * 5_000, f"({'y' * EXCERPT_CHARS}...)"),
    ],
)
async def test_errors_quote_the_reason(connect: Connect, status: int, body: Any, shown: str) -> None:
    async with FakeEndpoint(says(body, status)) as server:
        error = await error_of(connect(server.url, timeout_s=1, headers={"X-Key": SECRET}))
    assert f"HTTP {status}" in error.problem and shown in error.problem
    assert SECRET not in f"{error.message}{error.details}" and error.message.isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[1;31mno\x1b[0m entry",
        "\x1b]0;title\x07no entry",
        "\x1b]8;;http://x\x1b\\no\x1b]8;;\x1b\\ entry",
        "\x9b31mno entry\x9b0m",
        "\x1b(Bno\x07 entry\x00",
        "\x1bPq#0\x1b\\no \x1b=\n\tentry\x1b",
        "no entry\x1b[",
    ],
)
async def test_a_quoted_text_has_no_escape_sequences(connect: Connect, text: str) -> None:
    assert connect("http://127.0.0.1/x").excerpt(text) == "no entry"


async def test_an_escape_sequence_does_not_hide_a_secret(connect: Connect) -> None:
    client = connect("http://127.0.0.1/x", headers={"X-Key": SECRET})
    assert client.excerpt(f"{SECRET[:8]}\x1b[0m{SECRET[8:]} is wrong") == "[redacted] is wrong"


# -- accounts without credit -------------------------------------------------------------------------------------------

QUOTA = {"error": {"message": "See your billing page.", "type": "insufficient_quota", "code": "insufficient_quota"}}
BUSY = {
    "error": {"message": "Add a payment method at /account/billing", "type": "tokens", "code": "rate_limit_exceeded"}
}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (429, QUOTA),
        (429, {"error": {"message": "no", "type": "insufficient_quota", "code": None}}),
        (429, {"error": {"message": "no", "code": "billing_not_active"}}),
        (429, "The Billing of this project is disabled."),
        (403, {"error": {"code": 403, "message": "This API needs billing.", "status": "PERMISSION_DENIED"}}),
        (401, QUOTA),
    ],
)
async def test_an_account_without_credit_fails_at_once(connect: Connect, status: int, body: Any) -> None:
    fake = FakeTime()
    async with FakeEndpoint(says(body, status)) as server:
        error = await error_of(connect(server.url, fake.timing()))
    assert (len(server.received), fake.slept, error.details["kind"]) == (1, [], "no_credit")
    assert "the account has no credit" in error.problem and "add credit" in error.fix
    assert "capacity" not in error.message and "keys in" not in error.message


async def test_a_rate_limit_that_names_the_billing_page_is_waited_for(connect: Connect) -> None:
    async with FakeEndpoint(one_by_one([(429, BUSY), (200, {})])) as server:
        assert (await connect(server.url).post({}, "call_1")).ok


async def test_402_is_an_account_without_credit(connect: Connect) -> None:
    async with FakeEndpoint(says("pay first", 402)) as server:
        client = connect(server.url)
        error = client.make_bad_answer_error(await client.post({}, "call_1"), "it must be 200")
    assert error.details["kind"] == "no_credit" and "HTTP 402 Payment Required: the account has" in error.message
    assert "pay first" in error.message and client.stats()["errors"] == {"no_credit": 1}


# -- 403 ---------------------------------------------------------------------------------------------------------------

LIMITS = [{"Retry_After": "7"}, {"X_RateLimit_Remaining": "0"}, {"RateLimit_Remaining": "0"}]


@pytest.mark.parametrize("answers", [[], [(200, {})]], ids=["first", "later"])
@pytest.mark.parametrize("headers", LIMITS)
async def test_a_403_of_a_rate_limit_waits_like_a_429(
    connect: Connect, answers: list[tuple[int, Any]], headers: dict[str, str]
) -> None:
    fake = FakeTime()
    async with FakeEndpoint(one_by_one([*answers, (403, "slow down"), (200, {"output": "x"})], **headers)) as server:
        client = connect(server.url, fake.timing())
        for _ in (*answers, 1):
            answer = await client.post({}, "call_1")
    assert (answer.status, answer.retries, client.stats()["backpressure_retries"]) == (200, 0, 1)
    assert fake.slept == ([7.0] if "Retry_After" in headers else [0.5])


async def test_a_403_with_requests_left_is_not_waited_for(connect: Connect) -> None:
    async with FakeEndpoint(says("no", 403, X_RateLimit_Remaining="5")) as server:
        assert (await error_of(connect(server.url))).details["kind"] == "refused"
    assert len(server.received) == 1


@pytest.mark.parametrize("before", [200, 404])
async def test_a_403_of_an_endpoint_that_has_answered_is_an_answer(connect: Connect, before: int) -> None:
    async with FakeEndpoint(one_by_one([(before, {}), (403, "not for you"), (200, {})])) as server:
        client = connect(server.url)
        assert [(await client.post({}, "call_1")).status for _ in range(3)] == [before, 403, 200]


async def test_an_endpoint_may_have_answered_in_another_process_of_the_run() -> None:
    async with FakeEndpoint(says("not for you", 403)) as server:
        client = EndpointClient(
            "tool 'search'",
            server.url,
            Endpoint(),
            ToolFailed,
            FakeTime().timing(),
            allowed_networks=LOCAL.allowed_networks,
            has_answered=True,
        )
        assert (await client.post({}, "call_1")).status == 403
        await client.close()


async def test_a_share_of_403_above_one_half_stops_the_job(connect: Connect) -> None:
    answers = [(200, {}), (403, "expired"), *[(200, {})] * WINDOW, (403, "expired")]
    async with FakeEndpoint(one_by_one(answers)) as server:
        client = connect(server.url)
        for _ in range(len(answers) + WINDOW // 2 - 1):
            await client.post({}, "call_1")
        error = await error_of(client)
    assert f"rejected {WINDOW // 2 + 1} of the last {WINDOW} calls with HTTP 403 Forbidden (expired)" in error.problem
    assert isinstance(error, EndpointRefused) and "check the keys" in error.fix


async def test_a_key_that_expires_after_the_first_call_stops_the_job_soon(connect: Connect) -> None:
    async with FakeEndpoint(one_by_one([(200, {}), (403, "expired")])) as server:
        client = connect(server.url)
        for _ in range(MIN_ANSWERS - 1):
            await client.post({}, "call_1")
        assert isinstance(await error_of(client), EndpointRefused)


async def test_a_401_stops_the_job_even_after_answers(connect: Connect) -> None:
    async with FakeEndpoint(one_by_one([(200, {}), (401, "expired")])) as server:
        client = connect(server.url)
        await client.post({}, "call_1")
        assert "rejected the request with HTTP 401 Unauthorized (expired)" in (await error_of(client)).problem
