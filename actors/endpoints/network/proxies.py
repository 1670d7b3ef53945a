"""HTTP proxy settings from the environment: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY.

Proxies apply only to URLs that the operator or the user of a command sets. Requests to the endpoints of jobs never use
a proxy, since a proxy could connect to addresses that the SSRF guard forbids.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import NamedTuple

from yarl import URL

from agent_rft.actors.endpoints.network.endpoint_url_checks import find_url_problem, redact_url
from agent_rft.errors import UserError
from agent_rft.spec.api_keys import read_variable


class Proxy(NamedTuple):
    """An HTTP proxy, and the name of the environment variable that sets it; the URL may contain a password."""

    url: str
    variable: str

    def __str__(self) -> str:
        return f"the proxy {redact_url(self.url)} ({self.variable})"


def find_proxy(url: str, environment: Mapping[str, str] = os.environ) -> Proxy | None:
    """Return the proxy for requests to `url`.

    Returns None if no proxy is set, or if the URL's host is a loopback address or is listed in NO_PROXY.

    Raises:
        UserError: The environment names a proxy that is invalid or not an HTTP proxy.
    """
    parsed = URL(url)
    if _is_direct(parsed.host or "", parsed.port, _read_variable(environment, "no_proxy")[1]):
        return None
    for name in (f"{parsed.scheme}_proxy", "all_proxy"):
        found, value = _read_variable(environment, name)
        if value is not None:
            return _parse_proxy(value, found, parsed)
    return None


def find_proxy_problem(url: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the problem with the proxy setting that applies to `url`; None if there is no problem."""
    try:
        find_proxy(url, environment)
    except UserError as error:
        return error.message
    return None


def _read_variable(environment: Mapping[str, str], name: str) -> tuple[str, str | None]:
    """Return the name and value of the lowercase variable or, if it is not set, of the uppercase one, as in curl."""
    lower, upper = read_variable(environment, name), read_variable(environment, name.upper())
    return (name.upper(), upper) if lower is None else (name, lower)


def _is_direct(host: str, port: int | None, no_proxy: str | None) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    exceptions = [name for entry in (no_proxy or "").split(",") if (name := entry.strip().lower().lstrip("."))]
    with suppress(ValueError):  # the host is a name
        address = ip_address(host)
        if address.is_loopback or address.is_unspecified:
            return True
        for entry in exceptions:
            with suppress(ValueError):  # a name, or an address with a port
                if address in ip_network(entry, strict=False):
                    return True
    names = {"*", host, f"{host}:{port}"}
    return any(entry in names or host.endswith(f".{entry}") for entry in exceptions)


def _parse_proxy(value: str, name: str, target: URL) -> Proxy:
    url = value if "://" in value else f"http://{value}"
    if find_url_problem(url) is None:
        return Proxy(url, name)
    scheme = url.partition("://")[0]
    what = f"a {scheme}:// proxy, which is not supported" if scheme.startswith("socks") else "not the URL of a proxy"
    fix = f"set {name} to an HTTP proxy, such as http://proxy:3128, or add {target.host} to NO_PROXY"
    raise UserError(f"{name} is {what}: {fix}")
