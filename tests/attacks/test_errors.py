"""Whatever fails, clients get a sentence and an id: no traceback, no path, no text of an error inside, no secret.

The driver and the check are real processes that die as a bug would make them; an admin reads what they wrote.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from ray.job_submission import JobStatus

from agent_rft.errors import EngineFailed
from agent_rft.serve.deployment import make_app
from agent_rft.serve.host.server_state import ServerState, StateLocations
from agent_rft.serve.host.services import Services
from agent_rft.serve.inference.model_server import Answers, AppState
from agent_rft.serve.jobs.job_logs import JobLogs
from agent_rft.serve.jobs.job_manager import JobManager, ManagerConfig
from agent_rft.serve.jobs.processes.driver_settings import DriverSettings
from agent_rft.serve.jobs.ray_launcher import RayLauncher
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.key_store import Scope
from agent_rft.serve.stores.model_registry import ModelRecord
from agent_rft.spec.operator.operator_config import OperatorConfig, ServerLimits
from tests.support.bad_requests import SECRET
from tests.support.jobs import BODY

INNER = f"OSError: [Errno 5] /home/operator/models: Authorization: Bearer {SECRET}"
"""The text of an error inside of the server."""
DRIVER = f"""
import os, sys
if "--check" in sys.argv and {{check_works}}:
    open(sys.argv[-1], "w").write("[]")
else:
    raise OSError(5, {INNER!r}, "/home/operator/models")
"""
LEAKS = ("Traceback", 'File "', "/home/", "site-packages", "OSError", "builtins.", "0x7f", SECRET)
NAMES: dict[str, Scope] = {"maker": "write", "admin": "admin"}


class JobServer:
    """The client of a cluster's job server, which runs each driver as Ray does: by a shell."""

    def __init__(self) -> None:
        self.drivers: dict[str, subprocess.Popen[bytes]] = {}

    def submit_job(self, *, entrypoint: str, submission_id: str) -> None:
        self.drivers[submission_id] = subprocess.Popen(entrypoint, shell=True)

    def get_job_info(self, handle: str) -> Any:
        code = self.drivers[handle].wait()
        return Ended(JobStatus.FAILED, f"Job entrypoint command failed with exit code {code}: {INNER}", code)


@dataclass
class Ended:
    status: JobStatus
    message: str
    driver_exit_code: int


class FailingModels:
    """Served models (a Hosting) that fail as `fails` says."""

    fails: Exception = EngineFailed(INNER)

    def app_names(self, record: ModelRecord) -> list[str]:
        return ["model"]

    async def states(self) -> dict[str, AppState]:
        return {"model": AppState.RUNNING}

    async def answer(self, name: str, record: ModelRecord, body: Mapping[str, Any], *, stream: bool) -> Answers:
        yield None
        raise self.fails


class Server:
    """A whole server in a folder, on a cluster whose drivers all die; every answer to a client is kept in `told`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.operator = OperatorConfig(
            aliases={"gpt-5": str(folder)}, limits=ServerLimits(requests_per_minute=10**6), jobs={"max_running": 1}
        )
        self.state = ServerState(StateLocations(folder), self.operator)
        self.keys = {name: self.state.keys.create(name, [scope])[1] for name, scope in NAMES.items()}
        self.models: Any = FailingModels()
        self.told: list[str] = []
        services = Services(self.state, self.operator, self.launcher(), self.models)
        transport = httpx.ASGITransport(make_app(self.state, services, self.operator), raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://server")

    def launcher(self, check_works: bool = True) -> RayLauncher:
        settings = DriverSettings(str(self.folder), self.state.database.url)
        program = (sys.executable, "-c", DRIVER.format(check_works=check_works))
        job_server = JobServer()
        return RayLauncher(settings, "", program, lambda url: job_server)

    async def ask(self, method: str, path: str, name: str = "maker", **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.keys[name]}"}
        answer = await self.http.request(method, f"/v1{path}", headers=headers, **options)
        if name != "admin":
            self.told.append(answer.text)
        return answer

    async def failed_job(self, check_works: bool) -> str:
        """The id of a job that was managed until it failed."""
        form: Any = {"files": {"file": ("a.jsonl", b"{}")}, "data": {"purpose": "fine-tune"}}
        file_id = (await self.ask("POST", "/files", **form)).json()["id"]
        made = (await self.ask("POST", "/fine_tuning/jobs", json=BODY | {"training_file": file_id})).json()
        store, logs = JobStore(self.state.database), JobLogs(self.folder)
        manager = JobManager(store, self.launcher(check_works), logs, ManagerConfig())
        async with asyncio.timeout(60):
            while store.get(made["id"]).status != "failed":
                await manager.tick()
                await manager.wait_for_checks()
        return str(made["id"])

    def check_told(self) -> None:
        for leak in (*LEAKS, str(self.folder)):
            assert not [text for text in self.told if leak in text], leak


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path)
    async with server.http:
        yield server
    server.state.close()


@pytest.mark.parametrize(("check_works", "code"), [(True, "driver_lost"), (False, "check_failed")])
async def test_clients_learn_why_a_job_failed_and_admins_what_its_processes_wrote(
    server: Server, check_works: bool, code: str
) -> None:
    job_id = await server.failed_job(check_works)
    error = (await server.ask("GET", f"/fine_tuning/jobs/{job_id}")).json()["error"]
    assert error["code"] == code and f"`agent-rft jobs log {job_id}`" in error["message"]
    assert "ended with exit code 1" in error["message"]
    await server.ask("GET", f"/fine_tuning/jobs/{job_id}/events")
    refused = await server.ask("GET", f"/fine_tuning/jobs/{job_id}/log")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_scope")
    server.check_told()

    log = (await server.ask("GET", f"/fine_tuning/jobs/{job_id}/log", "admin")).json()
    attempts = [1, 2, 3] if check_works else []
    assert [output["attempt"] for output in log["outputs"]] == [0, *attempts]
    died = [output["text"] for output in log["outputs"] if not check_works or output["attempt"] in attempts]
    assert all("Traceback" in text and "/home/operator" in text for text in died)
    assert SECRET not in str(log) and "[redacted]" in str(log)


REQUESTS: dict[str, tuple[str, str, Any]] = {
    "no JSON": ("POST", "/fine_tuning/jobs", {"content": b"\xff{"}),
    "an unknown model": ("POST", "/fine_tuning/jobs", {"json": BODY | {"model": "/home/x"[::-1]}}),
    "an unknown file": ("POST", "/fine_tuning/jobs", {"json": BODY}),
    "an unknown job": ("GET", "/fine_tuning/jobs/ftjob-1", {}),
    "a wrong cursor": ("GET", "/fine_tuning/jobs?after=x", {}),
    "a file that is gone": ("GET", "/files/file-1/content", {}),
    "a tool that nobody serves": (
        "POST", "/fine_tuning/alpha/tool/run", {"json": {"name": "t", "server_url": "https://tool.invalid/x"}},
    ),
    "a private tool": (
        "POST", "/fine_tuning/alpha/tool/run", {"json": {"name": "t", "server_url": f"http://a:{SECRET}@127.0.0.1/"}},
    ),
    "a grader that is not valid Python": (
        "POST", "/fine_tuning/alpha/graders/validate", {"json": {"grader": {"type": "python", "source": "def ("}}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REQUESTS)
async def test_no_refused_request_is_told_more_than_a_sentence(server: Server, what: str) -> None:
    method, path, options = REQUESTS[what]
    answer = await server.ask(method, path, **options)
    assert 400 <= answer.status_code < 500 and answer.json()["error"]["message"]
    server.check_told()


BUGS = (EngineFailed(INNER), OSError(INNER), RuntimeError(f"Traceback (most recent call last):\n {INNER}"))


@pytest.mark.parametrize("error", BUGS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_served_model_that_fails_says_so_and_no_more(server: Server, error: Exception, stream: bool) -> None:
    server.models.fails = error
    messages = [{"role": "user", "content": "hi"}]
    answer = await server.ask(
        "POST", "/chat/completions", json={"model": "gpt-5", "messages": messages, "stream": stream}
    )
    assert answer.status_code >= 500 and answer.json()["error"]["type"] == "server_error"
    assert answer.headers["x-request-id"]
    server.check_told()


async def test_files_that_cannot_be_written_are_no_paths(server: Server) -> None:
    kept = server.folder / "files"
    for path in (*kept.rglob("*"), kept):
        path.rmdir() if path.is_dir() else path.unlink()
    kept.write_text("")
    form: Any = {"files": {"file": ("a.jsonl", b"{}")}, "data": {"purpose": "fine-tune"}}
    assert (await server.ask("POST", "/files", **form)).status_code >= 500
    server.check_told()
