"""SSRF guard: restricts a job's endpoints to public addresses and addresses that the operator allows.

The address and port are checked when the socket is created. An earlier resolution of the host name, or an unusual
notation of a numeric address, therefore cannot bypass the check.
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

from agent_rft.actors.endpoints.network.response_limits import BoundedResponseHandler
from agent_rft.spec.operator.allowed_networks import AllowedDestination

IPAddress = IPv4Address | IPv6Address

WHERE = "allowed_networks in the operator's configuration (agent-rft.yaml, --config or AGENT_RFT_CONFIG)"


class AddressKind(StrEnum):
    """Kind of forbidden address."""

    METADATA = "a cloud metadata address"
    CARRIER = "a carrier-grade NAT address"
    RESERVED = "a reserved address"
    PRIVATE = "a private address"
    UNSPECIFIED = "an unspecified address"
    LOOPBACK = "a loopback address"
    LINK_LOCAL = "a link-local address"
    MULTICAST = "a multicast address"


NOT_ALLOWED_BY_HOST = frozenset(
    {AddressKind.METADATA, AddressKind.UNSPECIFIED, AddressKind.LINK_LOCAL, AddressKind.MULTICAST}
)
"""Kinds of addresses that the operator can allow by address, but not by host name.

If an allowed host name permitted such addresses, the owner of the name could redirect requests to them."""
_FORBIDDEN = {
    ip_network("168.63.129.16/32"): AddressKind.METADATA,
    ip_network("169.254.169.254/32"): AddressKind.METADATA,
    ip_network("169.254.170.0/24"): AddressKind.METADATA,
    ip_network("100.100.100.200/32"): AddressKind.METADATA,
    ip_network("fd00:ec2::254/128"): AddressKind.METADATA,
    ip_network("fd20:ce::254/128"): AddressKind.METADATA,
    ip_network("100.64.0.0/10"): AddressKind.CARRIER,
    ip_network("192.0.0.0/24"): AddressKind.RESERVED,
    ip_network("192.88.99.0/24"): AddressKind.RESERVED,
    ip_network("fec0::/10"): AddressKind.PRIVATE,
    ip_network("3fff::/20"): AddressKind.RESERVED,  # documentation (RFC 9637)
}
"""Kinds of forbidden networks that the module `ipaddress` does not recognize, or describes less precisely."""
_LOCAL = tuple(map(ip_network, ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7")))
"""Loopback and private networks (RFC 1918, RFC 4193)."""
_GLOBAL_UNICAST = ip_network("2000::/3")
"""The IPv6 network for public addresses.

IANA has reserved the other networks, such as 5f00::/16, or assigned them to purposes that are not public."""
_EMBEDDED_IPV4 = {  # IPv6 network -> right shift of the embedded IPv4 address in bits
    ip_network("::/96"): 0,  # IPv4-compatible, deprecated
    ip_network("::ffff:0:0/96"): 0,  # IPv4-mapped
    ip_network("::ffff:0:0:0/96"): 0,  # IPv4-translated (RFC 2765)
    ip_network("64:ff9b::/96"): 0,  # NAT64 (RFC 6052)
    ip_network("64:ff9b:1::/48"): 0,  # NAT64 of a site (RFC 8215)
    ip_network("2002::/16"): 80,  # 6to4
}
_SITE_NAT64 = ip_network("64:ff9b:1::/48")
_ISATAP = frozenset({0x00005EFE, 0x02005EFE})
"""Upper half of the interface id of an ISATAP address (RFC 5214), with any IPv6 prefix; the lower half is IPv4."""


class ForbiddenAddress(OSError):
    """Error: the guard forbids connections to `address`.

    `why` names the kind of address, and `fix` names the configuration entry that would allow the address. All instances
    have the same message. If messages differed, asyncio would combine several errors into one plain OSError.
    """

    def __init__(self, address: str, why: str, fix: str) -> None:
        super().__init__(errno.EACCES, "forbidden address")
        self.address = address
        self.why = why
        self.fix = fix


class AddressProblem(NamedTuple):
    """Problem with the numeric address in a URL, and the fix."""

    message: str
    fix: str


class AddressGuard:
    """Guard that permits connections only to public addresses and to the `allowed` destinations."""

    def __init__(self, allowed: Sequence[AllowedDestination] = ()) -> None:
        self._allowed = tuple(allowed)

    def check(self, address: IPAddress, port: int, host: str = "") -> None:
        """Check that a connection to `address` and `port` is allowed.

        `host` is the host of the request's URL, in yarl's spelling. The operator can also allow hosts by name.

        Raises:
            ForbiddenAddress: The connection is forbidden.
        """
        embedded = _extract_ipv4(address)
        if self._allows(address, port) or (embedded and all(self._allows(candidate, port) for candidate in embedded)):
            return
        kinds = [kind for candidate in (*embedded, address) if (kind := _classify(candidate)) is not None]
        if not kinds or (NOT_ALLOWED_BY_HOST.isdisjoint(kinds) and self._allows_host(host, port)):
            return
        if is_local(address) and self._allows_host(host, port, is_local_only=True):
            return
        other_ports = any(
            entry.port is not None and _contains_any(entry, (address, *embedded)) for entry in self._allowed
        )
        why = f"{kinds[0]} that is allowed on other ports, but not on port {port}" if other_ports else kinds[0].value
        raise ForbiddenAddress(str(address), why, _fix(kinds, address, port, host))

    def find_address_problem(self, url: str) -> AddressProblem | None:
        """Return a problem if the host of `url` is a forbidden numeric address, else None.

        A host name is not a problem here: its addresses are checked when a connection is made.
        """
        parsed = URL(url)
        address = parse_address(parsed.raw_host or "")
        if address is None:
            return None
        try:
            self.check(address, parsed.port or 0, parsed.raw_host or "")
        except ForbiddenAddress as error:
            return AddressProblem(f"its URL points to {error.address}, {error.why}", error.fix)
        return None

    def make_socket(self, host: str, info: tuple[Any, ...]) -> socket.socket:
        """Create a socket if its address is allowed. `info` is a getaddrinfo result for `host`, the host of the URL.

        Raises:
            ForbiddenAddress: The address is forbidden.
        """
        family, kind, protocol, _, (address, port, *_) = info
        self.check(ip_address(address), port, host)
        return socket.socket(family, kind, protocol)

    def make_connector(
        self, url: URL, resolver: AbstractResolver | None = None, **options: Any
    ) -> aiohttp.TCPConnector:
        """Create an aiohttp connector that connects only to the host of `url`, and only if the guard allows it."""
        host = url.raw_host or ""
        return _SingleHostConnector(host, resolver=resolver, socket_factory=partial(self.make_socket, host), **options)

    def _allows(self, address: IPAddress, port: int) -> bool:
        return any(entry.port in (None, port) and _contains_any(entry, (address,)) for entry in self._allowed)

    def _allows_host(self, host: str, port: int, is_local_only: bool = False) -> bool:
        return any(
            entry.port in (None, port) and entry.host == host and entry.is_local_only is is_local_only
            for entry in self._allowed
        )


class _SingleHostConnector(aiohttp.TCPConnector):
    """Connector that accepts requests to one host only, and bounds the responses.

    The guard checks every connection to this host.
    """

    def __init__(self, host: str, **options: Any) -> None:
        super().__init__(**options)
        self._host = host
        # aiohttp has no public way to count bytes.
        self._factory = partial(BoundedResponseHandler, loop=self._loop)  # type: ignore[assignment]

    async def connect(self, req: aiohttp.ClientRequest, *args: Any, **options: Any) -> aiohttp.connector.Connection:
        if req.url.raw_host != self._host:
            raise ValueError(f"this connector is only for the host {self._host}")
        return await super().connect(req, *args, **options)


def is_local(address: IPAddress) -> bool:
    """Return whether the address is a loopback or private address, but not a cloud metadata address."""
    candidate = (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address
    return _classify(candidate) is not AddressKind.METADATA and any(candidate in network for network in _LOCAL)


def is_public(address: IPAddress) -> bool:
    """Return whether the address is public. The guard allows public addresses by default."""
    return all(_classify(candidate) is None for candidate in (*_extract_ipv4(address), address))


def _contains_any(entry: AllowedDestination, addresses: tuple[IPAddress, ...]) -> bool:
    return entry.network is not None and any(address in entry.network for address in addresses)


def _fix(kinds: Sequence[AddressKind], address: IPAddress, port: int, host: str) -> str:
    if AddressKind.METADATA in kinds:
        return "set another URL: this address returns the node's cloud credentials"
    entry = f"[{address}]:{port}" if isinstance(address, IPv6Address) else f"{address}:{port}"
    if not host or parse_address(host) is not None or not NOT_ALLOWED_BY_HOST.isdisjoint(kinds):
        return f"add {entry} to {WHERE}"
    return f"add {entry} to {WHERE}, or add {host}:{port} there if you trust the owner of this host name"


def _classify(address: IPAddress) -> AddressKind | None:
    for network, kind in _FORBIDDEN.items():
        if address in network:
            return kind
    if address.is_unspecified:
        return AddressKind.UNSPECIFIED
    if address.is_loopback:
        return AddressKind.LOOPBACK
    if address.is_link_local:
        return AddressKind.LINK_LOCAL
    if address.is_multicast:
        return AddressKind.MULTICAST
    if address.is_private:
        return AddressKind.PRIVATE
    if isinstance(address, IPv4Address):
        return None if address.is_global else AddressKind.RESERVED
    is_translated = any(address in network for network in _EMBEDDED_IPV4)
    return None if is_translated or address in _GLOBAL_UNICAST else AddressKind.RESERVED


def _extract_ipv4(address: IPAddress) -> tuple[IPv4Address, ...]:
    """Return the IPv4 addresses that are embedded in an IPv6 address; traffic to the IPv6 address may reach them."""
    if isinstance(address, IPv4Address) or address in (IPv6Address("::"), IPv6Address("::1")):
        return ()
    if address.teredo is not None:
        return address.teredo
    bits = int(address)
    found = [IPv4Address(bits >> shift & 0xFFFFFFFF) for net, shift in _EMBEDDED_IPV4.items() if address in net]
    if bits >> 32 & 0xFFFFFFFF in _ISATAP:
        found.append(IPv4Address(bits & 0xFFFFFFFF))
    return (*(_extract_site_nat64(bits) if address in _SITE_NAT64 else ()), *found)


def _extract_site_nat64(bits: int) -> list[IPv4Address]:
    """Return the IPv4 addresses that a translator with a prefix of 48, 56 or 64 bits would reach (RFC 6052, 2.2).

    The prefix is unknown, so all readings count, except those in 0.0.0.0/8, which no translator can reach.
    """
    readings = [(bits >> 64 & 0xFFFF) << 16 | bits >> 40 & 0xFFFF]  # bits 64 to 71 are not part of the address
    readings += [(bits >> 64 & 0xFF) << 24 | bits >> 32 & 0xFFFFFF, bits >> 24 & 0xFFFFFFFF]
    return [IPv4Address(reading) for reading in readings if reading >> 24]


def parse_address(host: str) -> IPAddress | None:
    """Parse the host of a URL as an IP address; return None if the host is a name.

    Accepts every notation that getaddrinfo accepts, such as 2130706433, 0x7f.1 and 0177.1.
    """
    try:
        return ip_address(host)
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))
    except (OSError, UnicodeEncodeError):
        return None
