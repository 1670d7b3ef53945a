"""The API as an application of Ray Serve: `serve.deployment:build`, started by `agent-rft serve` and by what deploys
Ray Serve's configurations (`import_path`, with `Settings` as `args`).

Arguments are shown on Ray's dashboard and hold no secret: the database's URL and the key that seals secrets come from
the environment of Ray's processes (AGENT_RFT_DATABASE, AGENT_RFT_FILES, AGENT_RFT_SECRET_KEY), or from the folder.

Requests come through Ray Serve's proxies, which cost three times what the API itself does; or, where one machine is all
there is, the replica listens itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import ray
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from ray import serve as ray_serve
from ray.serve import Application

from actors.runtime.exporter import MetricsAddress, start_telemetry
from actors.runtime.recorder import Recorder
from cluster.jobs.driver_settings import DriverSettings
from cluster.jobs.launcher import RayLauncher
from cluster.ray_cluster.session import is_local, job_server_of
from cluster.stores.job_store import JobStore
from serve.host.listener import STOP_S, listening
from serve.host.services import Services
from serve.host.state import Places, ServerState
from serve.http.app import Lifespan, create_app
from serve.inference.model_apps import EngineResources, RayServeModels
from trainer.errors import UserError
from trainer.spec.operator import Operator
from trainer.spec.operator_file import load_operator

APP, DEPLOYMENT = "agent-rft", "api"
MAX_REQUESTS = 1_000
"""What one replica works on at a time; more of them wait in the proxy."""

Background = Callable[[], Coroutine[Any, Any, None]]


class Settings(BaseModel):
    """`folder` and `config` (the operator's file) have the same path on every node. `replicas` of the API: several
    want PostgreSQL. `listen`: the host and port at which a replica takes requests itself.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: str
    config: str | None = None
    replicas: Annotated[int, Field(ge=1)] = 1
    listen: tuple[str, int] | None = None


def build(args: Settings) -> Application:
    """Raises:
    UserError: what was asked for cannot be.
    """
    if args.replicas > 1 and Places.of_folder(Path(args.folder)).database is None:
        raise UserError("several replicas want PostgreSQL: give AGENT_RFT_DATABASE, or replicas: 1")
    deployment = ray_serve.deployment(Api).options(
        name=DEPLOYMENT,
        num_replicas=args.replicas,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=MAX_REQUESTS,
        graceful_shutdown_timeout_s=STOP_S,
        graceful_shutdown_wait_loop_s=0.2,
    )
    application: Application = deployment.bind(args)
    return application


build.__annotations__["args"] = Settings  # Ray Serve looks for the class itself, and checks what it is given against it


@ray_serve.ingress()
class Api:
    """A replica."""

    def __init__(self, args: Settings) -> None:
        """Raises:
        RftError: the folder, the database or the operator's file cannot be used.
        """
        operator = load_operator(None if args.config is None else Path(args.config), Path(args.folder))
        places = Places.of_folder(Path(args.folder))
        state = ServerState(places, operator)
        address = ray.get_runtime_context().gcs_address
        settings = driver_settings(places, state.database.url, args.config, address)
        hosting = RayServeModels(operator.engines, EngineResources.of(operator.engines, ray.cluster_resources()))
        launcher = RayLauncher(settings, job_server_of(address))
        replica = ray_serve.get_replica_context().rank.rank
        recorder = start_telemetry(MetricsAddress.of("api", local=is_local(address)), f"api-{replica}")
        recorder.add(JobStore(state.database).live)
        self._parts = state, Services(state, operator, launcher, hosting), operator, recorder
        self._listen = args.listen

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Ray Serve's: called once, after the constructor."""
        return app_of(*self._parts, listen=self._listen, behind_proxy=self._listen is None)


def app_of(
    state: ServerState,
    services: Services,
    operator: Operator,
    recorder: Recorder | None = None,
    *,
    listen: tuple[str, int] | None = None,
    behind_proxy: bool = False,
) -> FastAPI:
    """The whole API on these stores and services, which end with it."""
    return create_app(
        services.routers,
        state.keys,
        limits=operator.limits,
        lifespan=beside([state.keep_clean, services.run], state.close, listen),
        recorder=recorder,
        behind_proxy=behind_proxy,
    )


def beside(tasks: Sequence[Background], close: Callable[[], None], listen: tuple[str, int] | None = None) -> Lifespan:
    """A lifespan in which `tasks` run until the app ends, and in which it takes requests at `listen`; `close` is called
    when they have ended.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        running = [asyncio.create_task(task()) for task in tasks]
        try:
            if listen is None:
                yield
            else:
                async with listening(app, *listen):
                    yield
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            close()

    return lifespan


def driver_settings(places: Places, database: str, config: str | None, address: str) -> DriverSettings:
    """What drivers of jobs need to know."""
    folder = str(places.folder.resolve())
    path = None if config is None else str(Path(config).resolve())
    return DriverSettings(folder=folder, database=database, files=places.files, config=path, address=address)
