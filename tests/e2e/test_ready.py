"""The verdict before training on the ledger, by the command and by the API, on real engines."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_rft.rows.dataset_rows import read_tasks
from examples.ledger.services import services
from examples.openai_sdk.agent_rft import Servers, tools_and_grader, upload
from tests.e2e.command import AGENT_RFT, marked, processes_left
from tests.e2e.test_api import Server
from tests.support.paths import LEDGER
from tests.support.sockets import check_ports

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]
ROWS, SAMPLES = 16, 4
DEADLINE_S = 600


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    with services() as environment:
        yield marked(environment)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "train.jsonl"
    with (LEDGER / "data" / "train.jsonl").open() as file:
        path.write_text("".join(islice(file, ROWS)))
    return path


def test_the_command_says_train_writes_a_page_and_supervised_rows(
    environment: dict[str, str], rows: Path, tmp_path: Path
) -> None:
    job = yaml.safe_load((LEDGER / "job.yaml").read_text()) | {"model": str(LEDGER / "base")}
    job |= {"training_file": str(rows), "validation_file": None, "test_file": None}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    command = [AGENT_RFT, "ready", str(tmp_path / "job.yaml"), "--json", "--samples", str(SAMPLES)]
    command += ["--runs", str(tmp_path / "runs"), "--export-sft", str(tmp_path / "sft.jsonl")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as ended:
        check_ports(ended.pid, "ready")
        found = json.loads(ended.communicate()[0])
    assert (ended.returncode, found["verdict"]) == (0, "train"), found["reasons"]
    assert len(found["rows"]) == ROWS and found["grader"]["changed"] == 0.0
    (run,) = (tmp_path / "runs").iterdir()
    assert json.loads((run / "readiness.json").read_text()) == found and (run / "readiness.html").exists()
    conversations, problems = read_tasks(tmp_path / "sft.jsonl", "training_file", is_supervised=True)
    assert not problems and 1 <= len(conversations) <= ROWS
    assert processes_left() == []


def test_the_api_has_the_same_verdict_below_a_path_of_its_own(
    environment: dict[str, str], rows: Path, tmp_path: Path
) -> None:
    server = Server(tmp_path, environment)
    servers = Servers(*(environment[name] for name in ("LEDGER_TOOLS_URL", "LEDGER_GRADER_URL", "LEDGER_TOKEN")))
    body = {
        "model": "gpt-5",
        "training_file": upload(server.client, rows),
        "method": {"type": "reinforcement", "reinforcement": tools_and_grader(servers)},
    }
    path = "/fine_tuning/readiness"
    made: Any = server.client.post(f"{path}?samples={SAMPLES}", body=body, cast_to=object)
    deadline = time.monotonic() + DEADLINE_S
    while (found := _get(server, f"{path}/{made['id']}"))["finished_at"] is None:
        assert time.monotonic() < deadline, found
        time.sleep(0.5)
    assert (found["status"], found["verdict"]) == ("succeeded", "train"), found
    assert found["findings"]["samples"] == SAMPLES and len(found["result_files"]) == 2
    content = server.client.files.content(found["result_files"][0]).json()
    assert len(content["rows"]) == ROWS
    messages = [event["message"] for event in _get(server, f"{path}/{made['id']}/events")["data"]]
    assert any(message.startswith("the verdict is train") for message in messages)
    assert [job.id for job in server.client.fine_tuning.jobs.list()] == []
    assert server.end(signal.SIGTERM) == 0
    assert processes_left() == []


def _get(server: Server, path: str) -> dict[str, Any]:
    found: Any = server.client.get(path, cast_to=object)
    assert isinstance(found, dict)
    return found
