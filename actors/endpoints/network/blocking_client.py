"""An httpx client for commands: its settings are checked, its errors are in our words.

No text of an exception of httpx is shown: some contain the headers, and with them the key.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import httpx

from agent_rft.actors.endpoints.network.proxies import Proxy, proxy_for
from agent_rft.actors.endpoints.network.url import base_url_mistake, safe_url
from agent_rft.errors import UserError
from agent_rft.spec.keys import KEY_REMEDY, key_mistake


class Setting(NamedTuple):
    """A value, and where the user has set it: an option, a variable or a file."""

    value: str
    source: str


class BlockingClient(httpx.Client):
    """A client of one server, which is reached through `proxy` if there is one."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout: httpx.Timeout, proxy: Proxy | None) -> None:
        super().__init__(
            base_url=url,
            headers=headers,
            timeout=timeout,
            proxy=None if proxy is None else proxy.url,
            trust_env=False,  # httpx would read the proxies itself, and fail at those that it does not support
            verify=httpx.create_ssl_context(),  # SSL_CERT_FILE of the environment counts
        )
        self.proxy = proxy


def client_at(
    url: Setting,
    key: Setting,
    environment: Mapping[str, str],
    timeout: httpx.Timeout,
    headers: Mapping[str, Setting] | None = None,
) -> BlockingClient:
    """Return a client that sends `key` and `headers` to the server at `url`.

    Raises:
        UserError: The URL, the key, a header or the proxy for the URL is not valid.
    """
    if mistake := base_url_mistake(url.value):
        raise UserError(f"{url.source} {mistake}: give one such as https://host/v1")
    for setting in (key, *(headers or {}).values()):
        if mistake := key_mistake(setting.value):
            raise UserError(f"{setting.source} {mistake}: {KEY_REMEDY}")
    sent = {"Authorization": f"Bearer {key.value}"} | {name: setting.value for name, setting in (headers or {}).items()}
    return BlockingClient(url.value, sent, timeout, proxy_for(url.value, environment))


class Unreachable(Exception):
    """No complete response arrived; `why` is a sentence that names the server and its proxy."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@contextmanager
def in_our_words(client: httpx.Client) -> Iterator[None]:
    """Context manager of a request and the reading of its response.

    Raises:
        Unreachable: No complete response arrived.
        UserError: The request cannot be sent, since it contains characters that no URL has.
    """
    try:
        yield
    except httpx.RequestError as error:
        proxy = client.proxy if isinstance(client, BlockingClient) else None
        through = "" if proxy is None else f" through {proxy}"
        raise Unreachable(f"{safe_url(str(client.base_url))} does not answer{through}: {reason(error)}") from None
    except (httpx.InvalidURL, UnicodeError):
        raise UserError("a name or id contains characters that cannot be sent: check how it is written") from None


def reason(error: httpx.RequestError) -> str:
    """Return what went wrong."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    for cause in causes:
        match cause:
            case ssl.SSLCertVerificationError():
                return "its TLS certificate is not trusted"
            case ssl.SSLError():
                return "it does not speak TLS"
            case httpx.ProxyError():
                return "the proxy refuses the connection"
            case httpx.ConnectTimeout():
                return "no connection in time"
            case httpx.TimeoutException():
                return "no answer in time"
            case httpx.DecodingError():
                return "the response is not encoded as its header says"
            case OSError(errno=int(number)) if number > 0:
                return os.strerror(number)
            case OSError(strerror=str(text)):  # getaddrinfo's
                return text
    if isinstance(error, httpx.RemoteProtocolError):
        return "the connection was closed before the response was complete, or the response is not HTTP"
    return f"the connection failed ({type(error).__name__})"
