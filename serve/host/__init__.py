"""The parts of one server: its state, its services and its listening socket.

`agent_rft.serve.deployment` and `agent_rft.serve.serve_command` start a server from these parts.
"""


def format_url(host: str, port: int) -> str:
    """Return the URL of a host and port, with brackets around an IPv6 address."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
