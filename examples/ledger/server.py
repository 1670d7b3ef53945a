"""Runs tools and grader as HTTP servers: `LEDGER_TOKEN=... python -m examples.ledger.server --ports-file F`.

One process with one app listens on two ports, one for the tools and one for the grader. The ports file exists only
while both ports accept connections, and is always complete. Without LEDGER_TOKEN, requests need no token, and the
server listens only on this host.
"""

import argparse
import ipaddress
import json
import os
import socket
import sys
from pathlib import Path
from typing import Final

import uvicorn
from fastapi import FastAPI

from examples.ledger.app import create_app
from examples.ledger.latency import Latency
from examples.ledger.world import World

TOKEN_VARIABLE: Final = "LEDGER_TOKEN"
# Longer than common clients keep an idle connection, so that no request is sent on a connection being closed.
KEEP_ALIVE_S: Final = 75
SHUTDOWN_S: Final = 2

Listeners = list[socket.socket]


class AnnouncingServer(uvicorn.Server):
    """Server that reports its ports when it is listening: in a file until it stops, or on the terminal."""

    def __init__(self, config: uvicorn.Config, ports_file: Path | None, ports: dict[str, int]) -> None:
        super().__init__(config)
        self._ports_file = ports_file
        self._ports = ports

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server, then write the ports file atomically, so that readers never see a part of it."""
        await super().startup(sockets)
        if self._ports_file is None:
            names = ", ".join(f"{name.removesuffix('_port')} on port {port}" for name, port in self._ports.items())
            print(f"{names}; Ctrl-C stops them", flush=True)
            return
        draft = self._ports_file.with_name(f"{self._ports_file.name}.{os.getpid()}")
        draft.write_text(json.dumps(self._ports) + "\n", encoding="utf-8")
        draft.replace(self._ports_file)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Remove the ports file, then shut down."""
        if self._ports_file is not None:
            self._ports_file.unlink(missing_ok=True)
        await super().shutdown(sockets)


def _bind(host: str, port: int, option: str) -> socket.socket:
    """Return a socket that is bound to a port; port 0 selects any free port.

    Raises:
        OSError: The port cannot be used. The message names the port, and the option that selects another port.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        fix = f"give another with {option}, and write it into job.yaml"
        raise OSError(error.errno, f"cannot listen on port {port} of {host}: {error.strerror}; {fix}") from error
    return listener


def _is_local(host: str) -> bool:
    """Return whether only this host can reach an address. The only host name that counts as local is localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.ledger.server", description="Ledger's tools and grader.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--tools-port", type=int, default=0, help="default: any free port")
    parser.add_argument("--grader-port", type=int, default=0, help="default: any free port")
    parser.add_argument("--ports-file", type=Path, help='written as {"tools_port": ..., "grader_port": ...}')
    parser.add_argument("--latency-median-s", type=float, help="slows the tools down: the median of their latency")
    parser.add_argument("--latency-p99-s", type=float, help="the 99th percentile of that latency")
    return parser


def prepare(
    app: FastAPI, addresses: dict[str, tuple[str, int]], ports_file: Path | None
) -> tuple[uvicorn.Server, Listeners]:
    """Return a server for the app, and a bound socket for each (host, port) in `addresses`, for its `run`.

    Removes a ports file that an earlier run left behind.

    Raises:
        OSError: A port is already in use.
    """
    if ports_file is not None:
        ports_file.parent.mkdir(parents=True, exist_ok=True)
        ports_file.unlink(missing_ok=True)
    listeners = {name: _bind(*address, f"--{name.replace('_', '-')}") for name, address in addresses.items()}
    ports = {name: listener.getsockname()[1] for name, listener in listeners.items()}
    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    return AnnouncingServer(config, ports_file, ports), list(listeners.values())


def main() -> None:
    """Serve until SIGINT or SIGTERM."""
    parser = _parser()
    options = parser.parse_args()
    if (options.latency_median_s is None) != (options.latency_p99_s is None):
        parser.error("--latency-median-s and --latency-p99-s must be given together")
    token = os.environ.get(TOKEN_VARIABLE, "").strip() or None
    if token is None and not _is_local(options.host):
        sys.exit(f"set {TOKEN_VARIABLE} to the token that callers must send: {options.host} is not this machine alone")
    latency = None
    if options.latency_median_s is not None:
        latency = Latency(options.latency_median_s, options.latency_p99_s)
    addresses = {"tools_port": (options.host, options.tools_port), "grader_port": (options.host, options.grader_port)}
    try:
        server, listeners = prepare(create_app(World(), token, latency), addresses, options.ports_file)
    except OSError as error:
        sys.exit(error.strerror)
    server.run(listeners)


if __name__ == "__main__":
    main()
