"""Measures the real learner rank on one GPU: DeepSpeed, checkpoints, offloading and gathering included.

    python3 -m benchmarks.gpu_rank [--out build/gpu-rank] [--wheels build/gpu-rank-wheels] [--part equality step]

Each figure is a line of OUT/results.jsonl and has a process of its own on a GPU. Start it again to continue where it
stopped, was killed or ran out of time; with --again it also measures again what failed. With --tiny it runs on a CPU at
shapes that take no time, for typos.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from benchmarks.gpu.supervisor import Benchmark
from benchmarks.gpu_rank.packages import FOLDER, MissingPackages, check_installed, missing_modules, unpack

BENCHMARK = Benchmark(
    "benchmarks.gpu_rank",
    Path("build/gpu-rank"),
    ("equality", "step", "snapshot", "offload", "gather", "stages"),
    seconds=450.0,  # and the last figure may run 30 s longer: eight minutes in all
)


def main() -> int:
    parser = BENCHMARK.parser(__doc__)
    parser.add_argument(
        "--wheels", type=Path, default=FOLDER, help="folder of wheels for what is not installed (default: %(default)s)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpu-rank-") as scratch:
        site = Path(scratch, "site")
        try:
            check_installed()
            unpack(missing_modules(), options.wheels, site)
        except MissingPackages as error:
            print(error, file=sys.stderr)
            return 1
        paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
        # Models and checkpoints are files of the workers' temporary folder, which goes away with this one.
        return BENCHMARK.supervise(options, {"PYTHONPATH": os.pathsep.join(paths), "TMPDIR": scratch})


if __name__ == "__main__":
    raise SystemExit(main())
