"""Entry of the operator's `allowed_networks`: a network, an IP address or a host, with or without a port.

If a user runs a job on their own machine, `OperatorConfig.allowed_destinations` also contains entries for the job's
local endpoints.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

Network = IPv4Network | IPv6Network
EXAMPLES = ["127.0.0.1:8700", "10.20.0.0/16:443", "[fd00::5]:8000", "tools.internal:8000", "10.20.0.0/16"]
_PORT = re.compile(r"(?P<place>\[[^]]*\]|[^:]*):(?P<port>[0-9]{1,5})")
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""Number that must not be the last label of a host name. Some resolvers parse such a name as an IPv4 address."""


@dataclass(frozen=True, slots=True)
class AllowedDestination:
    """Network or host that jobs may connect to.

    Attributes:
        network: Allowed network; None if `host` is set.
        host: Allowed host in lower case; None if `network` is set.
        port: Allowed port; None for all ports.
        is_local_only: Whether only loopback and private addresses of `host` are allowed.
    """

    network: Network | None
    host: str | None
    port: int | None
    is_local_only: bool = False

    def __str__(self) -> str:
        """Return the entry as it is written in the configuration."""
        if self.network is None:
            place = str(self.host)
        else:
            single = self.network.num_addresses == 1 and self.port is not None
            place = str(self.network.network_address if single else self.network)
        if self.port is None:
            return place
        return f"[{place}]:{self.port}" if ":" in place else f"{place}:{self.port}"


def parse_allowed(text: str) -> AllowedDestination:
    """Parse an entry of `allowed_networks`.

    Raises:
        ValueError: The text is not a valid entry. The message explains common errors and never contains the text.
    """
    place, port = text, None
    network = _parse_network(text)
    if network is None and (match := _PORT.fullmatch(text)) is not None:
        place, port = match["place"], int(match["port"])
        if not 0 < port < 65536:
            raise ValueError("its port must be from 1 to 65535")
    if place.startswith("[") and place.endswith("]") and ":" in place:
        place = place[1:-1]
    network = _parse_network(place)
    if network is not None:
        return AllowedDestination(network, None, port)
    host = place.lower()
    if _HOST.fullmatch(host) and len(host) <= 254 and not _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
        return AllowedDestination(None, host, port)
    raise ValueError(_explain_invalid(place))


def _parse_network(text: str) -> Network | None:
    try:
        network = ip_network(text)
    except ValueError:
        return None
    return None if "%" in text else network  # a zone id is valid on one host only


def _explain_invalid(place: str) -> str:
    if "://" in place or "@" in place:
        return "a URL is not accepted: write only the host and the port"
    if "*" in place:
        return "wildcards are not supported: write each host, or a network"
    if "%" in place:
        return "zone ids are not accepted: remove the zone id"
    if place.count(":") > 1:
        return "if a port follows an IPv6 address, put the address in brackets, such as [fd00::5]:8000"
    if not place.isascii():
        return "write the host name in ASCII, with xn-- labels"
    return ""


def _validate(value: Any) -> AllowedDestination:
    if isinstance(value, AllowedDestination):
        return value
    why = ""
    if isinstance(value, str | IPv4Network | IPv6Network):
        try:
            return parse_allowed(str(value))
        except ValueError as error:
            why = f"; {error}" if str(error) else ""
    expected = (
        "must be a network, an address or a host, with or without a port, such as 10.0.0.0/8 or tools.internal:8000"
    )
    raise PydanticCustomError("ip_any_network", "{wanted}{why}", {"wanted": expected, "why": why})


AllowedEntry = Annotated[
    AllowedDestination,
    PlainValidator(_validate),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "examples": EXAMPLES}),
]
