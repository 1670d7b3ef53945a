"""`benchmarks.gpu` runs on a machine that has torch, transformers, numpy and safetensors, and nothing else of ours."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

OURS = ("actors", "benchmarks", "cluster", "examples", "serve", "trainer")
ALLOWED = {"torch", "transformers", "numpy", "safetensors", *OURS, *sys.stdlib_module_names}
MISSING = {"pydantic", "ray", "vllm", "deepspeed", "typer", "rich", "aiohttp", "fastapi", "sqlalchemy", "psutil"}
SITE = f"""
import atexit, os, sys
from pathlib import Path

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {MISSING!r} else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
atexit.register(lambda: Path(os.environ["MODULES"], str(os.getpid())).write_text("\\n".join(sys.modules)))
"""


def test_the_trial_on_a_cpu_runs_without_what_a_lent_machine_lacks(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "modules").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE)  # Python imports it at each start
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site"), "MODULES": str(tmp_path / "modules")}
    command = [sys.executable, "-m", "benchmarks.gpu", "--tiny", "--out", str(tmp_path / "out")]
    first = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert first.returncode == 0, first.stdout[-3000:] + first.stderr[-3000:]
    written = (tmp_path / "out" / "results.jsonl").read_text()
    lines = [json.loads(line) for line in written.splitlines()]
    assert {line["part"] for line in lines} == {"machine", "correctness", "variants", "learner", "copies"}
    assert [line for line in lines if "error" in line or line.get("exact") is False] == []
    assert {line["name"] for line in lines if "not_measured" in line} == {
        "learner 8B, 4k, rollouts",
        "learner 4B LoRA, 16k, rollouts",
    }
    assert "fastest exact settings" in {line["name"] for line in lines}

    modules = {name for file in (tmp_path / "modules").iterdir() for name in file.read_text().split("\n")}
    own = {name for name in modules if name.partition(".")[0] in OURS}
    assert "trainer.model.policy" in own and "cluster.planning.memory" in own
    assert {package for name in own for package in imported_by(name)} <= ALLOWED

    again = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert again.returncode == 0 and (tmp_path / "out" / "results.jsonl").read_text() == written


def imported_by(module: str) -> set[str]:
    """The packages that one of our modules imports, anywhere in it."""
    base = ROOT.joinpath(*module.split("."))
    file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    packages: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text() if file.exists() else "")):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            packages.add(node.module.partition(".")[0])
    return packages
