"""The SSRF guard: a job's endpoints may have public addresses only, and those that the operator allows.

The address and port are checked when the socket is created, so no connection is made to a forbidden one, whatever the
host name resolved to before and however the URL writes a numeric address.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, NamedTuple

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from agent_rft.spec.operator.allowed import Allowed

IPAddress = IPv4Address | IPv6Address

WHERE = "allowed_networks in the operator's configuration (agent-rft.yaml, --config or AGENT_RFT_CONFIG)"


class Kind(StrEnum):
    """Why an address is forbidden."""

    METADATA = "a cloud metadata address"
    CARRIER = "a carrier-grade NAT address"
    RESERVED = "a reserved address"
    PRIVATE = "a private address"
    UNSPECIFIED = "an unspecified address"
    LOOPBACK = "a loopback address"
    LINK_LOCAL = "a link-local address"
    MULTICAST = "a multicast address"


NEVER_BY_NAME = frozenset({Kind.METADATA, Kind.UNSPECIFIED, Kind.LINK_LOCAL, Kind.MULTICAST})
"""What no host entry opens, only a network: no tool is there, and who controls the name would get there."""
_FORBIDDEN = {
    ip_network("168.63.129.16/32"): Kind.METADATA,
    ip_network("169.254.169.254/32"): Kind.METADATA,
    ip_network("169.254.170.0/24"): Kind.METADATA,
    ip_network("100.100.100.200/32"): Kind.METADATA,
    ip_network("fd00:ec2::254/128"): Kind.METADATA,
    ip_network("fd20:ce::254/128"): Kind.METADATA,
    ip_network("100.64.0.0/10"): Kind.CARRIER,
    ip_network("192.0.0.0/24"): Kind.RESERVED,
    ip_network("192.88.99.0/24"): Kind.RESERVED,
    ip_network("fec0::/10"): Kind.PRIVATE,
}
"""In addition to what `ipaddress` knows: kinds with a more precise name, and networks that it considers global."""
_LOCAL = tuple(map(ip_network, ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7")))
"""Loopback and private networks (RFC 1918, RFC 4193). `is_private` of `ipaddress` also covers reserved networks."""
_EMBEDDED_IPV4 = {  # IPv6 network -> how many bits the embedded IPv4 address is shifted to the left
    ip_network("::/96"): 0,  # IPv4-compatible, deprecated
    ip_network("64:ff9b::/96"): 0,  # NAT64
    ip_network("64:ff9b:1::/48"): 0,  # NAT64 of a site
    ip_network("2002::/16"): 80,  # 6to4
}


class ForbiddenAddress(OSError):
    """No socket is created for `address`; `why` says what it is, and `remedy` which entry would allow it.

    The message is the same for all addresses: if several fail, asyncio then raises the first error as it is.
    """

    def __init__(self, address: str, why: str, remedy: str) -> None:
        super().__init__(errno.EACCES, "forbidden address")
        self.address = address
        self.why = why
        self.remedy = remedy


class AddressMistake(NamedTuple):
    """What is wrong with the address in a URL."""

    message: str
    remedy: str


class Guard:
    """Decides what may be connected to: public addresses, and what is `allowed`."""

    def __init__(self, allowed: Sequence[Allowed] = ()) -> None:
        self._allowed = tuple(allowed)

    def check(self, address: IPAddress, port: int, host: str = "") -> None:
        """Check a connection for a URL whose host is `host`, as yarl writes it; it matters only if it is a name.

        Raises:
            ForbiddenAddress: the connection is forbidden.
        """
        embedded = _embedded(address)
        if self._has(address, port) or (embedded and all(self._has(form, port) for form in embedded)):
            return
        kinds = [kind for form in (*embedded, address) if (kind := _kind(form)) is not None]
        if not kinds or (NEVER_BY_NAME.isdisjoint(kinds) and self._has_host(host, port)):
            return
        if is_local(address) and self._has_host(host, port, is_local_only=True):
            return
        other_ports = any(entry.port is not None and _holds(entry, (address, *embedded)) for entry in self._allowed)
        why = f"{kinds[0]}, which is allowed on other ports only" if other_ports else kinds[0].value
        raise ForbiddenAddress(str(address), why, _remedy(kinds, address, port, host))

    def mistake(self, url: str) -> AddressMistake | None:
        """What is wrong with a URL whose host is a numeric address; host names are checked on connection."""
        parsed = URL(url)
        address = parse_address(parsed.raw_host or "")
        if address is None:
            return None
        try:
            self.check(address, parsed.port or 0, parsed.raw_host or "")
        except ForbiddenAddress as error:
            return AddressMistake(f"its URL points to {error.address}, {error.why}", error.remedy)
        return None

    def make_socket(self, host: str, info: tuple[Any, ...]) -> socket.socket:
        """A socket for one of the results of getaddrinfo, for a URL whose host is `host`.

        Raises:
            ForbiddenAddress: the address is forbidden.
        """
        family, kind, protocol, _, (address, port, *_) = info
        self.check(ip_address(address), port, host)
        return socket.socket(family, kind, protocol)

    def connector(self, url: URL, resolver: AbstractResolver | None = None, **options: Any) -> aiohttp.TCPConnector:
        """A connector for requests to the host of `url`."""
        host = url.raw_host or ""
        return _OneHost(host, resolver=resolver, socket_factory=partial(self.make_socket, host), **options)

    def _has(self, address: IPAddress, port: int) -> bool:
        return any(entry.port in (None, port) and _holds(entry, (address,)) for entry in self._allowed)

    def _has_host(self, host: str, port: int, is_local_only: bool = False) -> bool:
        return any(
            entry.port in (None, port) and entry.host == host and entry.is_local_only is is_local_only
            for entry in self._allowed
        )


class _OneHost(aiohttp.TCPConnector):
    """Connects to one host only, since what the guard allows depends on the URL's host."""

    def __init__(self, host: str, **options: Any) -> None:
        super().__init__(**options)
        self._host = host

    async def connect(self, req: aiohttp.ClientRequest, *args: Any, **options: Any) -> aiohttp.connector.Connection:
        if req.url.raw_host != self._host:
            raise ValueError("a connector was used for another host than its own")
        return await super().connect(req, *args, **options)


def is_local(address: IPAddress) -> bool:
    """Whether the address is a loopback or private address, and not a cloud metadata address."""
    form = (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address
    return _kind(form) is not Kind.METADATA and any(form in network for network in _LOCAL)


def is_public(address: IPAddress) -> bool:
    """Whether the guard allows the address to everybody."""
    return all(_kind(form) is None for form in (*_embedded(address), address))


def _holds(entry: Allowed, addresses: tuple[IPAddress, ...]) -> bool:
    return entry.network is not None and any(address in entry.network for address in addresses)


def _remedy(kinds: Sequence[Kind], address: IPAddress, port: int, host: str) -> str:
    if Kind.METADATA in kinds:
        return "set the endpoint's own URL: this address gives out the machine's credentials"
    entry = f"[{address}]:{port}" if isinstance(address, IPv6Address) else f"{address}:{port}"
    if not host or parse_address(host) is not None or not NEVER_BY_NAME.isdisjoint(kinds):
        return f"add {entry} to {WHERE}"
    return f"add {entry}, or {host}:{port} if who answers for that name can be trusted, to {WHERE}"


def _kind(address: IPAddress) -> Kind | None:
    for network, kind in _FORBIDDEN.items():
        if address in network:
            return kind
    if address.is_unspecified:
        return Kind.UNSPECIFIED
    if address.is_loopback:
        return Kind.LOOPBACK
    if address.is_link_local:
        return Kind.LINK_LOCAL
    if address.is_multicast:
        return Kind.MULTICAST
    if address.is_private:
        return Kind.PRIVATE
    return None if address.is_global else Kind.RESERVED


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


def parse_address(host: str) -> IPAddress | None:
    """Return the address of a numeric host, or None for a name.

    Understands every notation that getaddrinfo accepts, such as 2130706433, 0x7f.1 and 0177.1.
    """
    try:
        return ip_address(host)
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))
    except (OSError, UnicodeEncodeError):
        return None
