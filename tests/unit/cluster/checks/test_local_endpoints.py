"""Which loopback and private endpoints a job file may name for a command on the operator's machine."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from ipaddress import ip_address

import pytest
from aiohttp import web
from yarl import URL

from agent_rft.actors.endpoints.client import EndpointClient
from agent_rft.actors.endpoints.network.address_guard import AddressGuard, ForbiddenAddress
from agent_rft.cluster.checks.local_endpoints import Resolve, allow_local_endpoints, resolve_host
from agent_rft.errors import EndpointRefused, ToolFailed
from agent_rft.spec.endpoints import Endpoint
from agent_rft.spec.job import Reinforcement
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG, OperatorConfig
from tests.support.fakes_http import FakeEndpoint, FakeTime, Names, Received, says

GRADER = {"type": "string_check", "input": "", "reference": "", "operation": "eq"}
PUBLIC = "93.184.215.14"


def job_of(*urls: str, **others: object) -> Reinforcement:
    tools = [{"name": f"tool{i}", "server_url": url} for i, url in enumerate(urls)]
    return Reinforcement.model_validate({"tools": tools, "grader": GRADER} | others)


def resolves_to(*addresses: str) -> Resolve:
    return lambda host, port: [ip_address(address) for address in addresses]


def allowed_for(*urls: str, addresses: Sequence[str] = (), operator: OperatorConfig = DEFAULT_CONFIG) -> OperatorConfig:
    return allow_local_endpoints(operator, job_of(*urls), None, resolves_to(*addresses))


def is_allowed(operator: OperatorConfig, address: str, port: int, host: str = "") -> bool:
    try:
        AddressGuard(operator.allowed_destinations).check(ip_address(address), port, host or address)
    except ForbiddenAddress:
        return False
    return True


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.8.9.10",
        "2130706433",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "10.1.2.3",
        "172.31.0.9",
        "192.168.1.20",
        "[fd12:3456::7]",
    ],
)
def test_loopback_and_private_addresses_in_the_job_file_are_allowed_on_their_port(host: str) -> None:
    operator = allowed_for(f"http://{host}:8000/run")
    guard = AddressGuard(operator.allowed_destinations)
    assert guard.find_address_problem(f"http://{host}:8000/another/path") is None
    assert guard.find_address_problem(f"http://{host}:8001/run") is not None
    assert guard.find_address_problem(f"http://{host}/run") is not None


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",  # cloud metadata
        "168.63.129.16",
        "100.100.100.200",
        "[fd00:ec2::254]",
        "[::ffff:169.254.169.254]",
        "[64:ff9b::a9fe:a9fe]",
        "169.254.7.7",  # link-local
        "[fe80::1]",
        "224.0.0.1",  # multicast
        "[ff02::1]",
        "0.0.0.0",  # unspecified
        "[::]",
        "240.0.0.1",  # reserved
        "192.0.0.8",
        "198.18.0.1",
        "255.255.255.255",
        "[2001:db8::1]",
        "100.64.0.1",  # carrier-grade NAT
        "[64:ff9b::7f00:1]",  # loopback behind a translator
        "[2002:7f00:1::]",
    ],
)
def test_other_special_addresses_stay_refused(host: str) -> None:
    operator = allowed_for(f"http://{host}:8000/run")
    mistake = AddressGuard(operator.allowed_destinations).find_address_problem(f"http://{host}:8000/run")
    assert operator.allowed_destinations == () and mistake is not None


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["::1", "127.0.0.1"], ["10.0.0.7"], ["fe80::7", "192.168.1.5"]])
def test_a_host_name_with_local_addresses_is_allowed(addresses: list[str]) -> None:
    operator = allowed_for("http://tools.lan:8000/run", addresses=addresses)
    assert is_allowed(operator, addresses[-1], 8000, "tools.lan")
    assert not is_allowed(operator, addresses[-1], 8001, "tools.lan")
    assert not is_allowed(operator, addresses[-1], 8000, "other.lan")
    assert not is_allowed(operator, addresses[-1], 8000), "the address itself is not in the job file"
    assert not is_allowed(operator, "fe80::7", 8000, "tools.lan")


@pytest.mark.parametrize("addresses", [[], [PUBLIC], [PUBLIC, "127.0.0.1"], ["169.254.169.254"], ["100.64.0.1"]])
def test_other_host_names_are_not_allowed_locally(addresses: list[str]) -> None:
    assert allowed_for("http://tools.example:8000/run", addresses=addresses).allowed_destinations == ()


def test_every_kind_of_endpoint_counts() -> None:
    reinforcement = job_of(
        "http://127.0.0.1:1/run",
        session={"start_url": "http://127.0.0.1:2/start", "end_url": "http://127.0.0.1:3/end"},
        grader={
            "type": "multi",
            "graders": {"a": {"type": "endpoint", "url": "http://127.0.0.1:4/a"}},
            "calculate_output": "a",
        },
        held_out_grader={"type": "endpoint", "url": "http://127.0.0.1:5/held_out"},
    )
    operator = allow_local_endpoints(DEFAULT_CONFIG, reinforcement, None)
    assert [str(entry) for entry in operator.allowed_destinations] == [f"127.0.0.1:{port}" for port in range(1, 6)]


def test_a_configuration_with_allowed_networks_decides_alone() -> None:
    for operator in (OperatorConfig(allowed_networks=[]), OperatorConfig(allowed_networks=["10.0.0.0/8"])):
        assert allowed_for("http://127.0.0.1:8000/run", operator=operator) == operator
    others = OperatorConfig(unsandboxed_python=True)
    allowed = allowed_for("http://127.0.0.1:8000/run", operator=others)
    assert is_allowed(allowed, "127.0.0.1", 8000) and allowed.unsandboxed_python


@pytest.mark.parametrize("address", ["auto", "10.0.0.9:6379", "127.0.0.1:6379"])
def test_the_guard_stays_on_a_cluster_that_was_there_before(address: str) -> None:
    job = job_of("http://127.0.0.1:8000/run")
    assert allow_local_endpoints(DEFAULT_CONFIG, job, address) is DEFAULT_CONFIG


def test_a_job_without_endpoints_allows_nothing() -> None:
    assert allow_local_endpoints(DEFAULT_CONFIG, None, None) is DEFAULT_CONFIG
    assert allow_local_endpoints(DEFAULT_CONFIG, job_of(), None).allowed_destinations == ()


def test_endpoints_reach_other_processes_but_no_configuration_file() -> None:
    """Actors get the operator by pickle; a file that is written from it must not open anything for other jobs."""
    operator = allowed_for("http://127.0.0.1:8000/run")
    assert pickle.loads(pickle.dumps(operator)).allowed_destinations == operator.allowed_destinations != ()
    assert "127.0.0.1" not in operator.model_dump_json()
    assert DEFAULT_CONFIG.allowed_destinations == ()
    with pytest.raises(ValueError, match="_job_endpoints"):
        OperatorConfig.model_validate({"_job_endpoints": ["127.0.0.1:8000"]})


def test_the_systems_resolver_knows_localhost() -> None:
    assert ip_address("127.0.0.1") in resolve_host("localhost", 80)
    assert resolve_host("no-such-host.invalid", 80) == resolve_host("a" * 70 + ".example", 80) == []


async def post(operator: OperatorConfig, url: str, names: Names) -> int:
    client = EndpointClient(
        "tool 'a'",
        url,
        Endpoint(max_retries=0),
        ToolFailed,
        FakeTime().timing(),
        allowed_networks=operator.allowed_destinations,
        resolver=names,
    )
    try:
        return (await client.post({}, "call_1")).status
    finally:
        await client.close()


async def test_a_name_that_was_public_at_the_start_does_not_become_private() -> None:
    """Not even where another tool of the job has the very address and port that the name now resolves to."""
    async with FakeEndpoint(says({})) as server:
        port = URL(server.url).port
        rebound = f"http://tools.example:{port}/run"
        operator = allowed_for(server.url, rebound, addresses=[PUBLIC])
        with pytest.raises(EndpointRefused, match=r"resolves to 127\.0\.0\.1, a loopback address") as refused:
            await post(operator, rebound, Names(["127.0.0.1"]))
        assert f"add 127.0.0.1:{port}" in str(refused.value.fix)
        assert server.received == []
        assert await post(operator, server.url, Names(["127.0.0.1"])) == 200


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1", "0.0.0.0", "100.64.0.1", "198.18.0.1"])
async def test_a_name_that_was_private_at_the_start_stays_private_or_public(address: str) -> None:
    url = "http://tools.lan:8000/run"
    operator = allowed_for(url, addresses=["192.168.1.5"])
    with pytest.raises(EndpointRefused, match=f"resolves to {address}"):
        await post(operator, url, Names([address]))
    assert is_allowed(operator, PUBLIC, 8000, "tools.lan")


async def test_a_redirect_from_an_own_endpoint_is_not_followed() -> None:
    async def behave(request: Received) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": "/elsewhere"})

    async with FakeEndpoint(behave) as server:
        with pytest.raises(ToolFailed, match="302 Found, a redirect"):
            await post(allowed_for(server.url), server.url, Names(["127.0.0.1"]))
    assert len(server.received) == 1
