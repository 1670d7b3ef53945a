"""`agent-rft import` in a process of its own: what it prints, its exit codes, and what a signal leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.openai_api import KEY, FakeOpenAI, Reply
from tests.support.openai_jobs import JOB_ID, record, recorded, reinforcement
from tests.support.paths import ROOT

AGENT_RFT = Path(sys.executable).with_name("agent-rft")
nightly = pytest.mark.nightly


@pytest.fixture
def api() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as served:
        record(served, recorded(reinforcement()))
        yield served


def started(
    folder: Path, api: FakeOpenAI, *options: str, more: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENAI_BASE_URL": api.url, "OPENAI_API_KEY": KEY}
    return subprocess.Popen(
        [AGENT_RFT, "import", "openai", *options],
        cwd=folder,
        env=environment | (more or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=_default_signals,
    )


def _default_signals() -> None:
    """A suite in the background, or under nohup, ignores these signals, and so would what it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_it_prints_its_readme_and_writes_a_folder_named_like_the_job(api: FakeOpenAI, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    said, _ = (process := started(tmp_path, api, "--job", JOB_ID, "--model", "base")).communicate()

    assert process.returncode == 0 and said == (tmp_path / JOB_ID / "README.md").read_text()
    assert "cd ftjob-abc123\n" in said and KEY not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", JOB_ID]
    assert f"model: {tmp_path / 'base'}\n" in (tmp_path / JOB_ID / "job.yaml").read_text()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(n, marks=nightly) for n in (signal.SIGTERM, signal.SIGHUP))]
)
def test_a_signal_in_the_middle_of_a_download_leaves_nothing(
    number: signal.Signals, api: FakeOpenAI, tmp_path: Path
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slow(path: str, times: int) -> Reply | None:
        if path.endswith("validation/content"):
            asked.set()
            go_on.wait()
        return None

    api.instead = slow
    process = started(tmp_path, api, "--job", JOB_ID, "--out", "moved")
    try:
        assert asked.wait(60)
        assert [path.name[:7] for path in tmp_path.iterdir()] == [".moved."], "it is in the middle of it"
        process.send_signal(number)
        said, _ = process.communicate()
    finally:
        go_on.set()
        process.kill()

    assert process.returncode == 130 and "Traceback" not in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--job", JOB_ID, "--from", "export"], 2, "give either --job or --from"),
        (["--job", "../x"], 1, "give an id that begins with ftjob-"),
        (["--from", "export"], 1, "export/job.json cannot be read"),
        pytest.param([], 2, "give either --job or --from", marks=nightly),
        pytest.param(["--job", "ftjob-other"], 1, "check the job's id", marks=nightly),
        pytest.param(
            ["--job", JOB_ID, "--out", "a/b"], 1, "a/b cannot be written: No such file or directory", marks=nightly
        ),
        pytest.param(["--job", JOB_ID, "--training-file", "none.jsonl"], 1, "none.jsonl cannot be read", marks=nightly),
    ],
)
def test_a_mistake_has_an_exit_code_and_a_fix(
    options: list[str], code: int, said: str, api: FakeOpenAI, tmp_path: Path
) -> None:
    printed, _ = (process := started(tmp_path, api, *options)).communicate()

    assert process.returncode == code and said in printed and "Traceback" not in printed
    assert not list(tmp_path.iterdir())


def test_without_a_key_nothing_is_asked(api: FakeOpenAI, tmp_path: Path) -> None:
    printed, _ = started(tmp_path, api, "--job", JOB_ID, more={"OPENAI_API_KEY": ""}).communicate()

    assert "export OPENAI_API_KEY" in printed and not api.asked
