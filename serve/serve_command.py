"""`agent-rft serve`: starts or joins a Ray cluster, runs the API on Ray Serve and shuts down cleanly on a signal.

The port is reserved before anything else starts, so that an occupied port is reported immediately.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ray import serve as ray_serve
from ray.serve.config import HTTPOptions, ProxyLocation
from ray.serve.schema import LoggingConfig

from agent_rft.cluster.ray_cluster.ray_internals import serve_address, serve_is_running
from agent_rft.cluster.ray_cluster.ray_session import job_cluster, kill_leftover_cluster
from agent_rft.cluster.run.stop_signals import wait_for_signal
from agent_rft.errors import RftError
from agent_rft.rows.ownership import claim_folder, read_silence_s
from agent_rft.serve.host import format_url
from agent_rft.serve.host.listener import KEEP_ALIVE_S, reserve_port
from agent_rft.serve.host.server_log import LogFollower
from agent_rft.serve.host.server_state import FOLDER_MARKERS, ServerState, StateLocations
from agent_rft.serve.stores.database import make_private
from agent_rft.spec.operator.operator_config import OperatorConfig

if TYPE_CHECKING:
    from agent_rft.serve.deployment import ApiSettings


def run_server(
    locations: StateLocations,
    operator: OperatorConfig,
    host: str,
    port: int,
    address: str | None,
    notify: Callable[[str], None],
    config: Path | None = None,
) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP.

    Args:
        locations: Locations of the server's state.
        operator: The operator's configuration.
        host: Host to listen on.
        port: Port to listen on; 0 chooses a free port.
        address: Address of the Ray cluster to join; None starts a local cluster.
        notify: Prints a line for the user.
        config: Path of the operator's configuration file, for the API and the drivers.

    Raises:
        FolderOwned: Another server uses the folder.
        RftError: The server cannot start.
    """
    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # at lower levels it logs each step of each deployment
    with _claim_folder(locations, notify):
        _serve(locations, operator, host, port, address, notify, config)


def _claim_folder(locations: StateLocations, notify: Callable[[str], None]) -> AbstractContextManager[object]:
    """Return a context manager that claims the server's folder, unless PostgreSQL lets several servers share it."""
    if locations.database is not None:
        return nullcontext()
    fix = "; stop it, or give another --folder"
    make_private(locations.folder, FOLDER_MARKERS)
    ownership = claim_folder(locations.folder, fix=fix, notify=notify, silence_s=read_silence_s())
    # A server loses its folder if it was suspended for long, and another server may then use the database.
    ownership.on_lost(lambda: os.kill(os.getpid(), signal.SIGTERM))
    return ownership


def _serve(
    locations: StateLocations,
    operator: OperatorConfig,
    host: str,
    port: int,
    address: str | None,
    notify: Callable[[str], None],
    config: Path | None,
) -> None:
    note = locations.folder / "cluster.json"
    kill_leftover_cluster(note)
    # On an existing cluster, Ray Serve's proxy listens, possibly already on this port.
    with reserve_port(host, port) if address is None or port == 0 else nullcontext(port) as port:
        state = ServerState(locations, operator)
        try:
            locations.save()
            token = state.create_first_key()
        finally:
            state.close()
        if token is not None:
            notify(f"API key (shown only once): {token}")
        # Importing the API's modules takes as long as starting Ray, so do both concurrently.
        with (
            job_cluster(address, note, on_starting=partial(import_module, "agent_rft.serve.deployment")),
            LogFollower(locations.folder, _write_stderr),
        ):
            from agent_rft.serve.deployment import APP, ApiSettings
            from agent_rft.serve.inference.model_apps import has_only_model_apps, remove_models

            listen = None
            if address is None:
                listen = host, port
                start_serve(ProxyLocation.Disabled)
            else:
                was_running = serve_is_running()
                host, port = start_serve(ProxyLocation.HeadOnly, host, port)
            path = None if config is None else str(config.resolve())
            deploy(ApiSettings(folder=str(locations.folder.resolve()), config=path, listen=listen))
            url = format_url(host, port)
            ready = f"serving at {url}/v1 (docs at /docs)\nthe console is ready at {url}/"
            asyncio.run(wait_for_signal(partial(notify, ready)))
            if address is None:
                ray_serve.delete(APP)  # finishes the requests in progress; everything else ends with the cluster
            else:
                remove_models()
                ray_serve.delete(APP)
                # Without the shutdown, a stopping node waits 30 s for Ray Serve's actors.
                if not was_running and has_only_model_apps():
                    ray_serve.shutdown()


def start_serve(proxies: ProxyLocation, host: str = "127.0.0.1", port: int = 0) -> tuple[str, int]:
    """Start Ray Serve, and return the host and port of its proxy.

    If Ray Serve is already running, its proxy keeps its host and port, and the arguments have no effect.

    Raises:
        RftError: Ray Serve did not start.
    """
    try:
        ray_serve.start(
            proxy_location=proxies,
            http_options=HTTPOptions(host=host, port=port, keep_alive_timeout_s=KEEP_ALIVE_S),
            logging_config=LoggingConfig(log_level="ERROR", enable_access_log=False),
        )
        return serve_address()
    except Exception as error:  # Ray raises plain exceptions
        raise RftError(f"Ray Serve did not start: {error}") from error


def deploy(settings: ApiSettings) -> None:
    """Run the API as a Ray Serve application.

    Raises:
        RftError: The API did not start.
    """
    from agent_rft.serve.deployment import APP, build

    try:
        ray_serve.run(build(settings), name=APP, route_prefix="/")
    except RuntimeError as error:
        raise RftError(f"the API did not start: {error}") from error


def _write_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
