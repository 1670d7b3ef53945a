"""Which addresses a job's endpoints may have: public ones, and the networks that the operator allows.

What counts is the address that is connected to, looked at when its socket is made: whatever a name resolved to before,
and however its URL writes a number, no connection is made to a forbidden one.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

Network = IPv4Network | IPv6Network
IPAddress = IPv4Address | IPv6Address

REMEDY = "add its network to allowed_networks in the operator's configuration (agent-rft.yaml or --config)"
_FORBIDDEN = {
    ip_network("168.63.129.16/32"): "a cloud's metadata address",
    ip_network("169.254.169.254/32"): "a cloud's metadata address",
    ip_network("169.254.170.0/24"): "a cloud's metadata address",
    ip_network("100.100.100.200/32"): "a cloud's metadata address",
    ip_network("fd00:ec2::254/128"): "a cloud's metadata address",
    ip_network("fd20:ce::254/128"): "a cloud's metadata address",
    ip_network("100.64.0.0/10"): "a carrier's shared address",
    ip_network("192.0.0.0/24"): "a reserved address",
    ip_network("192.88.99.0/24"): "a reserved address",
    ip_network("fec0::/10"): "a private address",
}
"""What stands beside what `ipaddress` knows: kinds that deserve their name, and what it counts as global."""
_CARRIERS_OF_IPV4 = {  # IPv6 network -> how many bits the IPv4 address stands from the right
    ip_network("::/96"): 0,  # compatible, long out of use
    ip_network("64:ff9b::/96"): 0,  # NAT64
    ip_network("64:ff9b:1::/48"): 0,  # NAT64 of a site
    ip_network("2002::/16"): 80,  # 6to4
}


class ForbiddenAddress(OSError):
    """No socket is made to `address`. Its text is the same for all addresses, so that of several tried in vain the
    first one's error is raised.
    """

    def __init__(self, address: str, kind: str) -> None:
        super().__init__(errno.EACCES, "forbidden address")
        self.address = address
        self.kind = kind


class Guard:
    """Knows which addresses are allowed."""

    def __init__(self, allowed: Sequence[Network] = ()) -> None:
        self._allowed = tuple(allowed)

    def forbidden(self, address: IPAddress) -> str | None:
        """What kind of forbidden address this is; None where it may be connected to."""
        carried = _carried(address)
        if any(form in network for form in (address, *carried) for network in self._allowed):
            return None
        kinds = (_kind(form) for form in (*carried, address))
        return next((kind for kind in kinds if kind is not None), None)

    def mistake(self, url: str) -> str | None:
        """What is wrong with a URL whose host is written as a number; names are looked at when connected to."""
        address = _written_in(URL(url).raw_host or "")
        kind = None if address is None else self.forbidden(address)
        return None if kind is None else f"its URL leads to {address}, {kind}"

    def make_socket(self, info: tuple[Any, ...]) -> socket.socket:
        """A socket for one of getaddrinfo's answers.

        Raises:
            ForbiddenAddress: it may not be connected to.
        """
        family, kind, protocol, _, address = info
        forbidden = self.forbidden(ip_address(address[0]))
        if forbidden is not None:
            raise ForbiddenAddress(address[0], forbidden)
        return socket.socket(family, kind, protocol)

    def connector(self, resolver: AbstractResolver | None = None, **options: Any) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(resolver=resolver, socket_factory=self.make_socket, **options)


def _kind(address: IPAddress) -> str | None:
    for network, kind in _FORBIDDEN.items():
        if address in network:
            return kind
    if address.is_unspecified:
        return "the address of no host"
    if address.is_loopback:
        return "a loopback address"
    if address.is_link_local:
        return "a link-local address"
    if address.is_multicast:
        return "a multicast address"
    if address.is_private:
        return "a private address"
    return None if address.is_global else "a reserved address"


def _carried(address: IPAddress) -> tuple[IPv4Address, ...]:
    """IPv4 addresses that this IPv6 address leads to."""
    if isinstance(address, IPv4Address):
        return ()
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address.teredo is not None:
        return address.teredo
    if address in (IPv6Address("::"), IPv6Address("::1")):
        return ()
    return tuple(
        IPv4Address(int(address) >> bits & 0xFFFFFFFF) for net, bits in _CARRIERS_OF_IPV4.items() if address in net
    )


def _written_in(host: str) -> IPAddress | None:
    """The address that a host is, in all ways of writing one that look-ups take (2130706433, 0x7f.1, 0177.1)."""
    try:
        return ip_address(host)
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))
    except (OSError, UnicodeEncodeError):
        return None
