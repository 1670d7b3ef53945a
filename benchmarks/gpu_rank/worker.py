"""The process that measures figures of the rank: one of them on a GPU, all of them in the trial on a CPU."""

from __future__ import annotations

import os
import threading

from torch import distributed as dist

from benchmarks.gpu import worker
from benchmarks.gpu_rank import equality, gather, offload, snapshot, step

LEAVE_S = 15.0
"""Seconds for a worker to leave its process group."""
PARTS: worker.Catalog = {
    "equality": equality.figures,
    "step": step.figures,
    "snapshot": snapshot.figures,
    "offload": offload.figures,
    "gather": gather.figures,
    "stages": step.stages,
}


def main() -> int:
    # DeepSpeed does not give all memory back, and its process group lasts as long as its process.
    code = worker.main(PARTS, one_per_process=True)
    if dist.is_initialized():
        # The group's threads would keep the process from ending; after an error on a GPU, this may hang as well.
        timer = threading.Timer(LEAVE_S, os._exit, [code])
        timer.daemon = True
        timer.start()
        dist.destroy_process_group()
    return code


if __name__ == "__main__":
    raise SystemExit(main())
