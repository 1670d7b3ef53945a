"""What a server sealed is moved to where it does not belong: between uses, jobs, API keys and servers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from agent_rft.errors import UnsealFailed
from agent_rft.serve.inference import responses
from agent_rft.serve.jobs.job_service import JobService
from agent_rft.serve.jobs.processes.driver_settings import DriverSettings, ServerAccess
from agent_rft.serve.routes import job_routes
from agent_rft.serve.stores.database import Database
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.job_tables import JobRow
from agent_rft.serve.stores.migration import migrate
from agent_rft.serve.stores.sealed_secrets import SecretBox
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from tests.support.api import client_of
from tests.support.bad_requests import SECRET
from tests.support.fake_models import FakeModels, turn
from tests.support.jobs import BODY, NO_LOGS, KnownFiles, KnownModels

REASONING = "the customer's number is 17"


class Victim:
    """A server with jobs and a model that thinks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = Database.from_folder(folder)
        migrate(self.database)
        self.store = JobStore(self.database)
        self.box = SecretBox.from_folder(folder, {})
        self.models = FakeModels(*[turn("hello", reasoning=REASONING)] * 10)
        jobs = JobService(self.store, KnownModels(), KnownFiles(), self.box, DEFAULT_CONFIG, NO_LOGS)
        routers = [job_routes.make_router(jobs), responses.make_router(self.models, DEFAULT_CONFIG, self.box)]
        self.http = client_of(routers)

    async def job(self, **changes: Any) -> str:
        answer = await self.http.post("/v1/fine_tuning/jobs", json=BODY | changes)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    async def sealed_reasoning(self, token: str) -> str:
        """The sealed reasoning that the owner of an API key got."""
        body = {"model": "gpt-5", "input": "hi", "reasoning": {}, "include": ["reasoning.encrypted_content"]}
        answer = await self.http.post("/v1/responses", json=body, headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["output"][0]["encrypted_content"])

    async def echo(self, sealed: str, token: str = "sk-rft-write") -> httpx.Response:
        """A client sends a sealed string back as reasoning; the model would see what is in it."""
        item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed}
        said = {"role": "assistant", "content": "hello"}
        body = {"model": "gpt-5", "input": [{"role": "user", "content": "hi"}, item, said]}
        return await self.http.post("/v1/responses", json=body, headers={"Authorization": f"Bearer {token}"})


@pytest.fixture
async def victim(tmp_path: Path) -> AsyncIterator[Victim]:
    victim = Victim(tmp_path)
    async with victim.http:
        yield victim
    victim.database.close()


def check_refused(victim: Victim, answer: httpx.Response, secret: str) -> None:
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == "invalid_encrypted_content"
    assert secret not in answer.text and secret not in json.dumps([dict(call) for call in victim.models.bodies])


async def test_a_sealed_job_is_not_opened_as_reasoning(victim: Victim) -> None:
    sealed = victim.store.get(await victim.job()).sealed_spec
    check_refused(victim, await victim.echo(sealed), SECRET)


async def test_reasoning_is_only_for_the_key_that_got_it(victim: Victim) -> None:
    sealed = await victim.sealed_reasoning("sk-rft-write")
    assert REASONING not in sealed
    assert (await victim.echo(sealed, "sk-rft-write")).status_code == 200
    victim.models.bodies.clear()
    check_refused(victim, await victim.echo(sealed, "sk-rft-of-a-test"), REASONING)


async def test_reasoning_sealed_for_the_same_key_elsewhere_is_refused(victim: Victim, tmp_path: Path) -> None:
    other = SecretBox.from_folder(tmp_path / "other", {}).sealer("reasoning", "sk-rft-write").seal(REASONING)
    check_refused(victim, await victim.echo(other), REASONING)


async def test_the_secrets_of_one_job_do_not_open_in_another(victim: Victim) -> None:
    """Who can write to the database, and no more, does not get a job's headers sent to his own tool."""
    rich, poor = await victim.job(seed=1), await victim.job(seed=2)
    with victim.database.session() as session:
        stolen = victim.store.get(rich).sealed_spec
        session.execute(update(JobRow).where(JobRow.id == poor).values(sealed_spec=stolen))
    server = ServerAccess(DriverSettings(str(victim.folder), victim.database.url))
    with pytest.raises(UnsealFailed):
        server.open_spec(victim.store.get(poor))
    server.close()


async def test_sealed_reasoning_is_not_opened_as_a_job(victim: Victim) -> None:
    job = await victim.job()
    reasoning = await victim.sealed_reasoning("sk-rft-write")
    with victim.database.session() as session:
        session.execute(update(JobRow).where(JobRow.id == job).values(sealed_spec=reasoning))
    server = ServerAccess(DriverSettings(str(victim.folder), victim.database.url))
    with pytest.raises(UnsealFailed):
        server.open_spec(victim.store.get(job))
    server.close()
