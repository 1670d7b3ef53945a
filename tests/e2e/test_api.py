"""OpenAI's SDK against a server, by the example's notebook and script.

They upload files, follow a job's events and checkpoints, and run the tuned model with its tools. The driver and the
server are killed once each while the job runs, and the job still succeeds.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import psutil
import pytest
import yaml

from examples.ledger.services import services
from examples.openai_sdk.agent_rft import (
    Servers,
    by_chat,
    by_responses,
    follow,
    mean_grade,
    start,
    tools_and_grader,
    upload,
)
from tests.e2e import route_calls
from tests.e2e.client_commands import EXCEPTIONS, Commands, call_all, call_runbook, documented
from tests.e2e.command import AGENT_RFT, marked, processes, processes_left
from tests.e2e.console_form import console, create_by_form
from tests.e2e.notebook import Notebook
from tests.e2e.process_logs import log_files, tracebacks
from tests.support.browser import Watched
from tests.support.fakes_http import unused_port
from tests.support.paths import LEDGER, ROOT
from tests.support.sockets import check_ports

EXAMPLES = ROOT / "examples"
STEPS, ROWS = 6, 16
MODEL = "gpt-5"
"""An alias, so that clients' code need not change."""
DEADLINE_S = 480


class Server:
    """`agent-rft serve` as a process; `key` is what its first start printed."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self._environment = folder, environment
        self.key, self._port = "", "0"
        (folder / "agent-rft.yaml").write_text(
            yaml.safe_dump({"allowed_networks": ["127.0.0.0/8"], "aliases": {MODEL: str(LEDGER / "base")}})
        )
        self.start()

    def start(self) -> None:
        command = [AGENT_RFT, "serve", "--folder", str(self.folder / "state"), "--port", self._port]
        command += ["--config", str(self.folder / "agent-rft.yaml")]
        proxy = {"HTTP_PROXY": f"http://127.0.0.1:{unused_port()}"}  # nothing on this machine needs it
        self.process = subprocess.Popen(command, env=self._environment | proxy, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.search(r"API key .*: (\S+)", line):
                self.key = found[1]
            if found := re.search(r"serving at (\S+)", line):
                self.url = found[1]
                self._port = self.url.removesuffix("/v1").rpartition(":")[2]  # reused when it is started again
                return
        raise AssertionError(f"the server ended with code {self.process.wait()}")

    def end(self, how: signal.Signals) -> int:
        """Sends the signal and returns the exit code."""
        self.process.send_signal(how)
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a client."""
        return {**self._environment, "OPENAI_BASE_URL": self.url, "OPENAI_API_KEY": self.key}

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(api_key=self.key, base_url=self.url)


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    with services() as environment:
        yield marked(environment)


@pytest.fixture(scope="module")
def servers(environment: dict[str, str]) -> Servers:
    return Servers(*(environment[name] for name in ("LEDGER_TOOLS_URL", "LEDGER_GRADER_URL", "LEDGER_TOKEN")))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server"), environment)
    yield made
    assert made.end(signal.SIGTERM) == 0
    assert processes_left() == []


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    with (LEDGER / "data" / "validation.jsonl").open() as file:
        return [json.loads(line) for line in islice(file, ROWS)]


def events_of(server: Server, job_id: str) -> list[str]:
    """Returns the messages of a job's events, oldest first."""
    return [event.message for event in server.client.fine_tuning.jobs.list_events(job_id, limit=100)][::-1]


def wait_for(server: Server, job_id: str, text: str) -> None:
    """Waits until an event contains `text`."""
    deadline = time.monotonic() + DEADLINE_S
    while not any(text in message for message in events_of(server, job_id)):
        job = server.client.fine_tuning.jobs.retrieve(job_id)
        assert job.status not in ("failed", "cancelled"), job.error
        assert time.monotonic() < deadline, events_of(server, job_id)
        time.sleep(0.5)


def kill_driver(job_id: str) -> None:
    """Kills the job's driver with SIGKILL."""
    drivers = [
        p for p in processes() if "agent_rft.serve.jobs.processes.job_driver" in p.cmdline() and job_id in p.cmdline()
    ]
    assert drivers
    for driver in drivers:
        driver.send_signal(signal.SIGKILL)
    psutil.wait_procs(drivers, 10)


@pytest.fixture(scope="module")
def notebook() -> Notebook:
    return Notebook(EXAMPLES / "openai_sdk" / "agent_rft.ipynb")


@pytest.fixture(scope="module")
def window(server: Server) -> Iterator[Watched]:
    """A window of the console, which shows the page of the job once it is created."""
    with console(server.url.removesuffix("v1"), server.key) as window:
        yield window


@pytest.fixture(scope="module")
def job(server: Server, servers: Servers, notebook: Notebook, window: Watched) -> Any:
    """A job by the notebook's request that ended, although its driver and the server were killed.

    Before it, the base model answered, as in an evaluation. On two cores the job needs the core of its idle engine. The
    console's form sends the request. Then the notebook sends it as the SDK does after a lost answer, for the same job.
    """
    first = server.client.with_options(timeout=300).responses.create(model=MODEL, input="What is 2 + 2?")
    assert first.status in ("completed", "incomplete")
    notebook.run(server.variables, until="validation_file")
    client = notebook.names["client"]

    def create(**request: Any) -> Any:
        id = create_by_form(window.page, request, LEDGER / "data" / "validation.jsonl")
        made = client.fine_tuning.jobs.create(**request, extra_headers={"x-stainless-retry-count": "1"})
        assert made.id == id
        return made

    notebook.names["client"] = SimpleNamespace(fine_tuning=SimpleNamespace(jobs=SimpleNamespace(create=create)))
    notebook.run(server.variables, until="job")
    notebook.names["client"] = client
    made = notebook.names["job"]
    assert servers.token not in made.model_dump_json(warnings=False)
    check_ports(server.process.pid, "job")
    wait_for(server, made.id, "Step 3/6")
    kill_driver(made.id)
    wait_for(server, made.id, "Step 5/6")
    server.end(signal.SIGKILL)
    server.start()
    wait_for(server, made.id, "successfully completed")
    return server.client.fine_tuning.jobs.retrieve(made.id)


@pytest.mark.timeout(900)  # three starts of an engine and a learner
def test_a_job_succeeds_although_its_driver_and_its_server_were_killed(
    server: Server, servers: Servers, job: Any
) -> None:
    assert (job.status, job.error) == ("succeeded", None)
    assert job.fine_tuned_model.startswith(f"ft:{MODEL}:local:ledger:")
    assert job.trained_tokens > 0
    client = server.client
    checkpoints = client.fine_tuning.jobs.checkpoints.list(job.id).data
    assert checkpoints[0].step_number == STEPS
    assert {checkpoint.step_number for checkpoint in checkpoints} <= {2, 4, 6}
    served = {model.id for model in client.models.list()}
    assert {MODEL, job.fine_tuned_model, *(c.fine_tuned_model_checkpoint for c in checkpoints)} <= served
    result = client.files.content(job.result_files[0]).text
    steps = [line.split(",")[0] for line in result.splitlines()[1:]]
    assert steps == [str(step) for step in range(1, STEPS + 1)]
    assert servers.token not in " ".join(events_of(server, job.id)) + result


def test_the_console_shows_the_job_to_its_end_without_errors(window: Watched, job: Any) -> None:
    page = window.page
    assert page.url.endswith(job.id)
    page.get_by_role("heading", level=1).get_by_text("succeeded", exact=True).wait_for()
    page.get_by_text(f"step {STEPS} of {STEPS}").wait_for()
    page.get_by_role("tab", name="Events").click()
    page.get_by_role("tabpanel").get_by_text("The job has successfully completed").wait_for()
    assert window.complaints == []


@pytest.mark.parametrize("agent", [by_responses, by_chat], ids=["responses", "chat_completions"])
@pytest.mark.timeout(600)
def test_the_tuned_model_uses_its_tools_as_well_as_the_job_reported(
    server: Server, servers: Servers, job: Any, rows: list[dict[str, Any]], agent: Any
) -> None:
    (last,) = (c for c in server.client.fine_tuning.jobs.checkpoints.list(job.id).data if c.step_number == STEPS)
    reported = last.metrics.model_dump(warnings=False)["full_valid_mean_reward"]
    client = openai.OpenAI(api_key=server.key, base_url=server.url, timeout=300, max_retries=5)
    grade = mean_grade(agent, client, job.fine_tuned_model, rows * 2, servers)
    assert grade > reported - 0.2  # two standard errors of 16 rows and of 32 rollouts


def test_a_served_model_listens_only_where_the_manual_says(server: Server, job: Any) -> None:
    client = server.client.with_options(timeout=300, max_retries=5)
    assert client.responses.create(model=job.fine_tuned_model, input="What is 2 + 2?").status
    check_ports(server.process.pid, "served model")


@pytest.mark.timeout(600)
def test_the_notebook_runs_to_its_end(
    server: Server, job: Any, notebook: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook.run(server.variables)
    assert notebook.names["job"] == job
    printed = capsys.readouterr().out
    assert "The job has successfully completed" in printed and f"step-{STEPS} reward 0." in printed
    assert len(notebook.names["grades"]) == ROWS and max(notebook.names["grades"]) == 1.0


@pytest.fixture(scope="module")
def request_of_a_job(server: Server, servers: Servers) -> dict[str, Any]:
    """A valid request for a job whose files are on the server."""
    client = server.client
    return {
        "model": MODEL,
        "training_file": upload(client, LEDGER / "data" / "train.jsonl"),
        "method": {
            "type": "reinforcement",
            "reinforcement": {**tools_and_grader(servers), "hyperparameters": {"batch_size": 16, "n_epochs": 1}},
        },
        "seed": 7,
    }


def tuned(server: Server, job: Any, step: int) -> str:
    """Return the model of a job's checkpoint after a step."""
    checkpoints = server.client.fine_tuning.jobs.checkpoints.list(job.id).data
    return next(one.fine_tuned_model_checkpoint for one in checkpoints if one.step_number == step)


@pytest.mark.timeout(600)
def test_every_documented_route_answers_as_documented(
    server: Server, job: Any, rows: list[dict[str, Any]], request_of_a_job: dict[str, Any]
) -> None:
    reinforcement = request_of_a_job["method"]["reinforcement"]
    with route_calls.clients(server.url, server.key) as (routes, sdk, plain):
        route_calls.call_files(sdk)
        route_calls.call_job(sdk, plain, job.id, rows[0])
        route_calls.call_trials(sdk, plain, reinforcement["tools"][0], rows[0])
        route_calls.call_keys(plain)
        route_calls.call_models(sdk, job.fine_tuned_model, tuned(server, job, 2))
        route_calls.call_new_jobs(sdk, plain, request_of_a_job)
        assert routes.documented - routes.seen == set(route_calls.EXCEPTIONS)


@pytest.mark.timeout(300)
def test_every_command_for_a_server_works(
    server: Server, job: Any, request_of_a_job: dict[str, Any], tmp_path: Path
) -> None:
    commands, state = Commands(server.variables), server.folder / "state"
    call_runbook(commands, state, job.id)
    call_all(commands, state, job.id, tuned(server, job, 4), request_of_a_job, tmp_path)
    assert documented() - commands.seen == set(EXCEPTIONS)


def test_other_users_of_the_machine_cannot_join_the_servers_cluster(server: Server) -> None:
    modes = {p.name(): p.environ().get("RAY_AUTH_MODE") for p in processes() if p.name() in ("gcs_server", "raylet")}
    assert modes == {"gcs_server": "token", "raylet": "token"}


def test_a_second_server_on_the_folder_is_refused_and_the_first_one_goes_on(server: Server) -> None:
    command = [AGENT_RFT, "serve", "--folder", str(server.folder / "state"), "--port", "0"]
    second = subprocess.run(command, env=server.variables, capture_output=True, text=True, timeout=60)
    assert second.returncode == 1
    assert f"is used by process {server.process.pid} on" in second.stderr and "another --folder" in second.stderr
    assert MODEL in [model.id for model in server.client.models.list()]


def test_no_process_has_logged_a_traceback(server: Server, job: Any) -> None:
    """After all of the above: the server's own log, those of jobs, and those of Ray's processes."""
    names = {path.name for path in log_files(server.folder / "state")}
    assert "access-0.jsonl" in names and any(name.startswith("worker-") for name in names)
    assert tracebacks(server.folder / "state") == []


def test_the_script_creates_a_job_which_is_cancelled_while_it_waits(
    server: Server, servers: Servers, capsys: pytest.CaptureFixture[str]
) -> None:
    client = server.client
    training = upload(client, LEDGER / "data" / "train.jsonl")
    made = start(client, MODEL, servers, training, upload(client, LEDGER / "data" / "validation.jsonl"))
    assert client.fine_tuning.jobs.cancel(made.id).status == "cancelled"
    assert follow(client, made.id).status == "cancelled"
    assert "info: The job was cancelled" in capsys.readouterr().out


def test_the_servers_folder_contains_no_secret(server: Server, servers: Servers, job: Any) -> None:
    for path in server.folder.rglob("*"):
        if path.is_file() and os.access(path, os.R_OK):
            assert servers.token.encode() not in path.read_bytes(), path
            assert server.key.encode() not in path.read_bytes(), path
