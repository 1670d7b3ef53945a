"""`agent-rft serve`: a cluster, Ray Serve on it with the API as an application, and an end in good order at the first
signal. The address is taken before anything starts, so that a port in use is one clear message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ray import serve as ray_serve
from ray.serve.config import HTTPOptions, ProxyLocation
from ray.serve.context import _get_global_client
from ray.serve.schema import LoggingConfig

from cluster.ray_cluster.session import end_leftover, job_cluster
from cluster.run.signals import Signals
from serve.host.listener import KEEP_ALIVE_S, held
from serve.host.state import Places, ServerState
from trainer.errors import RftError
from trainer.spec.operator import Operator

if TYPE_CHECKING:
    from serve.deployment import Settings


def run_server(
    places: Places,
    operator: Operator,
    host: str,
    port: int,
    address: str | None,
    tell: Callable[[str], None],
    config: Path | None = None,
) -> None:
    """Serve until a signal. `tell` gets the lines for whoever starts the server; `config` is the operator's file, which
    the API and drivers read again.

    Raises:
        RftError: why it cannot start.
    """
    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # it tells each step of each deployment
    note = places.folder / "cluster.json"
    end_leftover(note)
    # On a cluster that runs already, Ray Serve's proxy listens, elsewhere or here already.
    with held(host, port) if address is None or port == 0 else nullcontext(port) as port:
        state = ServerState(places, operator)
        try:
            places.note()
            token = state.first_key()
        finally:
            state.close()
        if token is not None:
            tell(f"API key, shown this once: {token}")
        # What the API is made of takes as long to import as Ray takes to start.
        with job_cluster(address, note, meanwhile=partial(import_module, "serve.deployment")):
            from serve.deployment import APP, Settings
            from serve.inference.model_apps import only_models_left, remove_models

            listen = None
            if address is None:
                listen = host, port
                start_serve(ProxyLocation.Disabled)
            else:
                found = _get_global_client(raise_if_no_controller_running=False) is not None
                host, port = start_serve(ProxyLocation.HeadOnly, host, port)
            path = None if config is None else str(config.resolve())
            deploy(Settings(folder=str(places.folder.resolve()), config=path, listen=listen))
            shown = f"[{host}]" if ":" in host else host
            asyncio.run(_until_signal(lambda: tell(f"serving at http://{shown}:{port}/v1 (docs at /docs)")))
            if address is None:
                ray_serve.delete(APP)  # answers that are under way; all else ends with the cluster
            else:
                remove_models()
                ray_serve.delete(APP)
                if not found and only_models_left():  # a node waits 30 s for Ray Serve's actors before it ends
                    ray_serve.shutdown()


def start_serve(proxies: ProxyLocation, host: str = "127.0.0.1", port: int = 0) -> tuple[str, int]:
    """Ray Serve; where its proxy listens, which is elsewhere if it ran before.

    Raises:
        RftError: it did not start.
    """
    try:
        ray_serve.start(
            proxy_location=proxies,
            http_options=HTTPOptions(host=host, port=port, keep_alive_timeout_s=KEEP_ALIVE_S),
            logging_config=LoggingConfig(log_level="ERROR", enable_access_log=False),
        )
        options = _get_global_client().http_config
    except Exception as error:  # Ray raises bare ones
        raise RftError(f"Ray Serve did not start: {error}") from error
    return options.host, options.port


def deploy(settings: Settings) -> None:
    """Raises:
    RftError: why the API is not served.
    """
    from serve.deployment import APP, build

    try:
        ray_serve.run(build(settings), name=APP, route_prefix="/")
    except RuntimeError as error:
        raise RftError(f"the API did not start: {error}") from error


async def _until_signal(ready: Callable[[], None]) -> None:
    """`ready` is called when signals are ours: Ray's own handler of SIGTERM ends the process on the spot."""
    stopped = asyncio.Event()
    with Signals() as signals, signals.graceful(stopped.set):
        ready()
        await stopped.wait()
