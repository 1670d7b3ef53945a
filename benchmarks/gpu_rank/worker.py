"""The process that measures figures of the rank: one of them on a GPU, all of them in the trial on a CPU."""

from __future__ import annotations

from torch import distributed as dist

from benchmarks.gpu import worker
from benchmarks.gpu_rank import equality, gather, offload, snapshot, step

PARTS: worker.Catalogue = {
    "equality": equality.figures,
    "step": step.figures,
    "snapshot": snapshot.figures,
    "offload": offload.figures,
    "gather": gather.figures,
    "stages": step.stages,
}


def main() -> int:
    try:
        # DeepSpeed does not give all memory back, and its process group lasts as long as its process.
        return worker.main(PARTS, one_per_process=True)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()  # its threads would keep the process from ending


if __name__ == "__main__":
    raise SystemExit(main())
