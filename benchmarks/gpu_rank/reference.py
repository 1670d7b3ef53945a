"""The first update of the rank on a CPU in float32: a process, since DeepSpeed is imported for one kind of device.

python -m benchmarks.gpu_rank.reference --model FOLDER --out FILE [--tiny]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import distributed as dist

from benchmarks.gpu import correctness
from benchmarks.gpu.figures import Results
from benchmarks.gpu.machine import Machine
from benchmarks.gpu_rank.gradients import FirstUpdate, first_update
from benchmarks.gpu_rank.trial_rank import Layout, small_model, start_rank


def reference(machine: Machine) -> FirstUpdate:
    """Return the loss and the gradient of the rank on a CPU; the first call computes them."""
    file = Path(tempfile.gettempdir(), "reference.safetensors")
    if not file.exists():
        command = [sys.executable, "-m", "benchmarks.gpu_rank.reference", "--model", str(small_model(machine))]
        subprocess.run([*command, "--out", str(file), *(["--tiny"] if machine.tiny else [])], check=True)
    return FirstUpdate.load(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    here = Machine(torch.device("cpu"), torch.float32, options.tiny, Results(options.out.parent))
    try:
        rank = start_rank(here, options.model, Layout(zero_stage=0, dtype="float32"))
        first_update(rank, correctness.batch_of(here)).save(options.out)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
