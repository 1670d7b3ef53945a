"""Commands that take a job file: when they may call the loopback and private endpoints that it names."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_rft.cli.main import app
from agent_rft.errors import InvalidJob, UserError
from tests.support.builders import raw_job
from tests.support.fakes_http import FakeEndpoint, says

TOOL = {"name": "search", "server_url": "http://127.0.0.1:9/search"}
METADATA = {"name": "steal", "server_url": "http://169.254.169.254/latest"}


def problems_of(tmp_path: Path, command: str, *options: str, **environment: str) -> dict[str, str]:
    """Return message and fix by field; the job has no training file, so nothing is started."""
    job = tmp_path / "job.json"
    job.write_text(json.dumps(raw_job(tools=[TOOL, METADATA])))
    empty = {"RAY_ADDRESS": "", "AGENT_RFT_CONFIG": ""}
    error = CliRunner().invoke(app, [command, str(job), *options], env=empty | environment).exception
    assert isinstance(error, InvalidJob)
    return {problem.field: f"{problem.code}: {problem.message}: {problem.fix}" for problem in error.problems}


def tool(number: int) -> str:
    return f"method.reinforcement.tools[{number}].server_url"


@pytest.mark.parametrize("command", ["train", "check", "eval", "ready"])
def test_own_endpoints_need_no_configuration_on_a_cluster_of_the_command(command: str, tmp_path: Path) -> None:
    found = problems_of(tmp_path, command)
    assert tool(0) not in found
    assert found[tool(1)].startswith("forbidden_address: its URL points to 169.254.169.254, a cloud metadata address")
    others = tmp_path / "operator.yaml"
    others.write_text("unsandboxed_python: true\n")
    assert tool(0) not in problems_of(tmp_path, command, "--config", str(others))


@pytest.mark.parametrize("command", ["train", "check", "eval", "ready"])
def test_own_endpoints_stay_refused_elsewhere(command: str, tmp_path: Path) -> None:
    decided = tmp_path / "operator.yaml"
    decided.write_text("allowed_networks: []\n")
    for found in (
        problems_of(tmp_path, command, "--address", "10.0.0.9:6379"),
        problems_of(tmp_path, command, RAY_ADDRESS="10.0.0.9:6379"),  # as in Ray jobs and RayJobs
        problems_of(tmp_path, command, "--config", str(decided)),
        problems_of(tmp_path, command, AGENT_RFT_CONFIG=str(decided)),
    ):
        assert "forbidden_address" in found[tool(0)] and "add 127.0.0.1:9 to allowed_networks" in found[tool(0)]


async def test_grade_calls_a_grader_on_this_machine(tmp_path: Path) -> None:
    samples = tmp_path / "samples.jsonl"
    samples.write_text('{"sample": "17", "item": {}}\n')
    decided = tmp_path / "operator.yaml"
    decided.write_text("allowed_networks: []\n")
    async with FakeEndpoint(says({"score": 0.75})) as server:
        grader = tmp_path / "grader.json"
        grader.write_text(json.dumps({"type": "endpoint", "url": server.url}))
        command = ["grade", str(samples), "--grader", str(grader), "--json"]
        for options, environment, reason in (
            ([], {}, None),
            ([], {"RAY_ADDRESS": "10.0.0.9:6379"}, "loopback"),
            (["--config", str(decided)], {}, "loopback"),
        ):
            environment = {"RAY_ADDRESS": "", "AGENT_RFT_CONFIG": ""} | environment
            result = await asyncio.to_thread(CliRunner().invoke, app, [*command, *options], env=environment)
            if reason is None:
                assert json.loads(result.stdout)["grade"]["value"] == 0.75
            else:
                assert isinstance(result.exception, UserError) and reason in str(result.exception)
    assert len(server.received) == 1
