"""What one server consists of: its state, its services and its listening socket.

How a server is deployed is in `agent_rft.serve.deployment` and `agent_rft.serve.local`.
"""


def url_of(host: str, port: int) -> str:
    """Return the URL of a listening address; an IPv6 address gets brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
