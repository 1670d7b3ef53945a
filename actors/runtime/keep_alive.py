"""TCP keep-alive for connections that are idle for up to several hours while the peer works.

NAT gateways, load balancers and firewalls drop connections that are idle for a few minutes (Azure's load balancer after
4, AWS's network load balancer after 6). Keep-alive probes prevent this. They also detect a dead peer, which otherwise
looks like a peer that is still working.
"""

from __future__ import annotations

import socket

KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 20, "TCP_KEEPCNT": 6}
"""Linux socket options: idle seconds before the first probe, seconds between probes, maximum unanswered probes."""


def set_keep_alive(connection: socket.socket) -> None:
    """Enable keep-alive probes on a TCP connection. The connection then fails 180 s after its peer disappears."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEP_ALIVE.items():
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
