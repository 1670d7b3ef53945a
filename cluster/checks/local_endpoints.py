"""Access to the loopback and private endpoints of a job file, for commands that run the job on the operator's computer.

For these commands, the job file is trusted like a Makefile: the operator starts the command and owns its Ray cluster.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address
from typing import Any

from yarl import URL

from agent_rft.actors.endpoints.network.address_guard import IPAddress, is_local, is_public, parse_address
from agent_rft.actors.endpoints.network.endpoint_url_checks import find_endpoint_problem
from agent_rft.cluster.checks.endpoint_checks import list_endpoint_urls
from agent_rft.spec.job import JobSpec, Reinforcement
from agent_rft.spec.operator.allowed_networks import AllowedDestination
from agent_rft.spec.operator.operator_config import OperatorConfig

Resolve = Callable[[str, int], Sequence[IPAddress]]
"""Function that returns the IP addresses for a host name and port; empty if the name is unknown."""


def resolve_host(host: str, port: int) -> list[IPAddress]:
    """Return the IP addresses of `host` from the system's resolver; empty if the name is unknown."""
    try:
        found: list[tuple[Any, ...]] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # unknown, or not a host name: the check of the job reports it
        return []
    return [ip_address(address) for *_, (address, *_) in found]


def allow_local_endpoints(
    operator: OperatorConfig, job: JobSpec | Reinforcement | None, address: str | None, resolve: Resolve = resolve_host
) -> OperatorConfig:
    """Return `operator` plus access to the local endpoints of `job`, if the command starts its own Ray cluster.

    Host names are resolved once, in this function. A host name that has a public address gets no access to local
    addresses. Otherwise, the owner of its DNS zone could later redirect calls into the operator's network.

    Args:
        operator: The configuration. If it sets `allowed_networks`, even to an empty list, it is returned unchanged.
        job: A job, or its `reinforcement` section; None for no endpoints.
        address: Address of the Ray cluster; None if the command starts one on this computer.
        resolve: Resolver of host names.
    """
    reinforcement = job.method.reinforcement if isinstance(job, JobSpec) else job
    if address is not None or reinforcement is None or "allowed_networks" in operator.model_fields_set:
        return operator
    return operator.with_job_endpoints(dict.fromkeys(_local_destinations(reinforcement, resolve)))


def _local_destinations(reinforcement: Reinforcement, resolve: Resolve) -> Iterator[AllowedDestination]:
    for _, text in list_endpoint_urls(reinforcement):
        if find_endpoint_problem(text, {}):
            continue  # the check of the job reports it
        url = URL(text)
        host, port = url.raw_host or "", url.port or 0
        numeric = parse_address(host)
        addresses = resolve(host, port) if numeric is None else [numeric]
        if any(map(is_local, addresses)) and not any(map(is_public, addresses)):
            yield AllowedDestination(None, host, port, is_local_only=True)
