"""The benchmarks of a lent GPU run without the packages that such a machine lacks.

`benchmarks.gpu` needs torch, transformers, numpy and safetensors. `benchmarks.gpu_rank` also needs its wheels.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.gpu_rank.__main__ import BENCHMARK
from benchmarks.gpu_rank.packages import INSTALLED, WHEELS
from tests.support.paths import ROOT

OURS = ("agent_rft", "benchmarks", "examples")
ALLOWED = {"torch", "transformers", "numpy", "safetensors", *OURS, *sys.stdlib_module_names}
MISSING = {"pydantic", "ray", "vllm", "deepspeed", "typer", "rich", "aiohttp", "fastapi", "sqlalchemy", "psutil"}
SITE = """
import atexit, os, sys
from pathlib import Path

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {missing!r} else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
atexit.register(lambda: Path(os.environ["MODULES"], str(os.getpid())).write_text("\\n".join(sys.modules)))
"""


class Trial:
    """A benchmark's trial on a CPU, in processes that cannot import `missing`."""

    def __init__(self, folder: Path, package: str, missing: Collection[str]) -> None:
        for name in ("site", "modules"):
            (folder / name).mkdir()
        site = SITE.format(missing=set(missing))
        (folder / "site" / "sitecustomize.py").write_text(site)  # Python imports it at each start
        self._modules = folder / "modules"
        self._environment = os.environ | {"PYTHONPATH": str(folder / "site"), "MODULES": str(self._modules)}
        self._command = [sys.executable, "-m", package, "--tiny", "--out", str(folder / "out")]
        self._results = folder / "out" / "results.jsonl"

    def run(self, *options: str) -> str:
        """Run the trial with these options and return the content of its file of results."""
        command = [*self._command, *options]
        done = subprocess.run(command, cwd=ROOT, env=self._environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return self._results.read_text()

    @property
    def modules(self) -> set[str]:
        """The names of all modules that were imported."""
        return {name for file in self._modules.iterdir() for name in file.read_text().split("\n")}


def test_the_trial_on_a_cpu_runs_without_what_a_lent_machine_lacks(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "benchmarks.gpu", MISSING)
    written = trial.run()
    lines = [json.loads(line) for line in written.splitlines()]
    assert {line["part"] for line in lines} == {"machine", "correctness", "variants", "learner", "copies"}
    assert [line for line in lines if "error" in line or line.get("exact") is False] == []
    assert {line["name"] for line in lines if "not_measured" in line} == {
        "learner 8B, 4k, rollouts",
        "learner 4B LoRA, 16k, rollouts",
    }
    assert "fastest exact settings" in {line["name"] for line in lines}
    own = {name for name in trial.modules if name.partition(".")[0] in OURS}
    assert "agent_rft.trainer.model.policy" in own and "agent_rft.cluster.planning.memory_estimates" in own
    assert {package for name in own for package in imported_by(name)} <= ALLOWED
    assert trial.run() == written


def test_the_ranks_trial_needs_only_torch_transformers_and_the_packages_of_its_wheels(tmp_path: Path) -> None:
    trial = ranks_trial(tmp_path)
    check_figures(trial.run("--part", "stages"), ["stages"])
    assert "deepspeed.runtime.zero.stage3" in trial.modules
    assert "torch.utils.cpp_extension" not in trial.modules, "DeepSpeed compiles an operation"


@pytest.mark.nightly
def test_all_parts_of_the_ranks_trial_need_no_more(tmp_path: Path) -> None:
    trial = ranks_trial(tmp_path)
    written = trial.run()
    check_figures(written, BENCHMARK.parts)
    assert "torch.utils.cpp_extension" not in trial.modules, "DeepSpeed compiles an operation"
    assert trial.run() == written


def ranks_trial(folder: Path) -> Trial:
    """The trial of `benchmarks.gpu_rank` without the packages that neither a lent machine has nor our wheels."""
    there = with_dependencies(INSTALLED) | set(WHEELS.values())
    missing = {
        module
        for module, packages in importlib.metadata.packages_distributions().items()
        if not there & {canonicalize_name(package) for package in packages} and module not in OURS
    }
    assert {"ray", "vllm", "aiohttp"} <= missing
    return Trial(folder, "benchmarks.gpu_rank", missing)


def check_figures(written: str, parts: Collection[str]) -> None:
    """Assert that each of these parts, and no other, has figures, and that each figure was measured and is exact."""
    lines = [json.loads(line) for line in written.splitlines()]
    assert {line["part"] for line in lines} == set(parts)
    assert [line for line in lines if line.get("value") is None or line.get("exact") is False] == []


def with_dependencies(packages: Iterable[str]) -> set[str]:
    """The installed packages that these need, without extras, and these."""
    found: set[str] = set()
    pending = list(packages)
    while pending:
        name = canonicalize_name(pending.pop())
        if name in found:
            continue
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # of other systems, or optional
        found.add(name)
        needed = map(Requirement, requires)
        pending += [one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


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
