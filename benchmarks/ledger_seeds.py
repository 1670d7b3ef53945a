"""The ledger job with several seeds, end to end through `agent-rft train`: grade and tool calls before and after.

python -m benchmarks.ledger_seeds [--seeds 1 2 3 4 5] [--training-file data/train_10.jsonl] [--set KEY=VALUE ...]
                                  [--rows N] [--test-rows N]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agent_rft.cluster.records.run_folder import RunFolder
from benchmarks.common import copy_rows, print_figure
from examples.ledger.services import run_with_services

LEDGER = Path(__file__).parents[1] / "examples" / "ledger"


@dataclass(frozen=True, slots=True)
class Learned:
    """The results of one seed on the test rows."""

    seed: int
    grade_before: float
    grade_after: float
    calls_before: float
    calls_after: float
    steps: int
    train_s: float
    whole_s: float


def job_of(seed: int, training_file: str, settings: dict[str, Any], template: str = "job.yaml") -> dict[str, Any]:
    """The example's job `template` with absolute paths, this seed and `settings`.

    Keys of `settings` are dotted paths, relative to `method.reinforcement` unless they start with `cluster`.
    """
    job: dict[str, Any] = yaml.safe_load((LEDGER / template).read_text())
    job |= {"seed": seed, "model": str(LEDGER / "base"), "training_file": str(LEDGER / training_file)}
    job |= {name: str(LEDGER / job[name]) for name in ("validation_file", "test_file")}
    for key, value in settings.items():
        *parents, name = key.split(".")
        section = job if parents[:1] == ["cluster"] else job["method"]["reinforcement"]
        for parent in parents:
            section = section.setdefault(parent, {})
        section[name] = value
    return job


def for_real_model(model: Path, folder: Path) -> dict[str, Any]:
    """What `job_gpu.yaml` trains: the files of a job, with rows in `folder` that say how an answer looks."""
    subprocess.run([sys.executable, "-m", "examples.ledger.make_data", "--instructed", str(folder)], check=True)
    files = {f"{name}_file": str(folder / f"{name.removesuffix('ing')}.jsonl") for name in ("training", "test")}
    return files | {"model": str(model.absolute()), "validation_file": None}


def run(
    seed: int,
    training_file: str,
    settings: dict[str, Any],
    *server_options: str,
    files: dict[str, Any] | None = None,
    rows: int | None = None,
    test_rows: int | None = None,
    environment: dict[str, str] | None = None,
    template: str = "job.yaml",
    may_fail: bool = False,
) -> tuple[RunFolder, float]:
    """Train one job in a separate process; return its run folder and the duration in seconds.

    The run folder stays in the system's temporary folder. `files` replaces the job's files; `rows` and `test_rows`
    truncate the training and the test file. `environment` has the URLs of servers that are already running. `template`
    is one of the example's job files. A job that `may_fail` may also be halted.
    """
    folder = Path(tempfile.mkdtemp(prefix="agent-rft-bench-"))
    job = job_of(seed, training_file, settings, template) | (files or {})
    for name, max_rows in (("training_file", rows), ("test_file", test_rows)):
        if max_rows is not None:
            copy_rows(Path(job[name]), folder / f"{name}.jsonl", max_rows)
            job[name] = f"{name}.jsonl"
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    agent_rft = str(Path(sys.executable).with_name("agent-rft"))
    started = time.monotonic()
    command = [agent_rft, "train", str(folder / "job.yaml"), "--runs", str(folder)]
    if environment is None:
        code = run_with_services(command, *server_options)
    else:
        code = subprocess.run(command, env=environment).returncode
    if code != 0 and not may_fail:
        raise subprocess.CalledProcessError(code, "agent-rft train")
    (path,) = (child for child in folder.iterdir() if child.is_dir())
    return RunFolder(path), time.monotonic() - started


def add_row_options(parser: argparse.ArgumentParser) -> None:
    """Add `--rows` and `--test-rows`."""
    parser.add_argument("--rows", type=int, help="training rows, a multiple of 16; default: the full file")
    parser.add_argument("--test-rows", type=int, help="test rows; default: the full file")


def learn(
    seed: int, training_file: str, settings: dict[str, Any], rows: int | None = None, test_rows: int | None = None
) -> Learned:
    folder, whole_s = run(seed, training_file, settings, rows=rows, test_rows=test_rows)
    evaluations, metrics = folder.evaluations(), folder.metrics()
    before, after = evaluations["test-before"], evaluations["test-after"]
    return Learned(
        seed,
        before.grade,
        after.grade,
        before.tool_calls,
        after.tool_calls,
        len(metrics),
        metrics[-1]["elapsed_s"],
        whole_s,
    )


def print_learned(name: str, result: Learned) -> None:
    """Print the JSON lines of a run under `name`."""
    training = {"seed": result.seed, "steps": result.steps, "training_s": result.train_s, "total_s": result.whole_s}
    print_figure(f"{name}: grade", result.grade_after, "", baseline=result.grade_before, **training)
    print_figure(f"{name}: tool calls", result.calls_after, "calls", baseline=result.calls_before, **training)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--training-file", default="data/train.jsonl")
    parser.add_argument(
        "--set",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="settings, relative to method.reinforcement, or with cluster.",
    )
    add_row_options(parser)
    options = parser.parse_args()
    settings = {key: yaml.safe_load(value) for key, _, value in (entry.partition("=") for entry in options.set)}
    print("| seed | grade before | after | change | calls before | after | change | steps | training s | total s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    results = []
    for seed in options.seeds:
        r = learn(seed, options.training_file, settings, options.rows, options.test_rows)
        results.append(r)
        calls = r.calls_after / r.calls_before - 1
        print(
            f"| {r.seed} | {r.grade_before:.3f} | {r.grade_after:.3f} | {r.grade_after - r.grade_before:+.3f} "
            f"| {r.calls_before:.2f} | {r.calls_after:.2f} | {calls:+.0%} "
            f"| {r.steps} | {r.train_s:.0f} | {r.whole_s:.0f} |",
            flush=True,
        )
    for r in results:
        print_learned(f"ledger, seed {r.seed}", r)


if __name__ == "__main__":
    main()
