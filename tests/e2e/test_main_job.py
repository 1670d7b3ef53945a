"""The example's job through the command line, on real engines: it stops, resumes, learns and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import yaml

from agent_rft.chat.model_card import read_card
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.events import SettingChanged, SettingChosen
from agent_rft.types import Rollout
from examples.ledger.services import services
from tests.e2e.client_commands import Commands
from tests.e2e.command import AGENT_RFT, marked, processes_left
from tests.e2e.local_commands import EXCEPTIONS, call_all, documented
from tests.support.paths import LEDGER, ROOT
from tests.support.sockets import check_ports

STEPS = 8


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    with services() as environment:
        yield marked(environment)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a shortened version of the example's job."""
    folder = tmp_path_factory.mktemp("job")
    job = yaml.safe_load((LEDGER / "job.yaml").read_text())
    job |= {"model": str(LEDGER / "base"), "seed": 3}
    for name, rows in (("training_file", STEPS * 16), ("validation_file", 16), ("test_file", 96)):
        with (LEDGER / job[name]).open() as file:
            (folder / f"{name}.jsonl").write_text("".join(islice(file, rows)))
        job[name] = f"{name}.jsonl"
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return folder


def test_a_job_stops_with_a_checkpoint_resumes_and_learns(folder: Path, environment: dict[str, str]) -> None:
    command = [AGENT_RFT, "train", str(folder / "job.yaml"), "--runs", str(folder / "runs")]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as first:
        assert first.stdout is not None
        output = []
        for line in first.stdout:
            output.append(line)
            if f"step 1/{STEPS}" in line:
                check_ports(first.pid, "train")
            if f"step 3/{STEPS}" in line:
                break
        # As a terminal does: to the whole process group, including Ray's and vLLM's processes.
        os.killpg(first.pid, signal.SIGINT)
        os.killpg(first.pid, signal.SIGHUP)  # and then it is closed
        stopped = time.monotonic()
        output.append(first.stdout.read())
        code = first.wait()
    text = "".join(output)
    assert code == 130, text
    assert time.monotonic() - stopped < 30, text
    assert processes_left() == []
    (run,) = (folder / "runs").iterdir()
    saved = [json.loads((path / "loop.json").read_text())["step"] for path in (run / "checkpoints").iterdir()]
    assert max(saved) in (3, 4)
    assert (run / "report.html").exists()
    assert f"--resume {run}  # from" in text

    with services() as moved:  # new ports and a new token, as after a restart of the machine
        resumed = subprocess.run([*command, "--resume", str(run)], env=marked(moved), capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert f"resumed at step {max(saved)} of {STEPS}" in resumed.stdout
    chosen = [event for line in RunFolder(run).events() if isinstance(event := line.event, SettingChosen)]
    # Once: the job leaves no other number to auto, and the resumed run keeps its values.
    became = [("hyperparameters.compute_multiplier", 1), ("cluster.micro_batch_tokens", 8192)]
    assert [(choice.setting, choice.value) for choice in chosen] == became
    changed = [event.setting for line in RunFolder(run).events() if isinstance(event := line.event, SettingChanged)]
    assert [setting.rpartition(".")[2] for setting in changed] == ["server_url"] * 3 + ["url"]
    assert processes_left() == []

    kept = RunFolder(run)
    assert [metrics["step"] for metrics in kept.metrics()] == list(range(1, STEPS + 1))
    assert all(metrics["staleness_max"] <= 1 for metrics in kept.metrics())
    assert all(metrics["canary_gap"] < 1e-3 for metrics in kept.metrics())
    before, after = kept.evaluations()["test-before"], kept.evaluations()["test-after"]
    assert after.grade > before.grade + 0.1
    assert after.tool_calls < 0.8 * before.tool_calls


def test_the_run_folder_has_every_row_once_readable_traces_and_no_secret(
    folder: Path, environment: dict[str, str]
) -> None:
    (run,) = (folder / "runs").iterdir()
    kept = RunFolder(run)
    seen = [g.request for i in range(STEPS) for g in kept.read_groups(f"step-{i + 1:06d}")]
    assert len(seen) >= STEPS * 16
    assert len({(request.epoch, request.task.row_id) for request in seen}) == len(seen)
    secret = environment["LEDGER_TOKEN"]
    for path in run.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path
    group = kept.read_groups("test-after")[0]
    (rollout,) = group.rollouts
    assert isinstance(rollout, Rollout)
    shown = subprocess.run(
        [AGENT_RFT, "traces", str(run), "--trace", rollout.trace_id], capture_output=True, text=True, check=True
    )
    assert group.request.task.messages[0]["content"] in shown.stdout
    assert "test file" in (run / "report.html").read_text().lower()


def test_recorded_rollouts_give_bitwise_equal_losses(folder: Path) -> None:
    (run,) = (folder / "runs").iterdir()
    command = [sys.executable, "-m", "tests.e2e.replay", str(run), "2"]
    started = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    twice = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    losses = [line for line in twice[0].splitlines() if line.startswith(("0x", "-0x"))]
    assert len(losses) == 2
    assert twice[0] == twice[1]


def test_eval_grades_a_checkpoint_as_a_model(folder: Path, environment: dict[str, str]) -> None:
    (run,) = (folder / "runs").iterdir()
    checkpoint = sorted((run / "checkpoints").iterdir())[-1]
    card = read_card(checkpoint)
    assert card is not None and card.tool_parser == "hermes"
    evaluated = subprocess.run(
        [
            *(AGENT_RFT, "eval", str(folder / "job.yaml"), "--model", str(checkpoint)),
            *("--runs", str(folder / "graded"), "--samples", "2", "--file", "validation_file"),
        ],
        env=environment | {"TMPDIR": str(checkpoint)},  # its path is too long for sockets
        capture_output=True,
        text=True,
    )
    assert evaluated.returncode == 0, evaluated.stdout + evaluated.stderr
    (graded,) = (folder / "graded").iterdir()
    evaluation = RunFolder(graded).evaluations()["eval-validation"]
    assert (evaluation.num_rollouts, evaluation.samples) == (32, 2)
    assert evaluation.grade > 0.45
    assert processes_left() == []


def test_every_command_without_a_server_works(folder: Path, environment: dict[str, str], tmp_path: Path) -> None:
    (run,) = (folder / "runs").iterdir()
    commands = Commands(environment)
    call_all(commands, run, folder / "job.yaml", tmp_path)
    assert documented() - commands.seen == set(EXCEPTIONS)
    assert processes_left() == []
