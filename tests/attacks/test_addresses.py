"""A job's author tries to reach what the operator did not allow, by other names and notations and by DNS."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from agent_rft.actors.endpoints.client import EndpointClient
from agent_rft.actors.endpoints.network.address_guard import AddressGuard, ForbiddenAddress
from agent_rft.actors.endpoints.network.endpoint_url_checks import find_endpoint_problem
from agent_rft.errors import EndpointRefused, ToolFailed, UserError
from agent_rft.spec.endpoints import Endpoint
from agent_rft.spec.operator.allowed_networks import parse_allowed
from agent_rft.spec.operator.operator_config import OperatorConfig
from tests.support.budget import budget
from tests.support.fakes_http import FakeEndpoint, FakeTime, Names, Received, says

PORT = 8000
"""The allowed port, where a test only asks the guard."""


def guard(*entries: str) -> AddressGuard:
    return AddressGuard([parse_allowed(entry) for entry in entries])


async def post(url: str, *entries: str, names: Names | None = None) -> int:
    """Call `url` as a tool of a job, and return the status of the answer."""
    allowed = [parse_allowed(entry) for entry in entries]
    timing = FakeTime().timing()
    client = EndpointClient(
        "tool 'a'", url, Endpoint(max_retries=0), ToolFailed, timing, allowed_networks=allowed, resolver=names
    )
    try:
        return (await client.post({}, "call_1")).status
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("url", "reached"),
    [
        ("http://tools.internal:{port}/x", True),
        ("http://TOOLS.Internal:{port}/x", True),
        ("http://tools.internal:0{port}/x", True),
        ("http://\uff54ools.internal:{port}/x", True),  # a wide letter: it is this very host that is connected to
        ("http://other.example:{port}/x", False),
        ("http://tools.internal.:{port}/x", False),
        ("http://tools.internal.other.example:{port}/x", False),
        ("http://x.tools.internal:{port}/x", False),
        ("http://xtools.internal:{port}/x", False),
        ("http://tools.interna1:{port}/x", False),
        ("http://t\u043e\u043els.internal:{port}/x", False),  # Cyrillic letters
        ("http://tools.internal:{port}@other.example:{port}/x", False),
        ("http://tools.internal@other.example:{port}/x", False),
        ("http://tools.internal%00.other.example:{port}/x", False),
        ("http://other.example:{port}/#@tools.internal:{port}/x", False),
        ("http://other.example:{port}/?http://tools.internal:{port}/x", False),
    ],
)
async def test_a_host_entry_is_for_urls_that_name_this_host(url: str, reached: bool) -> None:
    """All names resolve to the address of the allowed host."""
    async with FakeEndpoint(says({})) as server:
        port = str(URL(server.url).port)
        target, names = url.replace("{port}", port), Names(["127.0.0.1"])
        if reached:
            assert await post(target, f"tools.internal:{port}", names=names) == 200
        else:
            with pytest.raises((EndpointRefused, ToolFailed)) as refused:
                await post(target, f"tools.internal:{port}", names=names)
            assert refused.value.details["kind"] in ("forbidden_address", "connection")
    assert len(server.received) == reached


async def test_a_host_entry_does_not_open_its_address_or_its_other_ports() -> None:
    async with FakeEndpoint(says({})) as server, FakeEndpoint(says({})) as database:
        port, other = URL(server.url).port, URL(database.url).port
        with pytest.raises(UserError, match=r"its URL points to 127\.0\.0\.1, a loopback address"):
            await post(server.url, f"localhost:{port}", f"tools.internal:{port}")
        fix = rf"add 127.0.0.1:{other} to .*, or add tools.internal:{other} there if"
        with pytest.raises(EndpointRefused, match=fix):
            await post(f"http://tools.internal:{other}/x", f"tools.internal:{port}", names=Names(["127.0.0.1"]))
        with pytest.raises(UserError, match="loopback address that is allowed on other ports, but not on port"):
            await post(database.url, f"127.0.0.0/8:{port}")
        assert await post(server.url, f"127.0.0.0/8:{port}") == 200
    assert database.received == []


@pytest.mark.parametrize("entry", ["other.internal:{port}", "10.0.0.0/8", "127.0.0.0/8:1"])
async def test_a_name_that_is_rebound_between_check_and_connection_gets_nowhere(entry: str) -> None:
    async with FakeEndpoint(says({})) as server:
        port = URL(server.url).port or 0
        names = Names(["93.184.215.14"], ["127.0.0.1"])
        (checked,) = await names.resolve("rebound.example", port)
        AddressGuard().check(ip_address(checked["host"]), port, "rebound.example")  # the check passes
        with pytest.raises(EndpointRefused, match=r"resolves to 127.0.0.1, a loopback address"):
            await post(f"http://rebound.example:{port}/x", entry.replace("{port}", str(port)), names=names)
    assert server.received == []


async def test_a_name_that_is_rebound_after_answers_gets_no_further_call() -> None:
    """Each new connection is checked, even if earlier connections of the same client reached an allowed address."""
    async with FakeEndpoint(says({})) as server:
        url = URL(server.url).with_host("rebound.example")
        names = Names(["127.0.0.1"], ["127.0.0.1"], ["127.0.0.2"], ["169.254.169.254"], ["127.0.0.1"])
        connector = guard(f"127.0.0.1:{url.port}").make_connector(url, names, use_dns_cache=False, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:
            for reached in (True, True, False, False, True):
                if reached:
                    assert (await session.post(url, json={})).status == 200
                else:
                    with pytest.raises(aiohttp.ClientConnectorError) as refused:
                        await session.post(url, json={})
                    assert isinstance(refused.value.os_error, ForbiddenAddress)
    assert (len(server.received), names.asked) == (3, 5)


@pytest.mark.parametrize(
    "url",
    [
        "http://" + "\u00e4." * 150_000 + "example/x",  # parsing this one takes most of a second
        "http://" + "\u00e4" * 300_000 + "/x",
        "http://" + "a" * 254 + "/x",
        "http://a@" + "a" * 254 + ":80/x",
        "http://" + "a" * 254 + "\\x",
        "http://a.example/" + "a" * 8_192,
        "http://a.example/" + "\u00e4" * 4_096,
        "http://" + "a" * 300_000 + "@a.example/x",
    ],
    ids=range(8),
)
def test_a_long_url_is_not_parsed(url: str) -> None:
    with budget(cpu_s=0.05, mib=5):
        problem = find_endpoint_problem(url, {})
    assert problem is not None
    assert "is longer than 8,192 bytes" in problem or "has a host with more than 253 characters" in problem


@pytest.mark.parametrize("url", ["http://" + "a." * 126 + "a:8000/x", "http://a.example/" + "a" * 8_175])
def test_the_longest_url_is_accepted(url: str) -> None:
    assert find_endpoint_problem(url, {}) is None


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "fd00:ec2::254",
        "169.254.1.1",
        "fe80::1",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::",
        "::ffff:0:169.254.169.254",
        "64:ff9b:1:a9fe:a9:fe00::",
        "64:ff9b:1::a9fe:a9fe",
        "2606:4700::5efe:a9fe:a9fe",
        "100.100.100.200",
    ],
)
async def test_an_allowed_host_is_rebound_to_an_address_that_no_tool_has(address: str) -> None:
    with pytest.raises(EndpointRefused) as refused:
        await post(f"http://tools.internal:{PORT}/x", "tools.internal", names=Names([address]))
    assert "or add tools.internal" not in refused.value.fix, "the fix is not an entry that does not help"


async def test_a_redirect_to_an_allowed_host_is_not_followed() -> None:
    async def behave(request: Received) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": f"http://tools.internal:{port}/x"})

    async with FakeEndpoint(behave) as server:
        port = URL(server.url).port
        with pytest.raises(ToolFailed, match="307 Temporary Redirect, a redirect"):
            await post(
                f"http://a.internal:{port}/x", f"a.internal:{port}", "tools.internal", names=Names(["127.0.0.1"])
            )
    assert len(server.received) == 1


async def test_a_connector_serves_no_other_host_than_that_of_its_guard() -> None:
    """So not even a redirect that somebody follows one day carries a host's permission to another one."""
    async with FakeEndpoint(says({})) as server:
        url = URL(server.url).with_host("tools.internal")
        connector = guard(f"tools.internal:{url.port}").make_connector(url, Names(["127.0.0.1"]))
        async with aiohttp.ClientSession(connector=connector) as session:
            with pytest.raises(ValueError, match="only for the host"):
                await session.post(server.url, json={})
    assert server.received == []


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "017700000001",
        "0",
        "0.0.0.0",
        "[::]",
        "[::1]",
        "[::1%25lo]",
        "[::1%25eth0]",
        "[fe80::1%25eth0]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1%25lo]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "[::ffff:0:7f00:1]",
        "[64:ff9b:1:7f00:0:100::]",
        "[2606:4700::200:5efe:7f00:1]",
        "[5f00::1]",
        "[3fff:fff::1]",
        "169.254.169.254",
        "１２７.0.0.1",
        "127.0.0.2",
        "10.0.0.5",
        "10.0.0.6",
        "[fd00::5]",
    ],
)
@pytest.mark.parametrize("entry", ["10.0.0.5:8000", "[fd00::5]:8000", "tools.internal:8000", "localhost:8000"])
def test_addresses_in_all_notations_are_refused_on_other_ports(host: str, entry: str) -> None:
    assert guard(entry).find_address_problem(f"http://{host}:{PORT + 1}/x") is not None


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://10.0.0.5:8000/x", True),
        ("http://10.0.0.5:08000/x", True),
        ("http://167772165:8000/x", True),  # the same address
        ("http://[::ffff:10.0.0.5]:8000/x", True),
        ("http://[64:ff9b::a00:5]:8000/x", True),
        ("http://[64:ff9b::a00:6]:8000/x", False),
        ("http://[2001:0:a00:5::f5ff:fffa]:8000/x", True),  # Teredo: server and client are 10.0.0.5
        ("http://[2001:0:a00:5::80ff:fffe]:8000/x", False),  # the server is, the client is 127.0.0.1
        ("http://10.0.0.5/x", False),
        ("https://10.0.0.5/x", False),
        ("http://10.0.0.5:/x", False),
        ("http://10.0.0.5:0/x", False),
        ("http://10.0.0.5:80001/x", False),
        ("http://10.0.0.5:8000@10.0.0.6/x", False),
        ("http://10.0.0.6:8000/x", False),
        ("http://10.0.0.6:80/10.0.0.5:8000", False),
    ],
)
def test_an_entry_with_a_port_is_for_this_port(url: str, allowed: bool) -> None:
    is_url = find_endpoint_problem(url, {}) is None
    assert (is_url and guard("10.0.0.5:8000").find_address_problem(url) is None) is allowed


@pytest.mark.parametrize("address", ["fe80::1%1", "::1%1", "::ffff:127.0.0.1%1"])
def test_zone_ids_hide_no_address(address: str) -> None:
    with pytest.raises(ForbiddenAddress):
        guard("tools.internal").check(ip_address(address), PORT)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("http://tools.internal:8000", "write only the host and the port"),
        ("user@tools.internal:8000", "write only the host and the port"),
        ("*.internal:8000", "wildcards are not supported"),
        ("fe80::1%eth0", "zone ids"),
        ("[fe80::1%eth0]:80", "zone ids"),
        ("t\u00f6\u00f6ls.internal", "xn--"),
        ("tools.internal:0", "from 1 to 65535"),
        ("tools.internal:65536", "from 1 to 65535"),
        ("fd00::5]:8000", "in brackets"),
        ("2130706433:80", "such as"),
        ("0x7f.1", "such as"),
        ("127.0.0.1.", "such as"),
        ("10.0.0.1/8", "such as"),
        ("[tools.internal]:80", "such as"),
        ("tools..internal", "such as"),
        ("", "such as"),
        (8000, "such as"),
        (None, "such as"),
    ],
)
def test_an_entry_that_could_be_misread_is_refused(entry: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        OperatorConfig(allowed_networks=[entry])


@pytest.mark.parametrize(
    ("entry", "shown"),
    [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.0.0.5", "10.0.0.5/32"),
        ("10.0.0.5:80", "10.0.0.5:80"),
        ("fd00::5:80", "fd00::5:80/128"),  # without brackets it is all address, as it always was
        ("[fd00::5]:80", "[fd00::5]:80"),
        ("[fd00::/8]:80", "[fd00::/8]:80"),
        ("Tools.Internal:80", "tools.internal:80"),
    ],
)
def test_an_entry_is_kept_as_it_was_meant(entry: str, shown: str) -> None:
    operator = OperatorConfig(allowed_networks=[entry])
    assert [str(entry) for entry in operator.allowed_networks] == [shown]
    assert OperatorConfig.model_validate(operator.model_dump(mode="json")) == operator
