"""The proxy of a URL, as the environment names it: judges are asked through it, and endpoints of jobs never."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping

import pytest

from agent_rft.actors.endpoints.client import EndpointClient
from agent_rft.actors.endpoints.model_client import CHAT, ModelClient
from agent_rft.actors.endpoints.network.proxies import find_proxy
from agent_rft.actors.grading.grader_factory import grader_problems
from agent_rft.errors import GraderFailed, ToolFailed, UserError
from agent_rft.spec.endpoints import Endpoint
from agent_rft.spec.operator.operator_config import ModelEndpoint, OperatorConfig
from tests.support.builders import grader_spec
from tests.support.fakes_http import LOCAL, FakeEndpoint, FakeTime, Names, says

PROXY, OTHER = "http://proxy:3128", "http://other:3128"


@pytest.mark.parametrize(
    ("url", "environment", "proxy"),
    [
        ("https://judge/v1", {}, None),
        ("https://judge/v1", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://judge/v1", {"HTTPS_PROXY": f"{PROXY}\n"}, PROXY),
        ("https://judge/v1", {"HTTPS_PROXY": "proxy:3128"}, PROXY),
        ("https://judge/v1", {"https_proxy": PROXY, "HTTPS_PROXY": OTHER}, PROXY),
        ("https://judge/v1", {"HTTP_PROXY": PROXY}, None),
        ("http://judge/v1", {"HTTP_PROXY": PROXY, "HTTPS_PROXY": OTHER}, PROXY),
        ("https://judge/v1", {"ALL_PROXY": PROXY}, PROXY),
        ("https://judge/v1", {"ALL_PROXY": "socks5://p:1", "HTTPS_PROXY": PROXY}, PROXY),
        ("https://judge/v1", {"HTTPS_PROXY": PROXY, "NO_PROXY": "judge"}, None),
        ("https://a.judge.org/v1", {"HTTPS_PROXY": PROXY, "no_proxy": "x, .judge.org"}, None),
        ("https://judge:8443/v1", {"HTTPS_PROXY": PROXY, "NO_PROXY": "judge:443"}, PROXY),
        ("https://judge:443/v1", {"HTTPS_PROXY": PROXY, "NO_PROXY": "judge:443"}, None),
        ("https://10.1.2.3/v1", {"HTTPS_PROXY": PROXY, "NO_PROXY": "192.168.0.0/16,10.0.0.0/8"}, None),
        ("https://11.1.2.3/v1", {"HTTPS_PROXY": PROXY, "NO_PROXY": "192.168.0.0/16,10.0.0.0/8"}, PROXY),
        ("https://judge/v1", {"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}, None),
        *((f"http://{host}/v1", {"HTTP_PROXY": PROXY, "ALL_PROXY": "socks5://p:1"}, None)
          for host in ("127.0.0.1:8000", "127.8.9.1", "[::1]:8000", "localhost:8000", "a.localhost", "0.0.0.0:8000")),
    ],
)  # fmt: skip
def test_the_environment_names_the_proxy(url: str, environment: dict[str, str], proxy: str | None) -> None:
    found = find_proxy(url, environment)
    assert (None if found is None else found.url) == proxy


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (
            {"ALL_PROXY": "socks5://user:secret@p:1"},
            "ALL_PROXY is a socks5:// proxy, which is not supported: set ALL_PROXY to an",
        ),
        ({"HTTPS_PROXY": "ftp://user:secret@p"}, "HTTPS_PROXY is not the URL of a proxy"),
        ({"https_proxy": "http://user:secret@p q:1"}, "https_proxy is not the URL of a proxy"),
    ],
)
def test_a_proxy_that_is_not_supported_is_refused_with_a_fix(environment: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match="add judge to NO_PROXY") as error:
        find_proxy("https://judge/v1", environment)
    assert said in str(error.value) and "secret" not in str(error.value)


def test_a_message_names_the_proxy_without_its_password() -> None:
    found = find_proxy("https://judge/v1", {"HTTPS_PROXY": "http://user:secret@proxy:3128"})
    assert str(found) == "the proxy http://proxy:3128 (HTTPS_PROXY)"


@pytest.fixture
def environment() -> Iterator[MutableMapping[str, str]]:
    """The environment of this process, restored after the test."""
    before = dict(os.environ)
    yield os.environ
    os.environ.clear()
    os.environ.update(before)


def judge(url: str, environment: Mapping[str, str]) -> ModelClient:
    endpoint = ModelEndpoint(base_url=url, api_key="sk-judge-key", max_retries=0)
    return ModelClient("judge", endpoint, CHAT, FakeTime().timing(), environment=environment)


async def test_a_judge_is_asked_through_the_proxy() -> None:
    async with FakeEndpoint(says({"choices": []})) as proxy:
        client = judge("http://judge.invalid/v1", {"HTTP_PROXY": proxy.url.removesuffix("/run")})
        assert await client.ask({}) == {"choices": []}
        await client.close()
    (received,) = proxy.received
    assert (received.headers["Host"], received.path) == ("judge.invalid", "/v1/chat/completions")


async def test_a_proxy_that_refuses_a_judge_is_named() -> None:
    async with FakeEndpoint(says({})) as proxy:  # which answers only POST
        address = proxy.url.removesuffix("/run")
        client = judge("https://judge.invalid/v1", {"HTTPS_PROXY": address.replace("//", "//user:pw@")})
        with pytest.raises(GraderFailed) as error:
            await client.ask({})
        await client.close()
    said = f"the connection was refused (HTTP 404 Not Found) through the proxy {address} (HTTPS_PROXY)"
    assert said in error.value.message and "pw" not in error.value.message


async def test_the_endpoint_of_a_job_is_never_called_through_a_proxy(environment: MutableMapping[str, str]) -> None:
    async with FakeEndpoint(says({"by": "proxy"})) as proxy, FakeEndpoint(says({"by": "tool"})) as tool:
        environment |= dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY"), proxy.url.removesuffix("/run"))
        client = EndpointClient(
            "tool 'search'",
            tool.url.replace("127.0.0.1", "tool.test"),
            Endpoint(),
            ToolFailed,
            allowed_networks=LOCAL.allowed_networks,
            resolver=Names(["127.0.0.1"]),
        )
        assert (await client.post({}, "call_1")).json() == {"by": "tool"}
        await client.close()
    assert not proxy.received


def test_a_proxy_that_cannot_be_used_is_found_by_the_check(environment: MutableMapping[str, str]) -> None:
    environment |= {"ALL_PROXY": "socks5://p:1", "NO_PROXY": ""}
    grader = grader_spec(type="score_model", model="judge", input=[{"role": "user", "content": "?"}])
    operator = OperatorConfig(models={"judge": ModelEndpoint(base_url="https://judge.invalid/v1")})
    (problem,) = grader_problems(grader, operator)
    assert (problem.code, problem.field) == ("invalid_endpoint", "method.reinforcement.grader.model")
    assert "ALL_PROXY is a socks5:// proxy" in problem.message
