"""The command in processes of its own: how it starts, and what real shells complete."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.fakes_http import unused_port
from tests.support.openai_api import KEY, FakeOpenAI
from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """What a line prints in a bash whose user has said `agent-rft --install-completion` and opened a new shell."""
    home = tmp_path_factory.mktemp("home")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"HOME": str(home), "PATH": path, "PYTHONPATH": str(ROOT)}

    def run(line: str) -> list[str]:
        # A second command, so that bash stays above the first one: the shell is found among the parents.
        done = subprocess.run(["bash", "-c", f"{line}\ntrue"], env=environment, stdout=subprocess.PIPE, text=True)
        return done.stdout.split()

    assert "bash" in " ".join(run("agent-rft --install-completion"))
    return run


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["j"], ["jobs"]),
        (["c"], ["check", "compare", "checkpoints"]),
        (["jobs", "f"], ["follow"]),
        (["events", ""], ["list"]),
        (["checkpoints", "list", "--j"], ["--json"]),
        (["eval", "--mo"], ["--model"]),
    ],
)
def test_bash_completes_once_it_was_installed(
    shell: Callable[[str], list[str]], typed: list[str], offered: list[str]
) -> None:
    words = " ".join(f"'{word}'" for word in ("agent-rft", *typed))
    asked = f"COMP_WORDS=({words}); COMP_CWORD={len(typed)}"
    assert shell(f'. ~/.bashrc; {asked}; _agent_rft_completion agent-rft; echo "${{COMPREPLY[@]}}"') == offered


def test_zsh_is_answered_in_its_words() -> None:
    environment = {**os.environ, "_AGENT_RFT_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "agent-rft jobs fo"}
    agent_rft = Path(sys.executable).with_name("agent-rft")
    answer = subprocess.run([agent_rft], env=environment | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True)
    assert answer.stdout.startswith('_arguments \'*: :(("follow":"Show a job')


@pytest.mark.parametrize(
    ("arguments", "output", "code"),
    [
        (["--version"], "closed", 0),
        (["serve", "--config", "none.yaml"], "closed", 2),
        (["serve", "--config", "none.yaml"], "unread", 2),  # it prints a line before it reads the file
        (["train", "none.yaml"], "unread", 2),
    ],
)
def test_the_exit_code_is_right_even_if_nobody_reads_the_output(
    arguments: list[str], output: str, code: int, tmp_path: Path
) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    command = [Path(sys.executable).with_name("agent-rft"), *arguments]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=writes,
        stderr=writes,
        preexec_fn=(lambda: os.closerange(1, 3)) if output == "closed" else None,
    )
    os.close(writes)
    assert done.returncode == code


CLIENT = ("files", "download", "file-1", "rows.jsonl")


def as_client(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command that calls a server."""
    return subprocess.run(
        [Path(sys.executable).with_name("agent-rft"), *CLIENT],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_client_works_with_the_environment_of_a_shared_machine(tmp_path: Path) -> None:
    """Variables read from files, proxies that do not reach the loopback, and a home that does not exist."""
    proxies = {"HTTP_PROXY": f"http://127.0.0.1:{unused_port()}", "ALL_PROXY": "socks5://proxy:1080"}
    with FakeOpenAI() as api:
        api.files["file-1"] = b"{}\n"
        server = {"AGENT_RFT_BASE_URL": f"{api.url}\n", "AGENT_RFT_API_KEY": f" {KEY}\r\n"}
        done = as_client(tmp_path, HOME="/dev/null", **server, **proxies)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "rows.jsonl").read_bytes() == b"{}\n"


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"ALL_PROXY": "socks5://user:secret@proxy:1080"}, "ALL_PROXY is a socks5:// proxy"),
        ({"AGENT_RFT_API_KEY": "“sk-secret”"}, "AGENT_RFT_API_KEY contains non-ASCII characters"),
        ({"AGENT_RFT_API_KEY": "sk-\nsecret"}, "AGENT_RFT_API_KEY contains a line break"),
        ({"AGENT_RFT_BASE_URL": "http://user:secret@ho st/v1"}, "AGENT_RFT_BASE_URL contains white space"),
        ({"AGENT_RFT_BASE_URL": "“http://secret/v1”"}, "AGENT_RFT_BASE_URL must start with http://"),
    ],
)
def test_a_client_names_a_variable_that_cannot_be_used_without_its_value(
    environment: dict[str, str], said: str, tmp_path: Path
) -> None:
    usable = {"AGENT_RFT_BASE_URL": "http://host.invalid/v1", "AGENT_RFT_API_KEY": KEY}
    done = as_client(tmp_path, **usable | environment)
    assert done.returncode == 1 and done.stdout.startswith(f"error {said}")
    assert "secret" not in done.stdout and "Traceback" not in done.stdout


def test_the_server_reports_its_start_before_it_imports_what_takes_long(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "agent_rft.cli.main",
        "serve",
        "--config",
        tmp_path / "missing",
    ]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "starting the server at http://127.0.0.1:8000/v1" in ended.stdout and "missing" in ended.stderr
    imported = set(re.findall(r"^import time: .*\| +(\w+)$", ended.stderr, re.MULTILINE))
    assert "typer" in imported
    assert not imported & {"ray", "torch", "vllm", "transformers", "sqlalchemy", "fastapi"}


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("train job.yaml --resume run", "the run folder run"),
        ("traces run", "the run folder run"),
        ("serve --folder server --port 0", "the database sqlite:///{folder}/server/state.db"),
    ],
)
def test_what_a_version_before_0_2_0_made_is_refused(tmp_path: Path, command: str, what: str) -> None:
    for folder in ("run", "server"):
        (tmp_path / folder).mkdir()
    (tmp_path / "run" / "job.resolved.json").write_text('{"format": 2, "job": {}, "plan": {}}')
    with closing(sqlite3.connect(tmp_path / "server" / "state.db")) as database, database:
        database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        database.execute("INSERT INTO alembic_version VALUES ('0007')")
    before = sorted((tmp_path / "run").iterdir())
    done = subprocess.run(
        [Path(sys.executable).with_name("agent-rft"), *command.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    sentence = "was created by a version before 0.2.0; finish or export it with that version"
    assert done.stderr == f"error {what.format(folder=tmp_path)} {sentence}\n" and done.returncode == 1
    assert sorted((tmp_path / "run").iterdir()) == before
