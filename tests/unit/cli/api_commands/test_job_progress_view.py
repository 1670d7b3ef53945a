"""`agent-rft jobs follow` shows every event that a driver wrote to the store, once, until the job ends."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from agent_rft.cli.api_commands.api_client import ServerUnavailable, send_request
from agent_rft.cli.api_commands.job_progress_view import UNREACHABLE_TIMEOUT_S, JsonProgress, LiveProgress, follow
from agent_rft.cli.api_commands.server_commands import CANCELLED
from agent_rft.cli.main import app as cli
from agent_rft.errors import RftError
from agent_rft.events import Event, PhaseStarted
from agent_rft.serve.jobs.processes.store_sink import StoreSink
from agent_rft.serve.routes import job_routes
from agent_rft.serve.stores.job_tables import JobError
from agent_rft.serve.stores.model_registry import ModelRegistry
from tests.docs.test_blocks import commands, parse
from tests.support.api import TOKEN, sync_client_of
from tests.support.events import stream_of
from tests.support.jobs import BODY, StoredJobs, database_with_tables, job_service
from tests.support.synthetic import Synthetic


class ServedJob(StoredJobs):
    """A server with one job, whose driver writes through `sink`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(database_with_tables(folder))
        self.client = sync_client_of([job_routes.make_router(job_service(self.store))])
        self.job = send_request(self.client, "POST", "/fine_tuning/jobs", json=BODY)
        self.id: str = self.job["id"]

    def run(self, steps: int, total: int = 12, describe: Callable[[Event], str] = str) -> None:
        """The job gets its turn and does `steps` steps."""
        self.store.move(self.id, "queued")
        self.store.move(self.id, "running")
        self.store.next_attempt(self.id, 0, "handle", failures=0)
        registry = ModelRegistry(self.database, {})
        sink = StoreSink(
            self.store, registry, self.id, 1, "gpt-5", "key-1", Path(self.id), lambda step: f"ft:{step}", {}
        )
        stream = stream_of(sink, describe=describe)
        stream.emit(PhaseStarted(phase="actors", detail="engines"))
        Synthetic().play(stream, steps=steps, total=total)
        sink.close()

    def command(self, *more: str) -> Result:
        return CliRunner().invoke(cli, ["jobs", "follow", self.id, *more], obj=lambda: self.client)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedJob]:
    monkeypatch.chdir(tmp_path)
    served = ServedJob(tmp_path)
    with served.client:
        yield served
    served.database.close()


def test_without_a_terminal_a_job_is_shown_in_the_lines_of_the_train_command(served: ServedJob) -> None:
    served.now += 65
    served.run(steps=12)
    served.store.move(served.id, "succeeded", fine_tuned_model="ft:final")
    followed = served.command()
    assert followed.exit_code == 0
    lines = followed.output.splitlines()
    assert lines[0] == f"0:00  Created fine-tuning job: {served.id}"
    assert lines[1] == "1:05  starting engines"
    steps = [line.split(":")[1].split()[-1] for line in lines if "  step " in line]
    assert steps == [f"{step}/12" for step in range(1, 13)]
    *_, last_step, ended, _, checkpoints = lines
    assert "calls " in last_step and "1 tool_failed" in last_step
    assert sum("validation at step" in line for line in lines) == 4
    assert ended == f"{served.id} succeeded: ft:final"
    assert checkpoints == f"checkpoints:     agent-rft checkpoints list {served.id}"


def test_a_job_that_succeeded_names_its_best_checkpoint_and_how_to_try_it(served: ServedJob) -> None:
    served.run(steps=1)
    for step, reward in ((4, 0.5), (8, 0.75), (12, 0.6)):
        served.store.add_checkpoint(served.id, step, f"ft:{step}", {"step": step, "full_valid_mean_reward": reward})
    served.store.move(served.id, "succeeded", fine_tuned_model="ft:final")
    best, tried, listed = served.command().output.splitlines()[-3:]
    assert best == "best checkpoint: ft:8 (validation reward 0.750)"
    words = shlex.split(tried.removeprefix("try it:"))
    assert words[:2] == ["curl", "http://server/v1/chat/completions"] and json.loads(words[-1])["model"] == "ft:8"
    for arguments in commands(listed.partition(":")[2].strip()):
        parse(arguments)


@pytest.mark.parametrize("describe", [str, lambda event: event.kind], ids=["sentences", "kinds"])
def test_on_a_terminal_it_is_the_main_jobs_table(served: ServedJob, describe: Callable[[Event], str]) -> None:
    """Whatever the messages say: the table is made of kinds and data."""
    served.now += 65
    served.run(5, describe=describe)
    console = Console(file=io.StringIO(), force_terminal=False, width=100)
    progress = LiveProgress(served.job, console)
    served.store.move(served.id, "succeeded", fine_tuned_model="ft:final")
    follow(served.client, served.job, progress)
    page = Console(file=io.StringIO(), width=100)
    page.print(progress.view.render())
    shown = page.file.getvalue()  # type: ignore[attr-defined]
    for part in ("step 5 of 12", "step 6: rollouts and learning", "validation reward", "[0.", "waiting", "pause per"):
        assert part in shown, part


def test_json_output_has_a_line_for_each_event_and_ends_with_the_job(served: ServedJob) -> None:
    for i in range(250):
        served.store.add_event(served.id, "info", f"[bold]note {i}")
    served.store.move(
        served.id, "failed", error=JobError("invalid_training_file", "line 3 is not valid JSON", "training_file")
    )
    followed = served.command("--json")
    *events, job = map(json.loads, followed.stdout.splitlines())
    assert [event["message"] for event in events[1:]] == [f"[bold]note {i}" for i in range(250)]
    assert (job["id"], job["status"]) == (served.id, "failed")
    assert isinstance(followed.exception, RftError)
    assert str(followed.exception) == f"{served.id} failed: line 3 is not valid JSON"


def test_the_exit_code_says_how_a_job_ended(served: ServedJob) -> None:
    served.store.move(served.id, "cancelled")
    followed = served.command()
    assert followed.exit_code == CANCELLED and f"{served.id} cancelled" in followed.output


class Flaky(httpx.BaseTransport):
    """A server that answers only some requests; every answer about the job adds an event."""

    def __init__(self, served: ServedJob, answers: list[bool]) -> None:
        self.served, self.answers, self.notes = served, answers, 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if not (self.answers.pop(0) if self.answers else False):
            raise httpx.ConnectError("refused", request=request)
        store, job_id = self.served.store, self.served.id
        if not request.url.path.endswith("/events"):
            self.notes += 1
            store.add_event(job_id, "info", f"note {self.notes}")
            if self.notes == 3:
                store.move(job_id, "cancelled")
        answer = self.served.client.request(request.method, str(request.url), headers=request.headers)
        return httpx.Response(answer.status_code, json=answer.json())


def flaky(served: ServedJob, answers: list[bool]) -> httpx.Client:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return httpx.Client(transport=Flaky(served, answers), base_url="http://server/v1", headers=headers)


def test_an_unreachable_server_is_waited_for_and_no_event_is_shown_twice(
    served: ServedJob, capsys: pytest.CaptureFixture[str]
) -> None:
    slept: list[float] = []
    client = flaky(served, [True, True, False, True, False, False, True, True, True, True])
    job = follow(client, served.job, JsonProgress(), sleep=slept.append)
    assert job["status"] == "cancelled" and slept
    shown: list[Any] = [json.loads(line)["message"] for line in capsys.readouterr().out.splitlines()[1:-1]]
    assert shown == [f"note {i}" for i in range(1, len(shown) + 1)]


def test_following_fails_if_the_server_stays_unreachable(served: ServedJob) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with pytest.raises(ServerUnavailable, match="http://server/v1/ does not answer: the connection failed"):
        follow(flaky(served, [True, True]), served.job, JsonProgress(), clock=lambda: now[0], sleep=sleep)
    assert UNREACHABLE_TIMEOUT_S < now[0] < UNREACHABLE_TIMEOUT_S + 10


def test_the_checkpoint_that_the_server_marks_is_the_best(served: ServedJob) -> None:
    served.run(steps=1)
    for step, others in ((4, {"is_best": 1.0, "full_valid_missing_rollouts": 2.0}), (8, {})):
        metrics = {"step": step, "full_valid_mean_reward": step / 10, **others}
        served.store.add_checkpoint(served.id, step, f"ft:{step}", metrics)
    served.store.move(served.id, "succeeded", fine_tuned_model="ft:final")
    best = served.command().output.splitlines()[-3]
    assert best == "best checkpoint: ft:4 (validation reward 0.400; 2 rollouts missing)"
