"""The console over one run folder: the run as a job that only can be read, followed as it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.events import JobEnded, JobStarted, Notice, Outcome, StepDone
from agent_rft.serve.host.run_console import RunMirror, make_console_app
from agent_rft.serve.host.server_state import ServerState, StateLocations
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from tests.support.events import run_event
from tests.support.synthetic import Synthetic

JOBS, SESSION = "/v1/fine_tuning/jobs", "/v1/console/session"


@dataclass
class Opened:
    """A run that goes on, and its mirror. `browser` has a session."""

    run: Path
    store: JobStore
    mirror: RunMirror
    token: str
    browser: httpx.AsyncClient

    def write(self, *events: Any) -> None:
        folder = RunFolder(self.run)
        for event in events:
            folder.handle_event(run_event(event))
        folder.close()
        self.mirror.catch_up()

    async def log_in(self) -> httpx.Response:
        return await self.browser.post(SESSION, headers={"authorization": f"Bearer {self.token}"})

    async def get(self, path: str) -> Any:
        return (await self.browser.get(f"{JOBS}/{path}")).json()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    run = Synthetic().run(tmp_path / "runs" / "20260101-000000-ledger", steps=2, total=9, validation_every=2)
    state = ServerState(StateLocations(tmp_path / "own"), DEFAULT_CONFIG)
    key, token = state.keys.create("this run", ["read"])
    store = JobStore(state.database)
    mirror = RunMirror(store, tmp_path / "own" / "runs", run, key.id)
    mirror.catch_up()
    transport = httpx.ASGITransport(make_console_app(state, mirror, key, token))
    yield Opened(run.path, store, mirror, token, httpx.AsyncClient(transport=transport, base_url="http://server"))
    state.close()


async def test_the_key_works_once_and_its_session_goes_on(opened: Opened) -> None:
    assert (await opened.log_in()).json()["read_only"] is True
    (job,) = (await opened.browser.get(JOBS)).json()["data"]
    assert (job["suffix"], job["status"], job["model"]) == ("20260101-000000-ledger", "running", "base")
    opened.browser.cookies.clear()
    assert (await opened.browser.get(JOBS)).status_code == 401
    assert (await opened.log_in()).status_code == 401, "not even in the same moment"


async def test_of_requests_with_the_key_at_the_same_time_one_gets_the_session(opened: Opened) -> None:
    answers = await asyncio.gather(*(opened.log_in() for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [200, *[401] * 7]


async def test_the_run_is_shown_as_a_job(opened: Opened) -> None:
    await opened.log_in()
    id = opened.mirror.id
    assert len((await opened.get(f"{id}/metrics"))["data"]) == 2
    assert (await opened.get(f"{id}/rollouts?limit=3"))["has_more"]
    assert [one["step_number"] for one in (await opened.get(f"{id}/checkpoints"))["data"]] == [2]
    kinds = [event["type"] for event in (await opened.get(f"{id}/events?limit=100"))["data"]]
    assert kinds.count("metrics") == 2 and "message" in kinds
    text = (await opened.browser.get(f"{JOBS}/{id}")).text
    assert "-secret" not in text, "what the run folder has is without them, too"


async def test_nothing_can_be_changed(opened: Opened) -> None:
    await opened.log_in()
    for path in ("", f"/{opened.mirror.id}/cancel", f"/{opened.mirror.id}/pause"):
        answer = await opened.browser.post(f"{JOBS}{path}", json={}, headers={"origin": "http://server"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_scope")


@pytest.mark.parametrize(("outcome", "status"), [("done", "succeeded"), ("failed", "failed"), ("stopped", "cancelled")])
def test_what_the_run_writes_is_followed_to_its_end(opened: Opened, outcome: Outcome, status: str) -> None:
    opened.write(StepDone(step=3, total_steps=9, metrics={"step": 3.0, "total_steps": 9.0, "train_mean_reward": 0.5}))
    event = opened.store.events(opened.mirror.id)[0][0]
    assert (event.type, (event.data or {})["step"]) == ("metrics", 3)
    opened.write(JobEnded(outcome=outcome))
    assert opened.store.get(opened.mirror.id).status == status


def test_stored_events_have_kind_version_and_step(opened: Opened) -> None:
    """As on a server: without the step, the validation before the first step would not be the baseline."""
    opened.write(Notice(step=4, text="a message"))
    data = opened.store.events(opened.mirror.id)[0][0].data
    assert data == {"kind": "notice", "version": Notice.VERSION, "step": 4, "text": "a message"}


def test_a_run_that_was_stopped_and_resumed_is_running(opened: Opened) -> None:
    opened.write(JobEnded(outcome="stopped"), JobStarted(method="reinforcement", total_steps=9))
    assert opened.store.get(opened.mirror.id).status == "running"


def test_half_a_line_is_awaited(opened: Opened) -> None:
    path = opened.run / "events.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)[-1]
    before = len(opened.store.events(opened.mirror.id, limit=100)[0])
    with path.open("ab") as file:
        file.write(whole[:20])
        file.flush()
        opened.mirror.catch_up()
        assert len(opened.store.events(opened.mirror.id, limit=100)[0]) == before
        file.write(whole[20:])
    opened.mirror.catch_up()
    assert len(opened.store.events(opened.mirror.id, limit=100)[0]) == before + 1


def test_a_line_that_was_cut_off_by_a_full_disk_is_left_out(opened: Opened) -> None:
    path = opened.run / "events.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)[-1]
    before = len(opened.store.events(opened.mirror.id, limit=100)[0])
    with path.open("ab") as file:
        file.write(whole[:20] + b"\n" + whole)
    opened.mirror.catch_up()
    assert len(opened.store.events(opened.mirror.id, limit=100)[0]) == before + 1


def test_the_end_of_an_earlier_part_is_not_the_end_of_a_resumed_run(opened: Opened, tmp_path: Path) -> None:
    opened.write(JobEnded(outcome="stopped", error=""))
    assert opened.store.get(opened.mirror.id).status == "cancelled"
    run = RunFolder(opened.run)
    resumed = RunMirror(opened.store, tmp_path / "resumed", run, "owner", resumed=True)
    resumed.catch_up()
    assert opened.store.get(resumed.id).status == "running"
    run.handle_event(run_event(JobEnded(outcome="done", error="")))
    run.close()
    resumed.catch_up()
    assert opened.store.get(resumed.id).status == "succeeded"
