"""A server's folder of version 0289249 under today's server: its keys, files, jobs, secrets and models."""

from __future__ import annotations

import io
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from typing import Any

import httpx
import openai
import pytest
from fastapi.testclient import TestClient
from rich.console import Console

from cluster.jobs.driver import drive
from cluster.jobs.driver_settings import DriverSettings, Server
from cluster.jobs.logs import JobLogs
from cluster.jobs.manager import JobManager, ManagerConfig
from cluster.stores.job_store import JobStore
from cluster.stores.migrate import migrate
from cluster.stores.rotation import MasterRotation
from cluster.stores.secrets import FileSecrets
from serve.cli.follow import LiveProgress, follow
from serve.deployment import app_of
from serve.host.services import Services
from serve.host.state import ServerState, StateLocations
from tests.support.api import openai_of
from tests.support.old_version import OldVersion
from tests.unit.cluster.jobs.test_manager import FakeCluster
from trainer.errors import UserError
from trainer.spec.operator.config_file import load_operator

STATUSES = ("validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled")
TERMINAL = ("succeeded", "failed", "cancelled")


@asynccontextmanager
async def api(old: OldVersion) -> AsyncIterator[Callable[[str], openai.AsyncOpenAI]]:
    """The whole API over the folder, without a cluster; yields a maker of clients with the key of a name."""
    operator = load_operator(old.home / "job" / "agent-rft.yaml")
    state = ServerState(StateLocations.of_folder(old.server, {}), operator)
    nothing: Any = None
    app = app_of(state, Services(state, operator, nothing, nothing), operator)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        yield lambda name: openai_of(client, old.keys[name])
    state.close()


async def test_keys_do_what_they_did(old: OldVersion) -> None:
    async with api(old) as client_of:
        made = await client_of("write").files.create(file=("a.jsonl", b"{}"), purpose="fine-tune")
        with pytest.raises(openai.AuthenticationError):
            await client_of("revoked").models.list()
        with pytest.raises(openai.PermissionDeniedError):
            await client_of("limited").files.delete(made.id)
        with pytest.raises(openai.RateLimitError):  # it may ask twice a minute
            for _ in range(3):
                await client_of("limited").models.list()


async def test_what_has_no_known_owner_is_deleted_with_the_scope_write_as_before(old: OldVersion) -> None:
    async with api(old) as client_of:
        client = client_of("write")
        assert (await client.files.delete(old.files["bad"])).deleted
        done = await client.fine_tuning.jobs.retrieve(old.jobs["succeeded"])
        assert done.fine_tuned_model is not None and (await client.models.delete(done.fine_tuned_model)).deleted
        with pytest.raises(openai.PermissionDeniedError, match="requires admin"):
            await client.fine_tuning.jobs.cancel(old.jobs["paused"])
        assert (await client_of("admin").fine_tuning.jobs.cancel(old.jobs["paused"])).status == "cancelled"


async def test_files_are_listed_and_downloaded(old: OldVersion) -> None:
    async with api(old) as client_of:
        client = client_of("admin")
        listed = {file.id: file.filename async for file in client.files.list()}
        assert {listed[old.files[name]] for name in ("training", "bad")} == {"train.jsonl", "bad.jsonl"}
        content = await client.files.content(old.files["training"])
        assert content.content == (old.home / "job" / "train.jsonl").read_bytes()


@pytest.mark.parametrize("status", STATUSES)
async def test_a_job_of_each_state_has_its_events_and_checkpoints(old: OldVersion, status: str) -> None:
    async with api(old) as client_of:
        jobs = client_of("admin").fine_tuning.jobs
        assert {job.id async for job in jobs.list(limit=2)} == set(old.jobs.values())
        job = await jobs.retrieve(old.jobs[status])
        assert (job.status, job.training_file in old.files.values()) == (status, True)
        events = [event async for event in jobs.list_events(job.id, limit=3)]
        assert events[-1].message.startswith("Created fine-tuning job")
        assert len({event.id for event in events}) == len(events)
        checkpoints = [checkpoint async for checkpoint in jobs.checkpoints.list(job.id, limit=1)]
        steps = {checkpoint.step_number for checkpoint in checkpoints}
        assert {"succeeded": {2}, "running": {2}}.get(status, steps) == steps
        assert (len(steps) > 0) == (status in ("succeeded", "running", "paused"))
        assert (job.finished_at is not None) == (status in TERMINAL)


async def test_what_a_job_has_told_is_told_again(old: OldVersion) -> None:
    async with api(old) as client_of:
        client = client_of("admin")
        failed = await client.fine_tuning.jobs.retrieve(old.jobs["failed"])
        assert failed.error is not None and failed.error.code == "invalid_training_file"
        done = await client.fine_tuning.jobs.retrieve(old.jobs["succeeded"])
        assert done.model == "gpt-5" and done.metadata == {"team": "a"} and done.error is None
        events = [event async for event in client.fine_tuning.jobs.list_events(done.id, limit=100)]
        assert {event.type for event in events} == {"message", "metrics"}
        content = await client.files.content(done.result_files[0])
        assert content.text.startswith("step,") and len(content.text.splitlines()) == 3
        models = [model.id async for model in client.models.list()]
        assert done.fine_tuned_model in models and "gpt-5" in models


def test_a_job_that_ended_is_followed_from_its_events_alone(old: OldVersion) -> None:
    operator = load_operator(old.home / "job" / "agent-rft.yaml")
    state = ServerState(StateLocations.of_folder(old.server, {}), operator)
    nothing: Any = None
    app = app_of(state, Services(state, operator, nothing, nothing), operator)
    headers = {"Authorization": f"Bearer {old.keys['admin']}"}
    client = TestClient(app, base_url="http://server/v1", headers=headers)
    job = client.get(f"/fine_tuning/jobs/{old.jobs['succeeded']}").json()
    console = Console(file=io.StringIO(), width=200)
    follow(client, job, LiveProgress(job, console))
    told = console.file.getvalue()  # type: ignore[attr-defined]
    assert "step 1/2: reward 0." in told and "step 2/2: reward 0." in told and "validation at step 2" in told
    state.close()


def test_a_tuned_model_has_the_settings_it_is_served_with(old: OldVersion) -> None:
    operator = load_operator(old.home / "job" / "agent-rft.yaml")
    state = ServerState(StateLocations.of_folder(old.server, {}), operator)
    tuned = JobStore(state.database).get(old.jobs["succeeded"]).fine_tuned_model
    assert tuned is not None
    model = state.models.resolve(tuned)
    assert (model.settings.max_completion_tokens, model.settings.context_length) == (24, 2048)
    assert model.folder == str(old.server / "runs" / old.jobs["succeeded"] / "checkpoints" / "step-000002")
    state.close()


# -- secrets -----------------------------------------------------------------------------------------------------------


def started(old: OldVersion) -> Server:
    """What a driver has, once the server that starts it has migrated the database."""
    server = Server(DriverSettings.read(old.server / "driver.json"))
    migrate(server.database)
    return server


def test_sealed_headers_are_opened(old: OldVersion) -> None:
    server = started(old)
    for job_id in old.jobs.values():
        (tool,) = server.spec(server.store.get(job_id)).reinforcement.tools
        assert tool.headers["Authorization"].get_secret_value() == f"Bearer {old.tool_token}"
    server.close()


async def test_headers_sealed_with_another_key_are_refused_with_the_remedy(old: OldVersion) -> None:
    (old.server / "secret.key").unlink()
    server = started(old)
    job = server.store.get(old.jobs["running"])
    with pytest.raises(UserError, match="restore the server's former key"):
        await drive(server, job.id, job.attempt)
    server.close()


def test_the_secret_is_changed_and_a_driver_that_has_read_its_job_before_goes_on(old: OldVersion) -> None:
    server = started(old)
    read_before = [server.store.get(job_id) for job_id in old.jobs.values()]
    former = (old.server / "secret.key").read_text()
    done = MasterRotation(server.database, FileSecrets(old.server / "secret.key")).run()
    assert done.num_sealed == len(old.jobs) and former not in (old.server / "secret.key").read_text()
    for record in read_before:
        (tool,) = server.spec(record).reinforcement.tools
        assert tool.headers["Authorization"].get_secret_value() == f"Bearer {old.tool_token}"
    server.close()


# -- jobs go on --------------------------------------------------------------------------------------------------------


class Manager:
    """A manager of today over the folder, on a cluster that has none of its drivers."""

    def __init__(self, old: OldVersion, later_s: float = 3600.0) -> None:
        self.server = started(old)
        self.cluster = FakeCluster()
        self._later_s = later_s
        clock: Callable[[], float] = lambda: time.time() + self._later_s  # noqa: E731
        self.store = JobStore(self.server.database, clock)
        self._manager = JobManager(self.store, self.cluster, JobLogs(old.server), ManagerConfig(), clock)

    async def tick(self) -> None:
        await self._manager.tick()
        await self._manager.validated()
        self._later_s += 60.0


async def test_jobs_that_ran_waited_or_were_validated_go_on_in_their_order(old: OldVersion) -> None:
    manager = Manager(old)
    running, queued = old.jobs["running"], old.jobs["queued"]
    await manager.tick()
    assert manager.cluster.drivers.keys() == {f"{running}-2"}, "its first driver is lost, and a second one continues"
    assert manager.cluster.validated == [old.jobs["validating_files"]]
    assert manager.store.get(old.jobs["validating_files"]).status == "queued"
    manager.store.move(running, "succeeded", attempt=2)
    manager.cluster.end(f"{running}-2")
    for _ in range(2):
        await manager.tick()
    assert manager.store.get(queued).status == "running" and f"{queued}-1" in manager.cluster.drivers
    manager.server.close()


async def test_a_paused_job_is_resumed_and_goes_on(old: OldVersion) -> None:
    manager = Manager(old)
    paused = old.jobs["paused"]
    for status in ("running", "queued", "validating_files"):
        manager.store.move(old.jobs[status], "cancelled")
    manager.store.move(paused, "queued")
    for _ in range(3):
        await manager.tick()
    assert manager.store.get(paused).status == "running" and f"{paused}-2" in manager.cluster.drivers
    manager.server.close()


# -- what cannot be opened ---------------------------------------------------------------------------------------------


def test_a_database_of_a_newer_version_is_refused_with_the_remedy(old: OldVersion) -> None:
    with closing(sqlite3.connect(old.server / "state.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '9001'")
    with pytest.raises(UserError, match=r"newer version of agent-rft \(revision 9001\); use that version, or restore"):
        ServerState(StateLocations(old.server), load_operator(old.home / "job" / "agent-rft.yaml"))
