"""Ports at which a command's processes listen, and the table of such ports in docs/security.md."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import IPv6Address, ip_address
from math import inf
from pathlib import Path

import psutil

from tests.support.paths import ROOT

PAGE, HEADING = ROOT / "docs" / "security.md", "### Listening ports\n"
START_S = 300.0
RAY = {"agent-rft", "gcs_server", "raylet", "ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::*"}
SERVE = RAY | {"ray::ServeReplica:agent-rft:api", "ray::ServeReplica:*", "dashboard.py"}
ENGINE = {"ray::RolloutWorker", "ray::DispatcherActor", "ray::GraderPoolActor", "VLLM::EngineCore"}
EXPECTED = {
    "serve": SERVE,
    "served model": SERVE | {"VLLM::EngineCore"},
    "job": SERVE | ENGINE | {"ray::RankProcess", "agent_rft.serve.jobs.processes.job_driver"},
    "train": RAY | ENGINE | {"ray::RankProcess"},
    "ready": RAY | ENGINE,
    "console": {"agent_rft.serve.host.run_console"},
}
"""The table's names of the processes that listen, by what runs."""
ONLY_ELSEWHERE = {"ray::SharedEngine", "ray::PythonGraderActor", "monitor.py", "ray.util.client.server"}
"""Names of processes that none of these needs. The last two do not listen if their ports are in use."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that waits for connections; `command` is the start of the command line of its process."""

    pid: int
    command: tuple[str, ...]
    address: str
    port: int

    @property
    def is_local(self) -> bool:
        address = ip_address(self.address)
        return ((isinstance(address, IPv6Address) and address.ipv4_mapped) or address).is_loopback

    def belongs_to(self, process: str) -> bool:
        """Return whether the table's name `process` is that of this socket's process."""
        return any(fnmatchcase(word, process) for word in self.command)


@dataclass(frozen=True, slots=True)
class DocumentedPorts:
    """A row of the table: the names of processes, and how many ports each of them has at most."""

    processes: tuple[str, ...]
    max_ports: float


def listening(pid: int) -> list[Listener]:
    """Return the sockets at which a process and its descendants listen."""
    parent = psutil.Process(pid)
    return [found for process in (parent, *parent.children(recursive=True)) for found in _listeners(process)]


def _listeners(process: psutil.Process) -> Iterator[Listener]:
    try:
        # Ray's workers have one word, such as `ray::RankProcess.build`, with the method that they run.
        words = [word.strip() for word in process.cmdline()[:4]]
        command = tuple(re.sub(r"\.\w+$", "", word) if word.startswith("ray::") else Path(word).name for word in words)
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                yield Listener(process.pid, command, connection.laddr.ip, connection.laddr.port)
    except psutil.Error:
        return  # it has ended, or is a sandbox of another user, which has no network


def documented_ports(page: str = PAGE.read_text(encoding="utf-8")) -> list[DocumentedPorts]:
    """Return the rows of the table."""
    table = page.partition(HEADING)[2].partition("\n#")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:3] == "| `"]
    return [DocumentedPorts(tuple(re.findall("`([^`]+)`", row[0])), _count(row[1])) for row in rows]


def _count(cell: str) -> float:
    number = re.search(r"\d+", cell)
    assert number or cell == "several", cell
    return int(number[0]) if number else inf


def undocumented(sockets: Iterable[Listener], rows: Iterable[DocumentedPorts]) -> list[Listener]:
    """Return the sockets of a local cluster that contradict the table.

    They are open to other machines, or their process has more of them than the table allows.
    """
    sockets, rows = list(sockets), list(rows)
    counts = Counter(socket.pid for socket in sockets)
    return [
        socket
        for socket in sockets
        if not socket.is_local
        or counts[socket.pid] > sum(row.max_ports for row in rows if any(map(socket.belongs_to, row.processes)))
    ]


def names(sockets: Iterable[Listener], rows: Iterable[DocumentedPorts]) -> set[str]:
    """Return the table's names of the processes that listen."""
    documented = {process for row in rows for process in row.processes}
    return {process for process in documented for socket in sockets if socket.belongs_to(process)}


def check_ports(pid: int, kind: str) -> None:
    """Wait until each process that EXPECTED names has listened, and compare all sockets with the table."""
    rows, deadline, missing, listened = documented_ports(), time.monotonic() + START_S, EXPECTED[kind], Counter[str]()
    while True:
        sockets = listening(pid)
        listened.update({" ".join(filter(None, socket.command[:2])) for socket in sockets})
        if not (missing := missing - names(sockets, rows)):
            break
        problem = f"these never listened: {missing}; number of snapshots in which others listened: {listened}"
        assert psutil.Process(pid).status() != psutil.STATUS_ZOMBIE, f"the command has ended; {problem}"
        assert time.monotonic() < deadline, problem
        time.sleep(0.2)
    assert undocumented(sockets, rows) == []
