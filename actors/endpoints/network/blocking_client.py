"""Blocking HTTP client for command-line programs, based on httpx. Validates settings and raises readable errors.

Messages of httpx exceptions are never shown, since some contain the headers, including the key.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import httpx

from agent_rft.actors.endpoints.network.endpoint_url_checks import find_base_url_problem, redact_url
from agent_rft.actors.endpoints.network.proxies import Proxy, find_proxy
from agent_rft.errors import UserError
from agent_rft.spec.api_keys import KEY_FIX, find_key_problem


class SourcedSetting(NamedTuple):
    """Value of a setting, and the name of its source: an option, an environment variable or a file."""

    value: str
    source: str


class BlockingClient(httpx.Client):
    """HTTP client of one server, which connects through `proxy` if it is not None."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout: httpx.Timeout, proxy: Proxy | None) -> None:
        super().__init__(
            base_url=url,
            headers=headers,
            timeout=timeout,
            proxy=None if proxy is None else proxy.url,
            trust_env=False,  # otherwise httpx reads the proxies, and raises for unsupported ones
            verify=httpx.create_ssl_context(),  # respects SSL_CERT_FILE
        )
        self.proxy = proxy


def create_blocking_client(
    url: SourcedSetting,
    key: SourcedSetting,
    environment: Mapping[str, str],
    timeout: httpx.Timeout,
    headers: Mapping[str, SourcedSetting] | None = None,
) -> BlockingClient:
    """Return a client that sends `key` and `headers` to the server at `url`.

    Raises:
        UserError: The URL, the key, a header or the proxy for the URL is invalid.
    """
    if problem := find_base_url_problem(url.value):
        raise UserError(f"{url.source} {problem}: set a URL such as https://host/v1")
    for setting in (key, *(headers or {}).values()):
        if problem := find_key_problem(setting.value):
            raise UserError(f"{setting.source} {problem}: {KEY_FIX}")
    sent = {"Authorization": f"Bearer {key.value}"} | {name: setting.value for name, setting in (headers or {}).items()}
    return BlockingClient(url.value, sent, timeout, find_proxy(url.value, environment))


class Unreachable(Exception):
    """No complete response arrived; `why` names the server, its proxy and the reason."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@contextmanager
def translate_errors(client: httpx.Client) -> Iterator[None]:
    """Context manager that translates httpx errors.

    Raises:
        Unreachable: No complete response arrived.
        UserError: The request contains characters that are invalid in a URL.
    """
    try:
        yield
    except httpx.RequestError as error:
        proxy = client.proxy if isinstance(client, BlockingClient) else None
        through = "" if proxy is None else f" through {proxy}"
        raise Unreachable(
            f"{redact_url(str(client.base_url))} does not answer{through}: {describe_error(error)}"
        ) from None
    except (httpx.InvalidURL, UnicodeError):
        raise UserError("a name or id contains characters that are invalid in a URL: check its spelling") from None


def describe_error(error: httpx.RequestError) -> str:
    """Return the reason why a request failed, without text from httpx."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    for cause in causes:
        match cause:
            case ssl.SSLCertVerificationError():
                return "the server's TLS certificate is not trusted"
            case ssl.SSLError():
                return "the server does not support TLS"
            case httpx.ProxyError():
                return "the proxy refuses the connection"
            case httpx.ConnectTimeout():
                return "the connection timed out"
            case httpx.TimeoutException():
                return "the response timed out"
            case httpx.DecodingError():
                return "the response body does not match its Content-Encoding"
            case OSError(errno=int(number)) if number > 0:
                return os.strerror(number)
            case OSError(strerror=str(text)):  # getaddrinfo's
                return text
    if isinstance(error, httpx.RemoteProtocolError):
        return "the connection was closed before the response was complete, or the response is not HTTP"
    return f"the connection failed ({type(error).__name__})"
