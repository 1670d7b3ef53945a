"""A tool server that is down for a while during a real job: the job waits, trains each row, and reports the outage."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.errors import ToolFailed
from agent_rft.events import EndpointOutageEnded, EndpointOutageStarted, Event
from examples.ledger.services import services
from tests.chaos.jobs import ledger_job, read_to_end, read_until, training
from tests.e2e.command import marked, processes_left

STEPS, BATCH = 6, 8
DOWN_S = 12.0
DEADLINE_S = 120.0
MAX_LATE_S = 40.0
"""The longest time from the server's return to the end of the outage: probes are up to 16 s apart by then."""
POLL_S = 0.2


@contextmanager
def tool_server(folder: Path, port: int, environment: Mapping[str, str]) -> Iterator[int]:
    """Context manager of a server with the ledger's tools at a port, any free one for 0; it is killed at the end."""
    ports = folder / "ports.json"
    ports.unlink(missing_ok=True)
    command = [sys.executable, "-m", "examples.ledger.server", "--tools-port", str(port), "--ports-file", str(ports)]
    with subprocess.Popen(command, env=environment) as process:
        try:
            wait_until(ports.exists)
            yield json.loads(ports.read_text())["tools_port"]
        finally:
            process.kill()


class Page:
    """The console's pages of one run, as a browser reads them from `agent-rft train --open`."""

    def __init__(self, browser: httpx.Client, token: str) -> None:
        self._browser = browser
        self._browser.post("console/session", headers={"authorization": f"Bearer {token}"}).raise_for_status()
        (job,) = self._get("fine_tuning/jobs")["data"]
        self._job = f"fine_tuning/jobs/{job['id']}"

    def endpoints(self) -> dict[str, dict[str, Any]]:
        """The rows of the Fleet page's table of endpoints, by name."""
        return {one["name"]: one for one in self._get(f"{self._job}/live_status")["endpoints"]}

    def event_kinds(self) -> Counter[str]:
        """The number of the job's events of each kind."""
        return Counter(event["data"].get("kind") for event in self._get(f"{self._job}/events?limit=100")["data"])

    def _get(self, path: str) -> Any:
        return self._browser.get(path).raise_for_status().json()


@contextmanager
def console(run: Path, environment: Mapping[str, str]) -> Iterator[Page]:
    """Context manager of the console over a run folder."""
    command = [sys.executable, "-P", "-m", "agent_rft.serve.host.run_console", str(run)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            server, token = process.stdout.readline().strip().split("/#key=")
            with httpx.Client(base_url=f"{server}/v1/", timeout=30.0) as browser:
                yield Page(browser, token)
        finally:
            process.stdin.close()


def wait_until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, f"it did not happen within {DEADLINE_S:g} s"
        time.sleep(POLL_S)


def events_of(run: Path, kind: type[Event]) -> list[Any]:
    return [event.event for event in RunFolder(run).events() if isinstance(event.event, kind)]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_job_whose_tool_server_is_down_waits_and_reports_the_outage(tmp_path: Path) -> None:
    """Only rollouts are discarded of which a call failed in all of its attempts, and each row is trained once."""
    job, run = ledger_job(tmp_path, STEPS, BATCH), tmp_path / "run"
    with services() as grading, ExitStack() as first, ExitStack() as second:
        port = first.enter_context(tool_server(tmp_path, 0, grading))
        environment = marked(grading | {"LEDGER_TOOLS_URL": f"http://127.0.0.1:{port}"})
        with training(job, run, environment) as process:
            read_until(process, "run folder:")
            with console(run, environment) as page:  # it starts while the engine does, which takes as long
                read_until(process, f"step 1/{STEPS}")
                assert {one["breaker"] for one in page.endpoints().values()} == {"closed"}
                stopped_at = time.time()
                first.close()
                down: dict[str, dict[str, Any]] = {}
                states: set[str] = set()

                def is_down_for_long() -> bool:
                    down.update({name: one for name, one in page.endpoints().items() if one["breaker"] != "closed"})
                    states.update(one["breaker"] for one in down.values())
                    return any(one["down_s"] >= DOWN_S for one in down.values())

                wait_until(is_down_for_long)
                second.enter_context(tool_server(tmp_path, port, grading))
                back_at = time.time()
                code, output = read_to_end(process, 300)
                assert code == 0, output
                wait_until(lambda: page.event_kinds()["endpoint_outage_ended"] >= len(down))
                shown = page.event_kinds()
    assert processes_left() == []

    ended = {event.endpoint: event for event in events_of(run, EndpointOutageEnded)}
    print(f"down for {back_at - stopped_at:.1f} s; {ended}")
    assert "open" in states
    assert set(down) <= set(ended), "what the page showed as down has an event"
    assert all(name.startswith("tool ") for name in ended), "the grader was never down"
    assert sorted(event.endpoint for event in events_of(run, EndpointOutageStarted)) == sorted(ended)
    assert shown["endpoint_outage_started"] == shown["endpoint_outage_ended"] == len(ended)
    longest = max(ended.values(), key=lambda event: event.duration_s)
    assert stopped_at <= longest.started_at <= back_at - DOWN_S
    assert back_at <= longest.started_at + longest.duration_s <= back_at + MAX_LATE_S
    assert (
        sum(event.delayed_calls for event in ended.values()) >= sum(one["delayed_calls"] for one in down.values()) > 0
    )

    folder = RunFolder(run)
    assert [metrics["step"] for metrics in folder.metrics()] == list(range(1, STEPS + 1))
    groups = [group for step in range(1, STEPS + 1) for group in folder.read_groups(f"step-{step:06d}")]
    discarded = [rollout for group in groups for rollout in group.discarded]
    print(f"{sum(len(group.rollouts) for group in groups)} rollouts were graded, {len(discarded)} discarded")
    assert {rollout.reason for rollout in discarded} <= {ToolFailed.reason}
    assert len(discarded) <= sum(event.failed_calls for event in ended.values())
    for group in groups:
        assert len(group.rollouts) + len(group.discarded) == group.request.size <= 2 * len(group.rollouts)
    rows = Counter((group.request.epoch, group.request.task.row_id) for group in groups)
    assert max(rows.values()) == 1
