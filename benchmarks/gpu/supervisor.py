"""The process that starts the one that measures, again if it dies, and prints all figures. Without torch."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.figures import Results, table

FINISHED, STOPPED, RESTART = 0, 4, 5
"""Exit codes of a worker: no figure is left, no time is left, another process has to continue."""
GRACE_S = 30.0
"""Seconds that a figure may run past the deadline."""
LEAST_S = 10.0


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A package with a `worker`: its name, the folder of its results, its parts in order, and its time in seconds."""

    package: str
    out: Path
    parts: Sequence[str]
    seconds: float

    def parser(self, description: str | None) -> argparse.ArgumentParser:
        """The options of every benchmark."""
        parser = argparse.ArgumentParser(
            prog=f"python3 -m {self.package}",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument(
            "--out", type=Path, help=f"folder of results.jsonl (default: {self.out}, or {self.out}-tiny with --tiny)"
        )
        parser.add_argument(
            "--part", nargs="+", choices=self.parts, default=list(self.parts), help="default: all, in this order"
        )
        parser.add_argument(
            "--seconds",
            type=float,
            default=self.seconds,
            help=f"start no figure that ends after this time (default: {self.seconds:g})",
        )
        parser.add_argument("--again", action="store_true", help="measure again what failed")
        parser.add_argument("--tiny", action="store_true", help="a trial on a CPU")
        return parser

    def supervise(self, options: argparse.Namespace, environment: Mapping[str, str]) -> int:
        """Measure what is missing, with these additional variables for the workers, and print all figures.

        Returns the exit code: 1 if a figure failed for another reason than memory.
        """
        out = options.out or Path(f"{self.out}-tiny" if options.tiny else self.out)
        results = Results(out)
        if options.again:
            results.drop_failed()
        deadline = time.monotonic() + options.seconds
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the worker ends too
        code = RESTART
        while (left := deadline - time.monotonic()) > LEAST_S:
            started = time.monotonic()
            code = self._worker(options, out, left, environment)
            lost = results.lost()
            if code in (FINISHED, STOPPED):
                break
            if code == RESTART:
                continue
            if lost is None:
                print(f"the worker failed with exit code {code} before its first figure", file=sys.stderr)
                return 1
            took_s = round(time.monotonic() - started, 1)
            results.add(lost | {"error": f"the process ended with code {code}", "took_s": took_s})
        if code == RESTART:
            code = STOPPED
            print("no time is left; start again to continue")
        print(table(results.lines))
        failed = [name for name, line in results.lines.items() if line.get("error", "out of memory") != "out of memory"]
        wrong = [name for name, line in results.lines.items() if line.get("exact") is False]
        print(f"{len(results.lines)} figures; failed: {', '.join(failed) or '-'}; not exact: {', '.join(wrong) or '-'}")
        return 1 if failed else code

    def _worker(self, options: argparse.Namespace, out: Path, seconds: float, environment: Mapping[str, str]) -> int:
        """Run the process that measures; its exit code, negative for a signal."""
        device = "cpu" if options.tiny else "cuda"
        command = [sys.executable, "-m", f"{self.package}.worker", "--device", device, "--out", str(out)]
        command += ["--seconds", f"{seconds:.0f}", "--parts", *options.part, *(["--tiny"] if options.tiny else [])]
        defaults = {
            # Sizes differ from figure to figure: without it, fragments of one could be too small for the next.
            "PYTORCH_ALLOC_CONF": "expandable_segments:True",
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
            "TORCHINDUCTOR_CACHE_DIR": str((out / "compiled").absolute()),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
        }
        process = subprocess.Popen(command, env={**defaults, **os.environ, **environment})
        try:
            return process.wait(timeout=seconds + GRACE_S)
        except subprocess.TimeoutExpired:
            return -9
        finally:
            process.kill()
            process.wait()
