"""A server with jobs that ran, in a process of its own, and a browser before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.serve.host.server_state import ServerState, StateLocations
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from agent_rft.types import Group, Turn
from tests.support.api_process import api_process
from tests.support.browser import WIDE, Watched, chromium
from tests.support.builders import group, group_request, rollout, task, untrained
from tests.support.jobs import NEW_JOB
from tests.support.synthetic import HOSTILE, Synthetic

LONG = "long " * 2_000_000
"""10 MB in one line."""
CALLS = [{"type": "function", "function": {"name": name, "arguments": "{}"}} for name in ("search", "search", "cat")]
WITHOUT_IDS = ({"role": "assistant", "content": None, "tool_calls": CALLS}, *[{"role": "tool", "content": "none"}] * 3)
"""A prompt that ends with parallel calls and their results."""


@dataclass(frozen=True, slots=True)
class Site:
    """A server: where it listens, an admin's key, a job that ran, and one whose texts attack the page."""

    url: str
    folder: Path
    token: str
    job: str
    hostile: str

    def addresses(self, job: str) -> list[str]:
        """The address of each page."""
        of_job = ["", "/rollouts", "/side-by-side"]
        pages = ["", "jobs", "jobs/new", "readiness", "compare", "fleet", "models", "keys"]
        return [f"#/{page}" for page in [*pages, *(f"jobs/{job}{page}" for page in of_job)]]


@contextmanager
def state_of(site: Site) -> Iterator[ServerState]:
    """The server's stores, as another process of it has them."""
    state = ServerState(StateLocations(site.folder), DEFAULT_CONFIG)
    yield state
    state.close()


def _site(folder: Path) -> Site:
    """The state of a server that ran two jobs."""
    state = ServerState(StateLocations(folder), DEFAULT_CONFIG)
    key, token = state.keys.create("ann", ["admin"])
    store = JobStore(state.database)

    def job(digest: str, text: str) -> str:
        labels = {"note": text[:400]}
        made = store.create(replace(NEW_JOB, owner=key.id, digest=digest, suffix=text[:60], labels=labels))[0].id
        store.add_event(made, "warn", f"{text} and \x1b[31m \u202e turned", data={"text": text})
        for status in ("queued", "running", "succeeded"):
            store.move(made, status)
        Synthetic().run(folder / "runs" / made, steps=3, total=3, validation_every=3)
        return made

    plain, hostile = job("a", "plain"), job("b", HOSTILE)
    store.add_event(hostile, "error", LONG)
    request = group_request(0, 1)
    run = RunFolder(folder / "runs" / hostile)
    long = Group(request, (rollout(request, 0, 1.0, turns=(Turn(2, 5, HOSTILE + LONG),)),))
    without_ids = group(group_request(1, 1, task=replace(task(), messages=WITHOUT_IDS)), [1.0])
    left_out = Group(group_request(2, 1), (untrained(rollout(group_request(2, 1))),))
    run.handle_groups("step-000004", [long, without_ids, left_out])
    run.close()
    state.close()
    return Site("", folder, token, plain, hostile)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = _site(tmp_path_factory.mktemp("console"))
    with api_process(made.folder, {}) as server:
        yield replace(made, url=f"http://127.0.0.1:{server.port}/")


@pytest.fixture(scope="module")  # Playwright keeps an event loop running in this thread
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture
def opened(browser: Any, site: Site) -> Iterator[Callable[..., Any]]:
    """Opens pages in new windows: `opened("#/jobs")`. At the end none has complained or asked another host."""
    windows: list[Watched] = []
    contexts: list[Any] = []

    def open_page(address: str = "", token: str | None = None, size: dict[str, int] = WIDE) -> Any:
        context = browser.new_context(viewport=size)
        contexts.append(context)
        url = address if address.startswith("http") else f"{site.url}{address}"
        window = Watched(context.new_page(), url.split("/")[2])
        windows.append(window)
        if token != "":
            headers = {"authorization": f"Bearer {token or site.token}"}
            assert context.request.post(f"{site.url}v1/console/session", headers=headers).ok
        window.page.goto(url)
        return window.page

    yield open_page
    complaints = [complaint for window in windows for complaint in window.complaints]
    for context in contexts:
        context.close()
    assert complaints == []
