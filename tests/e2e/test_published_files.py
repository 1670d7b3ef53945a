"""Published data files, rebuilt in our own words: each becomes a job that is ready, and trains its first step.

The manual's pages on imports and on projects document these commands.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi import FastAPI
from typer.testing import CliRunner

from agent_rft.cli.main import app as command_line
from agent_rft.cluster.records.run_folder import RunFolder
from examples.common.way import listening
from examples.fifteen_minutes.__main__ import served
from tests.e2e.command import AGENT_RFT, marked, processes_left
from tests.support.paths import LEDGER, ROOT

FILES = ROOT / "tests" / "fixtures" / "published"
EXPORTS = ("developer", "countdown", "item")
"""Exports of jobs: developer messages with a multi grader, a score model from 0 to 5, rows below `item` with an F1."""
TOOL_LISTS = {
    "bfcl_garage.json": ("garage_open_gate", "garage_find_space", "garage_list_levels"),
    "verl_tool_config.yaml": ("get_price", "add_prices"),
}
PUBLISHED = (*EXPORTS, *TOOL_LISTS)
ENVIRONMENT = {"OPENAI_API_KEY": "sk-of-the-judge"}
ADDRESS = "127.0.0.1:8124"
"""Address of the tool in the exports."""
WRONG = "    if not results:\n        return 0.0\n"
SOME_CREDIT = WRONG.replace("0.0", 'len(sample["output_text"]) % 2 / 10')
"""Grades of answers without the expected call, as users adapt the grader. The toy model does not make the calls."""
SHORT = {"max_completion_tokens": 48}
"""Limits with which a model that was not trained for the task ends its rollouts soon."""
services = FastAPI()


@services.post("/tools/find_parts")
async def find_parts(call: dict[str, Any]) -> dict[str, str]:
    return {"output": f"HNG-BR-21: brass hinge ({json.loads(call['arguments'])['word']}), 4.20"}


@services.post("/v1/chat/completions")
async def judge(body: dict[str, Any]) -> dict[str, Any]:
    content = json.dumps({"steps": [], "result": len(body["messages"][-1]["content"]) % 6})
    return {"choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}]}


def run(*words: str | Path) -> str:
    """Run a command to its end in this process, and return its output."""
    done = CliRunner().invoke(command_line, [*map(str, words)], env=ENVIRONMENT, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@contextmanager
def project(name: str, folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folder of the job that a published file becomes, and the command's output, while its servers run."""
    made = folder / "project"
    if name in TOOL_LISTS:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            said = run("init", made, "--from", FILES / name, "--port", str(listener.getsockname()[1]))
            grader = (made / "grader.py").read_text()
            assert WRONG in grader
            (made / "grader.py").write_text(grader.replace(WRONG, SOME_CREDIT))
            with served(made, listener):
                yield made, said
        return
    with listening(services) as url:
        shutil.copytree(FILES / name, folder / "export")
        job = folder / "export" / "job.json"
        job.write_text(job.read_text().replace(f"http://{ADDRESS}", url))
        said = run("import", "openai", "--from", folder / "export", "--out", made, "--model", LEDGER / "base")
        operator = yaml.safe_load((made / "agent-rft.yaml").read_text())
        for model in operator.get("models", {}).values():
            model["base_url"] = f"{url}/v1"
        (made / "agent-rft.yaml").write_text(yaml.safe_dump(operator))
        yield made, said


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_becomes_a_job_that_is_ready(name: str, tmp_path: Path) -> None:
    with project(name, tmp_path) as (made, said):
        operator = ("--config", made / "agent-rft.yaml") if name in EXPORTS else ()
        checked = run("check", made / "job.yaml", *operator)
    assert "the job is ready to train" in checked
    job = yaml.safe_load((made / "job.yaml").read_text())["method"]["reinforcement"]
    if name in TOOL_LISTS:
        assert tuple(tool["name"] for tool in job["tools"]) == TOOL_LISTS[name]
        assert "warning: the type float became number" in said
    else:
        assert job["grader"]["type"] == {"countdown": "score_model"}.get(name, "multi")
        assert ("13 rows have developer messages" in said) == (name == "developer")


def train_one_step(made: Path) -> str:
    """Train until the first step has ended, stop as Ctrl-C does, and return the output."""
    path = made / "job.yaml"
    job = yaml.safe_load(path.read_text())
    job["method"]["reinforcement"].setdefault("limits", {}).update(SHORT)
    path.write_text(yaml.safe_dump(job))
    metrics = made / "run" / "metrics.jsonl"
    command = [AGENT_RFT, "train", "job.yaml", "--run-folder", "run"]
    environment = marked({**os.environ, "PYTHONPATH": str(ROOT)} | ENVIRONMENT)
    with (
        (made / "output").open("w") as output,
        subprocess.Popen(
            command, cwd=made, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        ) as training,
    ):
        while training.poll() is None and not (metrics.exists() and metrics.read_text()):
            time.sleep(0.2)
        training.send_signal(signal.SIGINT)
    return (made / "output").read_text()


@pytest.mark.nightly
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_trains_its_first_step(name: str, tmp_path: Path) -> None:
    with project(name, tmp_path) as (made, _):
        said = train_one_step(made)
    assert "step 1/" in said, said
    first, *_ = RunFolder(made / "run").metrics()
    assert first["step"] == 1 and first["rollouts_graded"] > 0
    assert processes_left() == []
