"""The SSRF guard: a job's endpoints may have public addresses only, and those in networks that the operator allows.

The address is checked when its socket is created, so no connection is made to a forbidden one, whatever the host name
resolved to before and however the URL writes a numeric address.
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
    ip_network("168.63.129.16/32"): "a cloud metadata address",
    ip_network("169.254.169.254/32"): "a cloud metadata address",
    ip_network("169.254.170.0/24"): "a cloud metadata address",
    ip_network("100.100.100.200/32"): "a cloud metadata address",
    ip_network("fd00:ec2::254/128"): "a cloud metadata address",
    ip_network("fd20:ce::254/128"): "a cloud metadata address",
    ip_network("100.64.0.0/10"): "a carrier-grade NAT address",
    ip_network("192.0.0.0/24"): "a reserved address",
    ip_network("192.88.99.0/24"): "a reserved address",
    ip_network("fec0::/10"): "a private address",
}
"""In addition to what `ipaddress` knows: kinds with a more precise name, and networks that it considers global."""
_EMBEDDED_IPV4 = {  # IPv6 network -> how many bits the embedded IPv4 address is shifted to the left
    ip_network("::/96"): 0,  # IPv4-compatible, deprecated
    ip_network("64:ff9b::/96"): 0,  # NAT64
    ip_network("64:ff9b:1::/48"): 0,  # NAT64 of a site
    ip_network("2002::/16"): 80,  # 6to4
}


class ForbiddenAddress(OSError):
    """No socket is created for `address`.

    The message is the same for all addresses: if several fail, asyncio then raises the first error as it is.
    """

    def __init__(self, address: str, kind: str) -> None:
        super().__init__(errno.EACCES, "forbidden address")
        self.address = address
        self.kind = kind


class Guard:
    """Decides which addresses may be connected to: public ones, and those in the `allowed` networks."""

    def __init__(self, allowed: Sequence[Network] = ()) -> None:
        self._allowed = tuple(allowed)

    def forbidden(self, address: IPAddress) -> str | None:
        """The kind of forbidden address that this is, such as "a private address"; None if it is allowed."""
        embedded = _embedded(address)
        if any(form in network for form in (address, *embedded) for network in self._allowed):
            return None
        kinds = (_kind(form) for form in (*embedded, address))
        return next((kind for kind in kinds if kind is not None), None)

    def mistake(self, url: str) -> str | None:
        """What is wrong with a URL whose host is a numeric address; host names are checked on connection."""
        address = _parse_address(URL(url).raw_host or "")
        kind = None if address is None else self.forbidden(address)
        return None if kind is None else f"its URL points to {address}, {kind}"

    def make_socket(self, info: tuple[Any, ...]) -> socket.socket:
        """A socket for one of the results of getaddrinfo.

        Raises:
            ForbiddenAddress: the address is forbidden.
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
        return "an unspecified address"
    if address.is_loopback:
        return "a loopback address"
    if address.is_link_local:
        return "a link-local address"
    if address.is_multicast:
        return "a multicast address"
    if address.is_private:
        return "a private address"
    return None if address.is_global else "a reserved address"


def _embedded(address: IPAddress) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses that this IPv6 address embeds, and traffic to it may reach."""
    if isinstance(address, IPv4Address):
        return ()
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address.teredo is not None:
        return address.teredo
    if address in (IPv6Address("::"), IPv6Address("::1")):
        return ()
    return tuple(
        IPv4Address(int(address) >> bits & 0xFFFFFFFF) for net, bits in _EMBEDDED_IPV4.items() if address in net
    )


def _parse_address(host: str) -> IPAddress | None:
    """The address of a numeric host, in every notation that getaddrinfo accepts (2130706433, 0x7f.1, 0177.1)."""
    try:
        return ip_address(host)
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))
    except (OSError, UnicodeEncodeError):
        return None
