"""Measures the learner on one GPU, with torch and transformers alone.

    python3 -m benchmarks.gpu [--out build/gpu] [--part correctness variants] [--seconds 540]

Each figure is a line of OUT/results.jsonl. Start it again to continue where it stopped, was killed or ran out of time;
with --again it also measures again what failed. With --tiny it runs on a CPU at shapes that take no time, for typos.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.gpu.figures import Results, table

PARTS = ("machine", "correctness", "variants", "learner", "copies")
DONE, BROKEN = (0, 4), 5
"""Exit codes of a worker: no figure is left, or no time; the device is broken for this process."""
GRACE_S = 30.0
"""How long a figure may run past the deadline."""
LEAST_S = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="folder of results.jsonl (default: build/gpu, or build/gpu-tiny)")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help="default: all, in this order")
    parser.add_argument("--seconds", type=float, default=540.0, help="stop between two figures after this time")
    parser.add_argument("--again", action="store_true", help="measure again what failed")
    parser.add_argument("--tiny", action="store_true", help="a trial on a CPU")
    options = parser.parse_args()
    options.out = options.out or Path("build/gpu-tiny" if options.tiny else "build/gpu")
    results = Results(options.out)
    if options.again:
        results.drop_failed()
    deadline = time.monotonic() + options.seconds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the worker ends too
    code = 0
    while (left := deadline - time.monotonic()) > LEAST_S:
        code = _worker(options, left)
        lost = results.lost()
        if code in DONE:
            break
        if code == BROKEN:
            continue
        if lost is None:
            print(f"the worker failed with exit code {code} before its first figure", file=sys.stderr)
            return 1
        results.add(lost | {"error": f"the process ended with code {code}"})
    print(table(results.lines))
    failed = [name for name, line in results.lines.items() if line.get("error", "out of memory") != "out of memory"]
    wrong = [name for name, line in results.lines.items() if line.get("exact") is False]
    print(f"{len(results.lines)} figures; failed: {', '.join(failed) or '-'}; not exact: {', '.join(wrong) or '-'}")
    return 1 if failed else code


def _worker(options: argparse.Namespace, seconds: float) -> int:
    """Run the process that measures; its exit code, negative for a signal."""
    device = "cpu" if options.tiny else "cuda"
    command = [sys.executable, "-m", "benchmarks.gpu.worker", "--device", device, "--out", str(options.out)]
    command += ["--seconds", f"{seconds:.0f}", "--parts", *options.part, *(["--tiny"] if options.tiny else [])]
    environment = {
        # Sizes differ from figure to figure: without it, fragments of one could be too small for the next.
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "TORCHINDUCTOR_CACHE_DIR": str((options.out / "compiled").absolute()),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    } | os.environ
    process = subprocess.Popen(command, env=environment)
    try:
        return process.wait(timeout=seconds + GRACE_S)
    except subprocess.TimeoutExpired:
        return -9
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    raise SystemExit(main())
