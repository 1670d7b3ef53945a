"""What bash, zsh and fish are offered, through the protocol that their scripts speak."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from agent_rft.cli.main import app

JOB = {"id": "ftjob-1", "status": "running", "model": "base", "fine_tuned_model": None}
FILE = {"id": "file-1", "filename": "rows.jsonl"}


def asked(shell: str, *typed: str, environment: dict[str, str] | None = None) -> Result:
    """The answer to a shell in which these words were typed; the last one is incomplete."""
    words = " ".join(["agent-rft", *typed])
    protocol = {"COMP_WORDS": words, "COMP_CWORD": str(len(typed))} if shell == "bash" else {}
    variables = protocol | {
        "_AGENT_RFT_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": words,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    return CliRunner().invoke(app, [], env=variables | (environment or {}), prog_name="agent-rft")


def offered(*typed: str, environment: dict[str, str] | None = None) -> list[str]:
    """The values offered in bash; nothing else is printed."""
    answer = asked("bash", *typed, environment=environment)
    assert answer.stderr == ""
    return answer.stdout.split()


@contextmanager
def server(*listed: Any) -> Iterator[dict[str, str]]:
    """A server with one job and one file, or with what is `listed`, as the environment names it."""

    class Lists(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = JOB if "/jobs" in self.path else FILE
            body = json.dumps({"data": listed or [known], "has_more": False}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Lists) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield address(listening.server_port)
        finally:
            listening.shutdown()
            thread.join()


def address(port: int) -> dict[str, str]:
    return {"AGENT_RFT_BASE_URL": f"http://127.0.0.1:{port}/v1", "AGENT_RFT_API_KEY": "k", "no_proxy": "*"}


@pytest.mark.parametrize(
    ("typed", "values"),
    [
        (["eval", "job.yaml", "--file", ""], ["training_file", "validation_file", "test_file"]),
        (["eval", "job.yaml", "--file", "tes"], ["test_file"]),
        (["schema", ""], ["job", "operator", "nodes"]),
        (["explain", "method.reinforcement.limits.max_tool_calls"], ["method.reinforcement.limits.max_tool_calls"]),
        (["explain", "max_tool_calls"], ["max_tool_calls"]),
        (["init", "shop", "--example", ""], ["ledger", "endpoint"]),
        (["keys", "create", "me", "--scope", ""], ["read", "write", "admin"]),
    ],
)
def test_choices_are_offered(typed: list[str], values: list[str]) -> None:
    assert offered(*typed) == values


def test_profiles_are_offered(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert offered("jobs", "--profile", "", environment=home) == []
    file = tmp_path / ".config" / "agent-rft" / "profiles.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("lab: {base_url: http://a/v1}\ncloud: {base_url: http://b/v1}\n")
    assert offered("jobs", "--profile", "", environment=home) == ["lab", "cloud"]
    file.write_text("no profiles")
    assert offered("jobs", "--profile", "", environment=home) == []


def test_run_folders_and_checkpoints_are_offered(tmp_path: Path) -> None:
    checkpoint = tmp_path / "runs" / "a" / "checkpoints" / "step-000005"
    checkpoint.mkdir(parents=True)
    (checkpoint / "loop.json").touch()
    (tmp_path / "runs" / "a" / "events.jsonl").touch()
    (tmp_path / "runs" / "not-a-run").mkdir()
    with chdir(tmp_path):
        for typed in ("", "ru", "runs/", "runs/a"):
            assert offered("traces", typed) == ["runs/a"]
            assert offered("eval", "job.yaml", "--model", typed) == ["runs/a/checkpoints/step-000005"]
        assert offered("train", "job.yaml", "--resume", "") == ["runs/a"]
        assert offered("eval", "job.yaml", "--model", "runs/a/checkpoints/s") == ["runs/a/checkpoints/step-000005"]
        assert offered("traces", "none/") == [], "the shell then offers files"


def test_ids_come_from_the_server_with_a_text_beside_them() -> None:
    with server() as environment:
        assert offered("jobs", "get", "", environment=environment) == ["ftjob-1"]
        assert offered("events", "list", "ftjob-", environment=environment) == ["ftjob-1"]
        assert offered("files", "delete", "", environment=environment) == ["file-1"]
        zsh = asked("zsh", "jobs", "get", "", environment=environment).stdout
        fish = asked("fish", "jobs", "get", "", environment=environment).stdout
    assert '"ftjob-1":"running base"' in zsh
    assert fish == "ftjob-1\trunning base\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_without_a_server_nothing_is_offered_and_nothing_is_said(shell: str, tmp_path: Path) -> None:
    nowhere = dict.fromkeys(("AGENT_RFT_BASE_URL", "AGENT_RFT_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_KEY"), "")
    answer = asked(shell, "jobs", "get", "", environment=nowhere | {"HOME": str(tmp_path)})
    assert (answer.stdout.strip(), answer.stderr) == ("_files" if shell == "zsh" else "", "")


def test_a_server_that_does_not_answer_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        assert offered("jobs", "get", "", environment=address(silent.getsockname()[1])) == []
        assert 0.9 < time.monotonic() - start < 5


HOSTILE = [
    "$(touch x)",
    "`touch x`",
    "a;touch x",
    "a\nb",
    "a b",
    "\x1b[31m",
    "\\$(touch x)",
    '"',
    "'",
    "\u202e",
    "~",
    "",
]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_means_something_to_a_shell_is_not_offered(shell: str) -> None:
    jobs = [JOB | {"id": value} for value in HOSTILE] + [
        JOB | {"model": f"b{value}", "id": "good"} for value in HOSTILE
    ]
    with server(*jobs) as environment:
        answer = asked(shell, "jobs", "get", "", environment=environment).stdout
    assert "good" in answer and "ftjob" not in answer
    assert not set("$`;\x1b\\~\u202e") & set(answer)


def test_a_folder_whose_name_means_something_to_a_shell_is_not_offered(tmp_path: Path) -> None:
    for name in ("good", "$(touch x)", "a;b", "a b", "\x1b[31m"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.jsonl").touch()
    with chdir(tmp_path):
        assert offered("traces", "") == ["good"]


@pytest.mark.parametrize("listed", [1, None, "text", [], {"id": 3}, {"id": "a"}, {"filename": None, "id": "a"}])
def test_a_list_of_something_else_offers_nothing(listed: Any) -> None:
    with server(listed) as environment:
        assert offered("files", "delete", "", environment=environment) == []
