"""No connection is made to a private address, however the URL or DNS gives it, unless the operator allows it."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver
from yarl import URL

from agent_rft.actors.endpoints.client import EndpointClient
from agent_rft.actors.endpoints.network.address_guard import AddressGuard, ForbiddenAddress
from agent_rft.errors import EndpointRefused, ToolFailed, UserError
from agent_rft.spec.endpoints import Endpoint
from agent_rft.spec.operator.allowed_networks import parse_allowed
from tests.support.fakes_http import FakeEndpoint, FakeTime, Names, Received, says

FORBIDDEN = {
    "127.0.0.1": "loopback",
    "127.8.9.10": "loopback",
    "127.1": "loopback",
    "2130706433": "loopback",
    "0x7f000001": "loopback",
    "0x7f.1": "loopback",
    "0177.0.0.1": "loopback",
    "017700000001": "loopback",
    "localhost": "loopback",
    "[::1]": "loopback",
    "[::ffff:127.0.0.1]": "loopback",
    "[::ffff:7f00:1]": "loopback",
    "[::127.0.0.1]": "loopback",
    "[64:ff9b::127.0.0.1]": "loopback",
    "[64:ff9b:1::7f00:1]": "loopback",
    "[2002:7f00:1::]": "loopback",
    "0.0.0.0": "unspecified",
    "0": "unspecified",
    "[::]": "unspecified",
    "10.1.2.3": "private",
    "172.16.0.1": "private",
    "192.168.0.1": "private",
    "3232235521": "private",
    "[fd12:3456::1]": "private",
    "[fec0::1]": "private",
    "169.254.169.254": "metadata",
    "0xa9fea9fe": "metadata",
    "0251.0376.0251.0376": "metadata",
    "[::ffff:169.254.169.254]": "metadata",
    "[64:ff9b::a9fe:a9fe]": "metadata",
    "[fd00:ec2::254]": "metadata",
    "100.100.100.200": "metadata",
    "168.63.129.16": "metadata",
    "169.254.1.1": "link-local",
    "[fe80::1]": "link-local",
    "100.64.0.1": "carrier",
    "224.0.0.1": "multicast",
    "[ff02::1]": "multicast",
    "255.255.255.255": "private",
    "240.0.0.1": "private",
    "198.18.0.1": "private",
    "192.0.0.8": "reserved",
    "[::ffff:0:127.0.0.1]": "loopback",
    "[::ffff:0:169.254.169.254]": "metadata",
    "[64:ff9b:1:7f00:0:100::]": "loopback",  # NAT64 with a prefix of 48 bits
    "[64:ff9b:1:7f:0:1::]": "loopback",  # 56 bits
    "[64:ff9b:1:0:7f:0:100:0]": "loopback",  # 64 bits
    "[2606:4700::5efe:10.0.0.5]": "private",  # ISATAP
    "[2606:4700::200:5efe:169.254.169.254]": "metadata",
    "[2001:0:808:808::80ff:fffe]": "loopback",  # Teredo: the client is 127.0.0.1
    "[5f00::1]": "reserved",
    "[3fff::1]": "reserved",
    "[4000::1]": "reserved",
    "[100::1]": "private",
    "[64:ff9b:2::1]": "reserved",
}


def client(url: str, *allowed: str, resolver: AbstractResolver | None = None, **endpoint: Any) -> EndpointClient:
    return EndpointClient(
        "tool 'search'",
        url,
        Endpoint(**endpoint),
        ToolFailed,
        FakeTime().timing(),
        allowed_networks=[parse_allowed(entry) for entry in allowed],
        resolver=resolver,
    )


@pytest.mark.parametrize("host", FORBIDDEN)
async def test_forbidden_addresses_are_never_connected_to(host: str) -> None:
    """The check at socket creation alone; the check of the URL is skipped here."""
    url = URL(f"http://{host}:9/x")
    async with aiohttp.ClientSession(connector=AddressGuard().make_connector(url)) as session:
        # aiohttp itself rejects legacy notations of IPv4 addresses.
        with pytest.raises((aiohttp.ClientConnectorError, aiohttp.InvalidUrlClientError)) as refused:
            await session.post(url, timeout=aiohttp.ClientTimeout(total=5))
    if isinstance(refused.value, aiohttp.ClientConnectorError):
        assert isinstance(refused.value.os_error, ForbiddenAddress)


@pytest.mark.parametrize("host", [host for host in FORBIDDEN if host != "localhost"])
def test_numeric_hosts_are_rejected_before_any_call(host: str) -> None:
    mistake = AddressGuard().find_address_problem(f"http://{host}:9/x")
    assert mistake is not None and FORBIDDEN[host] in mistake.message
    with pytest.raises(UserError, match="tool 'search': its URL points to"):
        client(f"http://{host}:9/x")


@pytest.mark.parametrize(
    "host",
    [
        "93.184.215.14",
        "8.8.8.8",
        "[2606:4700::1111]",
        "[64:ff9b::808:808]",
        "[64:ff9b:1::808:808]",
        "[::ffff:8.8.8.8]",
        "[::ffff:0:8.8.8.8]",
        "[2002:808:808::1]",
        "[2606:4700::5efe:8.8.8.8]",
        "tools.example.com",
    ],
)
def test_public_addresses_and_names_pass(host: str) -> None:
    assert AddressGuard().find_address_problem(f"https://{host}/x") is None


@pytest.mark.parametrize(
    ("host", "network", "passes"),
    [
        ("127.0.0.1", "127.0.0.0/8", True),
        ("[::ffff:127.0.0.1]", "127.0.0.0/8", True),
        ("[::1]", "127.0.0.0/8", False),
        ("0.0.0.0", "127.0.0.0/8", False),
        ("10.1.2.3", "10.1.0.0/16", True),
        ("10.2.2.3", "10.1.0.0/16", False),
        ("169.254.169.254", "10.0.0.0/8", False),
        ("169.254.169.254", "169.254.169.254/32", True),
        ("[fd00:1::5]", "fd00:1::/32", True),
    ],
)
def test_only_networks_that_the_operator_allows_pass(host: str, network: str, passes: bool) -> None:
    assert (AddressGuard([parse_allowed(network)]).find_address_problem(f"http://{host}/x") is None) is passes


async def test_a_name_that_resolves_to_a_forbidden_address_is_a_configuration_error_and_not_retried() -> None:
    names = Names(["10.0.0.7"])
    search = client("http://tools.example.com/x", resolver=names)
    with pytest.raises(EndpointRefused, match=r"x\) resolves to 10.0.0.7, a private address") as refused:
        await search.post({}, "call_1")
    await search.close()
    assert refused.value.details["kind"] == "forbidden_address"
    assert "allowed_networks" in str(refused.value)
    assert names.asked == 1
    assert search.stats()["errors"] == {"forbidden_address": 1}


async def test_a_name_with_several_forbidden_addresses_raises_one_error() -> None:
    search = client("http://tools.example.com/x", resolver=Names(["10.0.0.7", "192.168.0.1", "fd00::1"]))
    with pytest.raises(EndpointRefused, match="a private address"):
        await search.post({}, "call_1")
    await search.close()


async def test_a_name_cannot_change_its_address_between_check_and_use() -> None:
    """DNS rebinding: the check sees a public address, the connection a private one."""
    async with FakeEndpoint(says({})) as server:
        names = Names(["93.184.215.14"], ["127.0.0.1"])
        url = server.url.replace("127.0.0.1", "tools.example.com")
        assert AddressGuard().find_address_problem(url) is None
        (checked,) = await names.resolve("tools.example.com")
        AddressGuard().check(ip_address(checked["host"]), 80)
        search = client(url, resolver=names)
        with pytest.raises(EndpointRefused, match=r"resolves to 127.0.0.1, a loopback address"):
            await search.post({}, "call_1")
        await search.close()
    assert (names.asked, server.received) == (2, [])


async def test_a_redirect_to_a_forbidden_address_is_not_followed() -> None:
    async def behave(request: Received) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": "http://169.254.169.254/latest/meta-data"})

    async with FakeEndpoint(behave) as server:
        search = client(server.url, "127.0.0.0/8")
        with pytest.raises(ToolFailed, match="302 Found, a redirect"):
            await search.post({}, "call_1")
        await search.close()
    assert len(server.received) == 1


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "gopher://127.0.0.1/", "ftp://10.0.0.1/", "unix:///run/docker.sock", "//10.0.0.1/"]
)
def test_other_schemes_are_rejected(url: str) -> None:
    with pytest.raises(UserError, match="must start with http"):
        client(url)
