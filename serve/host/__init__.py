"""What one server consists of: its state, its services and its listening socket.

How a server is deployed is in `serve.deployment` and `serve.local`.
"""


def url_of(host: str, port: int) -> str:
    """Return the URL of a listening address; an IPv6 address gets brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
