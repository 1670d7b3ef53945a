"""A command's client of a server: its settings are checked, and no error shows the text of one of httpx."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

import httpx
import pytest

from agent_rft.actors.endpoints.network.blocking_client import (
    SourcedSetting,
    Unreachable,
    create_blocking_client,
    translate_errors,
)
from agent_rft.errors import UserError
from tests.support.fakes_http import unused_port
from tests.support.openai_api import KEY, FakeOpenAI

TIMEOUT = httpx.Timeout(5.0)
SECRET = "Illegal header value b'Bearer sk-secret'"


def kinds(base: type[httpx.RequestError]) -> Iterator[type[httpx.RequestError]]:
    yield base
    for kind in base.__subclasses__():
        yield from kinds(kind)


def why(client: httpx.Client) -> str:
    """Why a request failed."""
    with client, pytest.raises(Unreachable) as error, translate_errors(client):
        client.get("/models")
    return error.value.why


def failing(error: httpx.RequestError, cause: Exception | None) -> httpx.Client:
    def fail(request: httpx.Request) -> httpx.Response:
        raise error from cause

    return httpx.Client(base_url="http://u:pw@host/v1", transport=httpx.MockTransport(fail))


@pytest.mark.parametrize("kind", sorted(set(kinds(httpx.RequestError)), key=lambda kind: kind.__name__))
@pytest.mark.parametrize("cause", [None, ssl.SSLError(SECRET), OSError(111, SECRET), ValueError(SECRET)])
def test_no_error_shows_the_text_of_an_exception(kind: type[httpx.RequestError], cause: Exception | None) -> None:
    said = why(failing(kind(SECRET), cause))
    assert said.startswith("http://host/v1/ does not answer: ")
    assert "secret" not in said and "pw" not in said


@pytest.mark.parametrize(
    ("error", "cause", "said"),
    [
        (httpx.ConnectError(""), socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (httpx.ConnectError(""), ssl.SSLCertVerificationError(""), "the server's TLS certificate is not trusted"),
        (httpx.ReadTimeout(""), None, "the response timed out"),
        (httpx.RemoteProtocolError(""), None, "the connection was closed before the response was complete"),
    ],
)
def test_an_error_is_in_our_words(error: httpx.RequestError, cause: Exception | None, said: str) -> None:
    assert f"does not answer: {said}" in why(failing(error, cause))


def test_a_server_without_tls_is_named() -> None:
    with FakeOpenAI() as api:
        client = create_blocking_client(
            SourcedSetting(api.url.replace("http:", "https:"), "x"), SourcedSetting("k", "x"), {}, TIMEOUT
        )
        assert why(client).endswith("/v1/ does not answer: the server does not support TLS")


def test_a_loopback_address_is_reached_directly_and_the_proxy_of_others_is_named() -> None:
    proxy = f"http://user:pw@127.0.0.1:{unused_port()}"
    environment = {"HTTP_PROXY": proxy}
    with (
        FakeOpenAI() as api,
        create_blocking_client(SourcedSetting(api.url, "x"), SourcedSetting(KEY, "x"), environment, TIMEOUT) as client,
    ):
        assert client.get("/files/none/content").status_code == 404
    client = create_blocking_client(
        SourcedSetting("http://host.invalid/v1", "x"), SourcedSetting(KEY, "x"), environment, TIMEOUT
    )
    through = f"through the proxy {proxy.replace('user:pw@', '')} (HTTP_PROXY)"
    assert why(client) == f"http://host.invalid/v1/ does not answer {through}: Connection refused"


@pytest.mark.parametrize(
    "url", ["localhost:8000/v1", "http://ho st/v1", "http://host/v 1", "http://h\n/v1", "http://h:x"]
)
def test_a_url_that_is_not_one_is_refused(url: str) -> None:
    with pytest.raises(UserError, match=r"AGENT_RFT_BASE_URL .*: set a URL such as https://host/v1"):
        create_blocking_client(SourcedSetting(url, "AGENT_RFT_BASE_URL"), SourcedSetting("k", "x"), {}, TIMEOUT)
