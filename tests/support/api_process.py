"""The whole API in a process of its own, on a real socket, without Ray.

`gpt-5`, its one model, answers at once, and streams without end. Jobs are accepted and never start.

    python -m tests.support.api_process FOLDER OPTIONS

OPTIONS are JSON: `deadlines`, `allowed_networks`, and limits of the operator. It prints its port and two keys.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from agent_rft.errors import Problem
from agent_rft.serve.deployment import make_app
from agent_rft.serve.host.listener import reserve_port
from agent_rft.serve.host.server_state import ServerState, StateLocations
from agent_rft.serve.host.services import Services
from agent_rft.serve.http.client_limits import Deadlines
from agent_rft.serve.inference.model_server import AppState
from agent_rft.serve.jobs.processes.driver_settings import DriverSettings
from agent_rft.serve.jobs.processes.request_check import CheckRequest
from agent_rft.serve.jobs.ray_launcher import RayLauncher
from agent_rft.serve.stores.model_registry import ModelRecord
from agent_rft.spec.operator.operator_config import OperatorConfig, ServerLimits
from tests.support.fake_models import USAGE, turn

PIECE = "x" * 16_384


class Ready:
    """A Hosting whose models always run."""

    def app_names(self, record: ModelRecord) -> list[str]:
        return [record.id]

    async def states(self) -> dict[str, AppState]:
        return {"gpt-5": AppState.RUNNING}

    async def idle_s(self, name: str) -> float | None:
        return 0.0

    async def answer(
        self, name: str, record: ModelRecord, body: Mapping[str, Any], *, stream: bool
    ) -> AsyncIterator[Any]:
        yield None
        frame = {"id": "chatcmpl-1", "created": 1, "model": name}
        if not stream:
            yield {**frame, "object": "chat.completion", "choices": [turn("1")], "usage": USAGE}
        while stream:
            choice = {"index": 0, "delta": {"content": PIECE}, "finish_reason": None, "logprobs": None}
            yield {**frame, "object": "chat.completion.chunk", "choices": [choice]}
            await asyncio.sleep(0)


class OnlyChecks:
    """A Launcher that checks requests."""

    def __init__(self, settings: DriverSettings) -> None:
        self._launcher = RayLauncher(settings, "")

    async def check_request(self, draft: CheckRequest) -> list[Problem]:
        return await self._launcher.check_request(draft)


class Unmanaged(Services):
    """Services without a manager of jobs: only clients and tests change a job's state."""

    async def run(self) -> None:
        await asyncio.Event().wait()


@dataclass(frozen=True, slots=True)
class Server:
    """A running server, with two keys that may write."""

    pid: int
    port: int
    tokens: tuple[str, str]

    def client(self, key: int = 0) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.tokens[key]}"}
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=60)


@contextmanager
def api_process(
    folder: Path, deadlines: Mapping[str, float], allowed_networks: Sequence[str] = (), **limits: int
) -> Iterator[Server]:
    """Start a server, and end it with the block."""
    options = json.dumps({"deadlines": deadlines, "allowed_networks": allowed_networks, **limits})
    command = [sys.executable, "-m", "tests.support.api_process", str(folder), options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            yield Server(process.pid, said["port"], tuple(said["tokens"]))
        finally:
            process.terminate()


async def serve(
    folder: Path, port: int, deadlines: Deadlines, allowed_networks: Sequence[str] = (), **more: int
) -> None:
    limits = ServerLimits(requests_per_minute=10**6, **more)
    operator = OperatorConfig(aliases={"gpt-5": str(folder)}, limits=limits, allowed_networks=tuple(allowed_networks))
    state = ServerState(StateLocations(folder), operator)
    tokens = [state.keys.create(name, ["write"])[1] for name in ("a", "b")]
    hosting: Any = Ready()
    launcher: Any = OnlyChecks(DriverSettings(str(folder), state.database.url))
    services = Unmanaged(state, operator, launcher, hosting, deadlines)
    app = make_app(state, services, operator, listen=("127.0.0.1", port), deadlines=deadlines)
    async with app.router.lifespan_context(app):
        print(json.dumps({"port": port, "tokens": tokens}), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with reserve_port("127.0.0.1", 0) as port:
        given = json.loads(sys.argv[2])
        asyncio.run(serve(Path(sys.argv[1]), port, Deadlines(**given.pop("deadlines")), **given))
