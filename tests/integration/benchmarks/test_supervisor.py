"""A worker that dies or hangs loses one figure only, and a rerun measures what is left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGE = {
    "__init__.py": "",
    "worker.py": """
        import os, signal, sys, threading
        from pathlib import Path
        from benchmarks.gpu.figures import Results, time_limit
        from benchmarks.gpu.supervisor import FINISHED, RESTART

        def hang():
            with time_limit(0.2):
                threading.Event().wait()

        works = {
            "first": lambda: None,
            "dies": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "hangs": hang,
            "last": lambda: None,
        }
        results = Results(Path(sys.argv[sys.argv.index("--out") + 1]))
        left = [name for name in works if name not in results.lines]
        if left:
            line = {"name": left[0], "unit": "s"}
            results.start(line)
            works[left[0]]()
            results.add(line | {"value": 1.0})
        raise SystemExit(RESTART if len(left) > 1 else FINISHED)
    """,
    "__main__.py": """
        from pathlib import Path
        from benchmarks.gpu.supervisor import Benchmark

        own = Benchmark("own", Path("results"), ("own",), seconds=60.0)
        raise SystemExit(own.supervise(own.parser(None).parse_args(), {}))
    """,
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "own").mkdir()
    for name, text in PACKAGE.items():
        (tmp_path / "own" / name).write_text("\n".join(line[8:] for line in text.splitlines()) + "\n")
    return tmp_path


def measure(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "own", "--tiny", *options]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_a_figure_that_dies_or_hangs_is_recorded_and_the_others_are_measured_once(package: Path) -> None:
    done = measure(package)
    assert done.returncode == 1, done.stderr
    file = package / "results-tiny" / "results.jsonl"
    lines = {line["name"]: line for line in map(json.loads, file.read_text().splitlines())}
    assert [lines[name]["value"] for name in ("first", "last")] == [1.0, 1.0]
    assert lines["dies"]["error"] == "the process ended with code -9"
    assert lines["hangs"]["error"] == "the process ended with code 1" and "Timeout (0:00:00.200000)!" in done.stderr
    assert "4 figures; failed: dies, hangs; not exact: -" in done.stdout

    written = file.read_text()
    assert measure(package).returncode == 1 and file.read_text() == written


def test_no_figure_starts_without_time_for_it(package: Path) -> None:
    done = measure(package, "--seconds", "5")
    assert done.returncode == 4 and "no time is left; start again to continue" in done.stdout
    assert not (package / "results-tiny" / "results.jsonl").exists()
