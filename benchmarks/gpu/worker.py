"""The process that measures: all figures of the chosen parts that `results.jsonl` lacks, until the deadline.

It exits with `FINISHED` if no figure is left, with `STOPPED` if no time is left, and with `RESTART` if another process
has to continue: after an error that leaves the device unusable, or if each process measures one figure. The supervisor
starts it again then, or if it dies.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.gpu import copies, correctness, learner, machine, variants
from benchmarks.gpu.figures import Figure, Line, NotMeasured, Results, time_limit
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.supervisor import FINISHED, RESTART, STOPPED

Catalog = Mapping[str, Callable[[Machine], list[Figure]]]
PARTS: Catalog = {
    "machine": machine.figures,
    "correctness": correctness.figures,
    "variants": variants.figures,
    "learner": learner.figures,
    "copies": copies.figures,
}


def run(
    here: Machine, parts: Sequence[str], deadline: float, catalog: Catalog = PARTS, *, one_per_process: bool = False
) -> int:
    """Measure what is missing, in order; a figure that failed is not tried again."""
    where = here.describe()
    finished = {name for name, line in here.results.lines.items() if line.get("device") == where["device"]}
    missing = [(part, figure) for part in parts for figure in catalog[part](here) if figure.name not in finished]
    for index, (part, figure) in enumerate(missing):
        left = deadline - time.monotonic()
        if left < figure.takes_s:
            names = ", ".join(repr(other.name) for _, other in missing[index:])
            print(f"{left:.0f} s left; start again to measure what was left out: {names}", flush=True)
            return STOPPED
        labels = {"part": part, "unit": figure.unit, "aim": figure.aim, "anchor": figure.anchor}
        line: Line = {"name": figure.name, **labels, **where}
        here.results.start(line)
        line |= measure(here, figure)
        here.results.add(line)
        print(line.get("error") or line.get("not_measured") or line["value"], line["unit"], figure.name, flush=True)
        if one_per_process and index + 1 < len(missing):
            return RESTART
        try:
            here.synchronize()
        except RuntimeError:
            return RESTART
        if index + 1 < len(missing) and missing[index + 1][0] != part:
            correctness.eager.cache_clear()  # takes 2 GB
    return FINISHED


def measure(here: Machine, figure: Figure) -> Line:
    """What a figure's line says: its value, or the reason why it has none."""
    line: Line = {}
    began = time.monotonic()
    here.forget()
    try:
        with time_limit(figure.limit_s):
            line |= {"value": None, "baseline": None} | dict(figure.measure())
    except NotMeasured as error:
        line["not_measured"] = str(error)
    except torch.OutOfMemoryError:
        line |= {"error": "out of memory", "peak_gib": here.peak_gib()}
    except Exception as error:  # noqa: BLE001  # the other figures must not be lost with this one
        line |= {"error": f"{type(error).__name__}: {str(error)[:300]}", "traceback": traceback.format_exc()[-2000:]}
    line["took_s"] = round(time.monotonic() - began, 1)
    return line


def main(catalog: Catalog = PARTS, *, one_per_process: bool = False) -> int:
    """Measure what the arguments ask for. On a CPU, one process measures all figures in any case.

    Returns the exit code.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    # Float32 means float32: TF32 would hide errors of the size that the comparison looks for.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print(f"torch {torch.__version__} finds no GPU; --tiny tries the figures on a CPU", file=sys.stderr)
        return 1
    if device.type == "cpu":
        torch.set_num_threads(1)
    gc.freeze()  # collections after each figure then pass over what the imports left
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    here = Machine(device, dtype, options.tiny, Results(options.out))
    one_per_process = one_per_process and device.type != "cpu"
    return run(here, options.parts, deadline, catalog, one_per_process=one_per_process)


if __name__ == "__main__":
    raise SystemExit(main())
