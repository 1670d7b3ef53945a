"""Signed calls: what arrives is checked by the code that the manual shows to owners of endpoints."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pydantic import SecretStr

from agent_rft.actors.endpoints.client import EndpointClient
from agent_rft.actors.endpoints.signing import Signer
from agent_rft.actors.grading.grader_pool import GraderPool
from agent_rft.actors.tools.dispatcher import Dispatcher
from agent_rft.actors.tools.tool_sessions import ToolSessions
from agent_rft.cluster.checks.endpoint_checks import check_endpoints
from agent_rft.cluster.records.redaction import REDACTED
from agent_rft.errors import ToolFailed, UserError
from agent_rft.spec.endpoints import Endpoint, SessionSpec, ToolSpec
from agent_rft.spec.job import Reinforcement
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from agent_rft.types import ToolCall
from tests.support.fakes_http import LOCAL, FakeEndpoint, FakeTime, one_by_one, says
from tests.support.paths import ROOT

OLD, NEW = (f"whsec_{base64.b64encode(bytes([number] * 32)).decode()}" for number in (1, 2))
Check = Callable[[Mapping[str, str], bytes], bool]


def documented(monkeypatch: pytest.MonkeyPatch, *secrets: str) -> Check:
    """`is_signed` of the manual, for a server that accepts these secrets."""
    block = re.search(r'```python title="signature.py"\n(.*?)```', (ROOT / "docs" / "endpoints.md").read_text(), re.S)
    assert block is not None
    monkeypatch.setenv("SIGNING_SECRET", " ".join(secrets))
    names: dict[str, Any] = {}
    exec(block[1], names)
    check = names["is_signed"]
    return lambda headers, body: check({name.lower(): value for name, value in headers.items()}, body)


def reinforcement(url: str, **settings: Any) -> Reinforcement:
    return Reinforcement.model_validate({"grader": {"type": "endpoint", "url": url}} | settings)


def signer(*secrets: str) -> Signer:
    return Signer([SecretStr(secret) for secret in secrets])


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """Their published example."""
    ours = signer("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = ours.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', 1614265330.9)
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


async def test_tools_graders_and_sessions_are_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    is_signed = documented(monkeypatch, OLD)
    answers = {"output": "x", "score": 1}
    async with FakeEndpoint(says(answers)) as server:
        ours, url = signer(OLD), server.url
        dispatcher = Dispatcher([ToolSpec(name="a", server_url=url)], LOCAL, signer=ours)
        await dispatcher.call_turn("trace_1", {"text": "ü"}, [ToolCall("call_1", "a", "{}")])
        await dispatcher.close()
        part = {"type": "endpoint", "url": url}
        whole = {"type": "multi", "graders": {"a": part}, "calculate_output": "a"}
        spec = Reinforcement.model_validate(
            {
                "grader": whole,
                "guards": [{"name": "g", "grader": part}],
                "held_out_grader": part,
                "signing_secret": OLD,
            }
        )
        pool = GraderPool.for_job(spec, LOCAL)
        await pool.grade({}, {}, "trace_1")
        await pool.close()
        book = ToolSessions(SessionSpec(start_url=url, end_url=url), None, LOCAL, signer=ours)
        await book.start("trace_1", {})
        await book.close("done")
    assert len(server.received) == 6
    for request in server.received:
        assert is_signed(request.headers, request.raw)
        assert request.headers["webhook-id"] == request.headers["Idempotency-Key"]
        assert not is_signed(request.headers, request.raw + b" ")
        assert not is_signed(request.headers | {"webhook-id": "another"}, request.raw)
        for name in ("webhook-id", "webhook-timestamp", "webhook-signature"):
            assert not is_signed({k: v for k, v in request.headers.items() if k != name}, request.raw)
            assert not is_signed(request.headers | {name: "é\u0663" * 5}, request.raw)
    stranger = documented(monkeypatch, NEW)
    assert not any(stranger(request.headers, request.raw) for request in server.received)


async def test_all_attempts_of_a_call_have_its_id_and_each_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, now = FakeTime(), time.time()
    async with FakeEndpoint(one_by_one([(429, "later"), (200, {})], Retry_After="100")) as server:
        client = EndpointClient(
            "tool 'a'",
            server.url,
            Endpoint(),
            ToolFailed,
            fake.timing(now - 450),
            allowed_networks=LOCAL.allowed_networks,
            signer=signer(OLD),
        )
        await client.post({}, "call.1")
        await client.close()
    first, second = server.received
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == "call%2E1"
    times = [int(request.headers["webhook-timestamp"]) for request in (first, second)]
    assert times[1] - times[0] == 100
    is_signed = documented(monkeypatch, OLD)
    assert not is_signed(first.headers, first.raw), "older than five minutes"
    moved = second.headers | {"webhook-timestamp": str(int(now))}
    assert not is_signed(moved, second.raw), "a recorded call cannot be given another time"


def test_while_a_secret_is_replaced_each_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    both = signer(OLD, NEW).sign("call_1", b"{}", time.time())
    assert both["webhook-signature"].count("v1,") == 2
    for accepted in ([OLD], [NEW], [NEW, OLD]):
        assert documented(monkeypatch, *accepted)(both, b"{}")
    only_new = signer(NEW).sign("call_1", b"{}", time.time())
    assert documented(monkeypatch, OLD, NEW)(only_new, b"{}")
    assert not documented(monkeypatch, OLD)(only_new, b"{}")


async def test_without_a_secret_nothing_is_signed() -> None:
    async with FakeEndpoint(says({"score": 1})) as server:
        pool = GraderPool.for_job(reinforcement(server.url), LOCAL)
        await pool.grade({}, {}, "trace_1")
        await pool.close()
    assert not [name for name in server.received[0].headers if name.lower().startswith("webhook")]


@pytest.mark.parametrize("secret", ["whsec_", "whsec_AAAA", "whsec_not base64!", OLD.removeprefix("whsec_"), "é"])
def test_a_secret_that_no_library_could_read_is_a_problem_that_does_not_show_it(secret: str) -> None:
    spec = reinforcement("https://x.example/grade", signing_secret=[OLD, secret])
    (problem,) = check_endpoints(spec, DEFAULT_CONFIG)
    assert (problem.code, problem.field) == ("invalid_signing_secret", "method.reinforcement.signing_secret")
    assert len(secret) < 7 or secret not in str(problem)
    with pytest.raises(UserError, match="must be whsec_ followed by base64"):
        signer(secret)


@pytest.mark.parametrize("given", [OLD, [OLD, NEW]])
def test_no_output_has_a_secret(given: Any) -> None:
    spec = reinforcement("https://x.example/grade", signing_secret=given)
    shown = f"{spec!r} {spec} {json.dumps(spec.model_dump(mode='json'))} {signer(OLD)}"
    assert REDACTED in shown
    assert OLD not in shown and NEW not in shown
    assert check_endpoints(spec, DEFAULT_CONFIG) == []
