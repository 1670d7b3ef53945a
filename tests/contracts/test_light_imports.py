"""Commands that start nothing load no library that takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import agent_rft
from tests.support.builders import raw_job
from tests.support.paths import BASE, LEDGER, ROOT

MODELS = {"torch", "transformers", "deepspeed", "vllm"}
HEAVY = MODELS | {"ray", "sqlalchemy", "alembic", "fastapi"}
FOLDERS = {"trainer", "actors", "cluster", "serve"}
"""Our folders, which are imported as `agent_rft.*` only: without the prefix there would be two of each class."""
SCRIPT = """
import atexit, sys
from pathlib import Path

file = Path(sys.argv.pop(1))
atexit.register(lambda: file.write_text("\\n".join(sys.modules)))
from agent_rft.cli.main import main
main()
"""


def loaded_by(folder: Path, *arguments: str) -> tuple[set[str], subprocess.CompletedProcess[str]]:
    """The modules that a command has loaded by its end, and what it wrote."""
    file = folder / "modules"
    command = [sys.executable, "-c", SCRIPT, str(file), *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    modules = set(file.read_text().split())
    assert not FOLDERS & modules
    return modules, done


def test_the_package_itself_loads_nothing_and_has_its_public_names() -> None:
    script = "import importlib, sys; before = set(sys.modules); import agent_rft; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["agent_rft"]
    for name in agent_rft.__all__:
        assert getattr(agent_rft, name).__name__ == name and name in dir(agent_rft)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        agent_rft.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_help_loads_only_the_command_line(tmp_path: Path) -> None:
    modules, done = loaded_by(tmp_path, "--help")
    assert done.returncode == 0 and "checkpoints" in done.stdout
    assert "httpx" in modules and not (HEAVY | {"pydantic", "numpy", "aiohttp"}) & modules


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_plan_loads_no_model_library_and_no_ray(tmp_path: Path, options: list[str]) -> None:
    modules, done = loaded_by(tmp_path, "plan", str(LEDGER / "job.yaml"), *options)
    assert "engine" in done.stdout
    assert "agent_rft.cluster.planning.placement" in modules and not HEAVY & modules


def test_schema_loads_only_the_settings(tmp_path: Path) -> None:
    modules, done = loaded_by(tmp_path, "schema", "job")
    assert '"additionalProperties": false' in done.stdout
    assert "agent_rft.spec.job" in modules and not (HEAVY | {"numpy", "aiohttp"}) & modules


@pytest.mark.parametrize("command", ["check", "train", "eval"])
def test_mistakes_in_a_jobs_form_are_reported_before_anything_heavy_is_loaded(tmp_path: Path, command: str) -> None:
    (tmp_path / "rows.jsonl").write_text('{"messages": [\n')
    (tmp_path / "job.yaml").write_text(
        f"modle: 1\nmodel: {LEDGER / 'base'}\ntraining_file: rows.jsonl\nmethod: {{type: supervised}}\n"
    )
    modules, done = loaded_by(tmp_path, command, str(tmp_path / "job.yaml"), "--runs", str(tmp_path))
    assert done.returncode == 2 and "modle" in done.stdout
    assert "training_file (rows.jsonl:1)" in done.stdout, "what its files show is in the same list"
    assert "to explain a code, run for example: agent-rft explain invalid_extra_forbidden" in done.stdout
    assert not HEAVY & modules


@pytest.mark.parametrize("command", ["check", "train"])
def test_mistakes_in_its_rows_and_tools_are_reported_before_anything_heavy_is_loaded(
    tmp_path: Path, command: str
) -> None:
    bad = ['{"messages": []}'] * 20
    (tmp_path / "rows.jsonl").write_text("\n".join(bad))
    job = raw_job(tools=[{"name": "cat", "server_url": "ftp://here"}])
    (tmp_path / "job.json").write_text(json.dumps(job | {"model": str(BASE), "training_file": "rows.jsonl"}))
    modules, done = loaded_by(tmp_path, command, str(tmp_path / "job.json"), "--runs", str(tmp_path))
    assert done.returncode == 2 and "2 problems" in done.stdout
    assert "training_file (rows.jsonl, rows 1-20): messages is missing or empty" in done.stdout
    assert "method.reinforcement.tools[0].server_url" in done.stdout
    assert not HEAVY & modules


def test_a_job_file_that_is_not_yaml_loads_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("model: [")
    modules, done = loaded_by(tmp_path, "check", str(tmp_path / "job.yaml"))
    assert done.returncode == 2 and "job.yaml" in done.stdout
    assert not (HEAVY | {"aiohttp"}) & modules


def test_import_loads_no_model_library_and_no_ray(tmp_path: Path) -> None:
    modules, done = loaded_by(tmp_path, "import", "openai", "--from", str(tmp_path))
    assert done.returncode == 1 and "job.json cannot be read" in done.stdout
    assert "agent_rft.cli.openai_import.job_conversion" in modules and not HEAVY & modules


def test_explain_loads_no_model_library_and_no_ray(tmp_path: Path) -> None:
    modules, done = loaded_by(tmp_path, "explain", "grad_norm")
    assert "norm of the gradient" in done.stdout.lower()
    assert not HEAVY & modules
