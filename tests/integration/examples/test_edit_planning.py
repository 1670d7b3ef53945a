"""Edit planning's machines under the product's own sessions and tool calls: each that was opened is closed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_rft.actors.runtime.timing import Timing
from agent_rft.actors.tools.dispatcher import Dispatcher
from agent_rft.actors.tools.session_journal import ToolSessionJournal
from agent_rft.actors.tools.tool_sessions import ToolSessions
from agent_rft.errors import ToolFailed
from agent_rft.spec.endpoints import SessionSpec, ToolSpec
from agent_rft.types import ToolCall
from examples.common.way import listening
from examples.edit_planning.history import write_missing
from examples.edit_planning.machines import Machines
from examples.edit_planning.repositories import Repositories
from examples.edit_planning.server import make_app
from tests.support.fakes_http import LOCAL, until
from tests.support.paths import ROOT

NUM_SESSIONS = 500
MAX_OPEN = 16
ROWS = [json.loads(line) for line in (ROOT / "examples/edit_planning/data/few.jsonl").read_text().splitlines()]
JOB = """
import asyncio, json, sys
from pathlib import Path
from agent_rft.actors.tools.tool_sessions import ToolSessions
from agent_rft.spec.endpoints import SessionSpec
from agent_rft.spec.operator.operator_config import OperatorConfig

async def main(spec, journal, item):
    book = ToolSessions(SessionSpec.model_validate(spec), journal, OperatorConfig(allowed_networks=["127.0.0.0/8"]))
    await asyncio.gather(*(book.start(f"killed_{i}", item) for i in range(spec["max_open"])))
    print("open", flush=True)
    await asyncio.Event().wait()

spec, journal, item = sys.argv[1:]
asyncio.run(main(json.loads(spec), Path(journal), json.loads(item)))
"""
SERVER = """
import json, os, sys, tempfile
from pathlib import Path
from fastapi.testclient import TestClient

foreign = Path(tempfile.gettempdir()) / f"edit-planning-{os.getpid()}"
for number in range(1, 10):
    (foreign / "open" / str(number)).mkdir(parents=True)
from examples.edit_planning.server import app

start = {"type": "session_start", "trace_id": "a", "item": json.loads(sys.argv[1])}
assert TestClient(app).post("/session/start", json=start).status_code == 200
(own,) = set(foreign.parent.glob("edit-planning-*")) - {foreign}
print(oct(own.stat().st_mode & 0o777))
"""


async def quick_sleep(seconds: float) -> None:
    await asyncio.sleep(seconds / 100)


QUICK = Timing(sleep=quick_sleep)
"""Sleeps take a hundredth of their time."""


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Repositories:
    folder = tmp_path_factory.mktemp("repositories")
    write_missing(folder)
    return Repositories(folder)


@pytest.fixture
def machines(repositories: Repositories, tmp_path: Path) -> Machines:
    return Machines(repositories, tmp_path / "machines", max_open=MAX_OPEN)


@pytest.fixture
def url(machines: Machines) -> Iterator[str]:
    with listening(make_app(machines)) as url:
        yield url


def spec_of(url: str, **settings: Any) -> dict[str, Any]:
    return {"start_url": f"{url}/session/start", "end_url": f"{url}/session/end", "max_open": MAX_OPEN} | settings


def book_of(url: str, journal: Path, **settings: Any) -> ToolSessions:
    return ToolSessions(SessionSpec.model_validate(spec_of(url, **settings)), journal, LOCAL, timing=QUICK)


def left_behind(machines: Machines, tmp_path: Path) -> list[Path]:
    assert machines.counts()["open"] == 0
    return list((tmp_path / "machines" / "open").iterdir())


async def test_of_500_sessions_with_16_machines_none_is_lost_however_they_end(
    machines: Machines, url: str, tmp_path: Path
) -> None:
    """Graded, discarded, cancelled at the start, ended twice, and those of a job that is killed and starts again."""
    journal = tmp_path / "sessions.jsonl"
    command = (sys.executable, "-c", JOB, json.dumps(spec_of(url)), str(journal), json.dumps(ROWS[0]))
    job = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert job.stdout is not None
    assert await job.stdout.readline() == b"open\n"
    job.kill()
    await job.wait()
    assert machines.counts()["open"] == MAX_OPEN
    assert len(ToolSessionJournal(journal).open_sessions) == MAX_OPEN

    tool = ToolSpec.model_validate({"name": "shell", "server_url": f"{url}/tools/shell"})
    book, dispatcher = book_of(url, journal), Dispatcher([tool], LOCAL)
    plans = dict[str, bool]()

    async def rollout(number: int) -> None:
        trace_id, item = f"trace_{number}", ROWS[number % len(ROWS)]
        starting = asyncio.create_task(book.start(trace_id, item))
        if number % 10 == 3:
            await asyncio.sleep(0.001 * (number % 40))  # before its place, while it is opened, or afterwards
            starting.cancel()
        try:
            await starting
        except asyncio.CancelledError:
            return
        if number % 4 == 0:
            searches = [{"command": "ls"}, {"command": f"grep -rl {number}"}]
            calls = [ToolCall(f"{trace_id}/{i}", "shell", json.dumps(call)) for i, call in enumerate(searches)]
            first, _ = await dispatcher.call_turn(trace_id, item, calls)
            plans[trace_id] = "README.md" in first.output
        book.end(trace_id, "graded" if number % 3 else "discarded: tool_failed")
        if number % 5 == 0:
            end = {"type": "session_end", "trace_id": trace_id, "reason": "graded"}
            await client.post(f"{url}/session/end", json=end)

    async with httpx.AsyncClient(timeout=60) as client:
        await asyncio.gather(*map(rollout, range(MAX_OPEN, NUM_SESSIONS)))
        assert await book.close("job_done") == 0
        counts = (await client.get(f"{url}/machines")).json()
    await dispatcher.close()

    stats = book.stats()
    assert stats["recovered"] == MAX_OPEN
    assert counts["opened"] == counts["closed"] >= NUM_SESSIONS - NUM_SESSIONS // 10
    assert counts["opened"] == MAX_OPEN + stats["started"] and stats["start_failures"] == 0
    assert (counts["open"], counts["idle"], counts["refused"]) == (0, 0, 0)
    assert counts["most_open"] == MAX_OPEN
    assert len(plans) == 121 and all(plans.values())
    assert ToolSessionJournal(journal).open_sessions == []
    assert left_behind(machines, tmp_path) == []


async def test_a_job_that_wants_more_machines_than_there_are_waits_and_loses_none(
    machines: Machines, url: str, tmp_path: Path
) -> None:
    book = book_of(url, tmp_path / "sessions.jsonl", max_open=2 * MAX_OPEN)

    async def rollout(number: int) -> None:
        await book.start(f"trace_{number}", ROWS[0])
        await until(lambda: machines.counts()["refused"] > 0)
        book.end(f"trace_{number}", "graded")

    await asyncio.gather(*map(rollout, range(3 * MAX_OPEN)))
    assert await book.close("job_done") == 0
    counts = machines.counts()
    assert counts["opened"] == counts["closed"] == 3 * MAX_OPEN
    assert counts["refused"] > 0 and counts["most_open"] == MAX_OPEN
    assert left_behind(machines, tmp_path) == []


async def test_a_call_after_the_end_discards_its_rollout(machines: Machines, url: str) -> None:
    machines.open("trace_1", ROWS[0]["repository"], ROWS[0]["commit"])
    machines.close("trace_1")
    tool = ToolSpec.model_validate({"name": "shell", "server_url": f"{url}/tools/shell", "max_retries": 0})
    dispatcher = Dispatcher([tool], LOCAL)
    with pytest.raises(ToolFailed):
        await dispatcher.call_turn("trace_1", ROWS[0], [ToolCall("call_1", "shell", '{"command": "ls"}')])
    await dispatcher.close()


def test_a_server_shares_no_folder_with_one_that_had_its_process_number_and_leaves_none(
    repositories: Repositories, tmp_path: Path
) -> None:
    settings = {"TMPDIR": str(tmp_path), "EDIT_PLANNING_REPOSITORIES": str(repositories.folder)}
    command = (sys.executable, "-c", SERVER, json.dumps(ROWS[0]))
    done = subprocess.run(command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0o700\n"
    (foreign,) = tmp_path.iterdir()
    assert len(list((foreign / "open").iterdir())) == 9
