"""The API as a Ray Serve application: `agent_rft.serve.deployment:build`.

`agent-rft serve` runs this application. To run it from a Ray Serve configuration, set `import_path` to the path above
and `args` to the fields of `ApiSettings`.

Ray's dashboard shows the arguments, so they contain no secrets. The database URL and the key that encrypts secrets come
from environment variables of Ray's processes (AGENT_RFT_DATABASE, AGENT_RFT_FILES, AGENT_RFT_SECRET_KEY), or else from
the server's folder.

On a cluster, requests arrive through Ray Serve's proxies, which use three times as much CPU time as the API. On a
single node, the replica therefore listens on the port itself.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import ray
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from ray import serve as ray_serve
from ray.serve import Application

from agent_rft.actors.runtime.grader_nodes import AVOID_PYTHON_GRADERS
from agent_rft.actors.runtime.telemetry.exporter import MetricsAddress, start_telemetry
from agent_rft.actors.runtime.telemetry.recorder import Recorder
from agent_rft.cluster.ray_cluster.ray_internals import bind_replica_to_loopback, job_server_url
from agent_rft.cluster.ray_cluster.ray_session import is_local_address
from agent_rft.errors import UserError
from agent_rft.serve.console import console_files
from agent_rft.serve.host.listener import STOP_S, serve_app
from agent_rft.serve.host.server_log import ServerLog
from agent_rft.serve.host.server_state import ServerState, StateLocations
from agent_rft.serve.host.services import Services
from agent_rft.serve.http.access_log import AccessLog
from agent_rft.serve.http.api_app import Lifespan, create_app
from agent_rft.serve.http.client_limits import DEADLINES, Deadlines
from agent_rft.serve.inference.model_apps import EngineResources, RayServeModels
from agent_rft.serve.jobs.processes.driver_settings import DriverSettings
from agent_rft.serve.jobs.ray_launcher import RayLauncher
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.spec.operator.operator_config import OperatorConfig
from agent_rft.spec.operator.operator_file import load_operator

APP, DEPLOYMENT = "agent-rft", "api"
MAX_REQUESTS = 1_000
"""Maximum number of concurrent requests per replica. Further requests wait in the proxy."""

Background = Callable[[], Coroutine[Any, Any, None]]


class ApiSettings(BaseModel):
    """Arguments of the Ray Serve application.

    `folder` (the server's folder) and `config` (the operator's file) must have the same path on every node. More than
    one replica requires PostgreSQL. If `listen` is set, the replica listens on this host and port instead of using Ray
    Serve's proxies.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: str
    config: str | None = None
    replicas: Annotated[int, Field(ge=1)] = 1
    listen: tuple[str, int] | None = None


def build(args: ApiSettings) -> Application:
    """Return the API as a Ray Serve application with these settings.

    Raises:
        UserError: `replicas` is above 1, but the database is not PostgreSQL.
    """
    if args.replicas > 1 and StateLocations.load(Path(args.folder)).database is None:
        raise UserError(f"replicas: {args.replicas} requires PostgreSQL; set AGENT_RFT_DATABASE, or set replicas to 1")
    deployment = ray_serve.deployment(ApiReplica).options(
        name=DEPLOYMENT,
        num_replicas=args.replicas,
        ray_actor_options={"num_cpus": 0, "label_selector": AVOID_PYTHON_GRADERS},
        max_ongoing_requests=MAX_REQUESTS,
        graceful_shutdown_timeout_s=STOP_S,
        graceful_shutdown_wait_loop_s=0.2,
    )
    application: Application = deployment.bind(args)
    return application


build.__annotations__["args"] = ApiSettings  # Ray Serve needs the class itself, not its name, to validate `args`


@ray_serve.ingress()
class ApiReplica:
    """Ray Serve replica that runs the API app."""

    def __init__(self, args: ApiSettings) -> None:
        """Open the server's state and connect the services to the cluster.

        Raises:
            RftError: The folder, the database or the operator's file cannot be used.
        """
        address = ray.get_runtime_context().gcs_address
        if is_local_address(address):
            bind_replica_to_loopback()
        replica = ray_serve.get_replica_context().rank.rank
        logging.getLogger().addHandler(ServerLog.for_replica(Path(args.folder), replica))
        operator = load_operator(None if args.config is None else Path(args.config), Path(args.folder))
        locations = StateLocations.load(Path(args.folder))
        state = ServerState(locations, operator)
        settings = make_driver_settings(locations, state.database.url, args.config, address)
        resources = EngineResources.from_limits(operator.engines, ray.cluster_resources())
        hosting = RayServeModels(operator.engines, resources, grows=operator.wait_for_nodes_s > 0)
        launcher = RayLauncher(settings, job_server_url(address))
        recorder = start_telemetry(
            MetricsAddress.from_environment("api", local=is_local_address(address)), f"api-{replica}"
        )
        recorder.add_source(JobStore(state.database).live_metrics)
        access_log = AccessLog(locations.folder / "logs" / f"access-{replica}.jsonl")
        self._parts = state, Services(state, operator, launcher, hosting), operator, recorder, access_log
        self._listen = args.listen

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the app. Ray Serve calls this once, after the constructor."""
        return make_app(*self._parts, listen=self._listen, behind_proxy=self._listen is None)


def make_app(
    state: ServerState,
    services: Services,
    operator: OperatorConfig,
    recorder: Recorder | None = None,
    access_log: AccessLog | None = None,
    *,
    listen: tuple[str, int] | None = None,
    behind_proxy: bool = False,
    deadlines: Deadlines = DEADLINES,
) -> FastAPI:
    """Return the API app for `services`. It closes `state` when it stops."""
    max_connections = min(operator.limits.max_connections, MAX_REQUESTS if behind_proxy else sys.maxsize)
    app = create_app(
        services.routers,
        state.keys,
        limits=operator.limits.model_copy(update={"max_connections": max_connections}),
        deadlines=deadlines,
        lifespan=make_lifespan([state.run_sweeps, services.run], state.close, listen, max_connections, deadlines),
        recorder=recorder,
        behind_proxy=behind_proxy,
        access_log=access_log,
        audit=state.audit,
        sessions=state.sessions,
        public_url=operator.public_url,
        checks={"database": state.database.check, "file_store": state.files.check},
    )
    console_files.mount_console(app)
    return app


def make_lifespan(
    tasks: Sequence[Background],
    close: Callable[[], None],
    listen: tuple[str, int] | None = None,
    max_connections: int = MAX_REQUESTS,
    deadlines: Deadlines = DEADLINES,
) -> Lifespan:
    """Return a lifespan that runs `tasks` while the app runs, and serves the app on `listen` if it is set.

    When the app stops, the lifespan cancels the tasks, waits until they have ended, and then calls `close`.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        running = [asyncio.create_task(task()) for task in tasks]
        gc.freeze()  # otherwise the garbage collections for a large body traverse all imported modules
        try:
            if listen is None:
                yield
            else:
                async with serve_app(app, *listen, max_connections, deadlines):
                    yield
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            close()

    return lifespan


def make_driver_settings(locations: StateLocations, database: str, config: str | None, address: str) -> DriverSettings:
    """Return the settings that the server passes to its job drivers."""
    folder = str(locations.folder.resolve())
    path = None if config is None else str(Path(config).resolve())
    return DriverSettings(folder=folder, database=database, files=locations.files, config=path, address=address)
