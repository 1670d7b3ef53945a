"""The table of listening ports in docs/security.md, which tests of real commands compare with their sockets."""

from __future__ import annotations

import os
import socket

import pytest

from tests.support.sockets import (
    EXPECTED,
    ONLY_ELSEWHERE,
    DocumentedPorts,
    Listener,
    documented_ports,
    listening,
    names,
    undocumented,
)

ROWS = [DocumentedPorts(("raylet",), 2), DocumentedPorts(("ray::*",), 1), DocumentedPorts(("ray::Replica:*",), 1)]


def sockets(command: str, *addresses: str) -> list[Listener]:
    return [Listener(1, ("python", command), address, port) for port, address in enumerate(addresses)]


def test_each_process_of_the_table_is_one_that_a_test_expects() -> None:
    documented = {process for row in documented_ports() for process in row.processes}
    assert documented == ONLY_ELSEWHERE.union(*EXPECTED.values())


@pytest.mark.parametrize(
    "found",
    [
        sockets("raylet", "127.0.0.1", "::ffff:127.0.0.1"),
        sockets("raylet", "::1"),
        sockets("ray::Replica:api", "127.0.0.1", "127.0.0.1"),
        [],
    ],
)
def test_documented_sockets_are_accepted(found: list[Listener]) -> None:
    assert undocumented(found, ROWS) == []


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1", "::ffff:192.0.2.1"])
def test_a_socket_that_other_machines_can_reach_is_reported(address: str) -> None:
    inside, outside = sockets("raylet", "127.0.0.1", address)
    assert undocumented([inside, outside], ROWS) == [outside]


@pytest.mark.parametrize(
    ("command", "count"), [("gcs_server", 1), ("raylet", 3), ("ray::Rank", 2), ("ray::Replica:api", 3)]
)
def test_unknown_processes_and_additional_ports_are_reported(command: str, count: int) -> None:
    found = sockets(command, *["127.0.0.1"] * count)
    assert undocumented(found, ROWS) == found


def test_the_sockets_of_a_process_are_listed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.connect(server.getsockname())
        found = [each for each in listening(os.getpid()) if each.port == server.getsockname()[1]]
    assert [each.address for each in found] == ["127.0.0.1"] and found[0].is_local
    assert names(sockets("ray::Replica:api", "127.0.0.1"), ROWS) == {"ray::*", "ray::Replica:*"}
