"""One short job by `agent-rft train`: seconds a step, reward, tokens a second, and what was lost.

    python -m benchmarks.gpu_cluster.job [--model FOLDER] [--steps 4] [--keep FOLDER]

With a model, it is the ledger's `job_gpu.yaml` (rows that say how an answer looks), on half of the GPUs each for
engines and learner ranks, which share one GPU. Without, it is its `job.yaml` with the base model of 0.56M parameters.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from agent_rft.actors.runtime.cpu_cores import count_usable_cores
from benchmarks.async_gain import NO_FILES
from benchmarks.ledger_seeds import for_real_model, run
from benchmarks.local import gpus_here

ROWS_PER_STEP = 16
CORES_EACH = 4


def settings_for(gpus: int, cores: int) -> dict[str, Any]:
    """The settings of `job_gpu.yaml` for this machine: one engine or rank per GPU."""
    engines = max(1, gpus // 2)
    ranks = max(1, gpus - engines)
    each = max(1, min(CORES_EACH, cores // (engines + ranks)))
    return {
        **{"cluster.engines": engines, "cluster.learner_ranks": ranks, "cluster.zero_stage": 3 if ranks > 1 else 0},
        **{"cluster.engine_cores": each, "cluster.rank_cores": each, "limits.max_completion_tokens": 4096},
    }


def figures(steps: list[dict[str, Any]]) -> dict[str, tuple[float, str]]:
    """Value and unit of each figure, from `metrics.jsonl`; times without the first step if there are others."""
    timed = steps[1:] or steps
    tokens = sum(m["rollouts_graded"] * m["completion_tokens_mean"] for m in timed)
    found = {
        "job: step": (fmean(m["time_step_s"] for m in timed), "s"),
        "job: sampled tokens": (tokens / sum(m["time_step_s"] for m in timed), "tokens/s"),
        "job: reward of the first step": (steps[0]["train_mean_reward"], ""),
        "job: reward of the last step": (steps[-1]["train_mean_reward"], ""),
        "job: discarded rollouts": (fmean(m["mean_unresponsive_rewards"] for m in steps), "share"),
        "job: pause per weight sync": (fmean(m["sync_pause_s"] for m in timed), "s"),
    }
    gaps = [m["logprob_gap"] for m in steps if "logprob_gap" in m]
    return found | ({"job: log-probability gap": (fmean(gaps), "nats")} if gaps else {})


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder of a trained model that calls tools, such as Qwen3-4B")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--keep", type=Path, help="folder for the run's metrics and events; the rest is deleted")
    return parser


def main() -> None:
    options = arguments().parse_args()
    gpus = gpus_here()
    rows = options.steps * ROWS_PER_STEP
    if options.model is None:
        folder, _ = run(7, "data/train.jsonl", {}, files=NO_FILES, rows=rows)
    else:
        with tempfile.TemporaryDirectory() as data:
            settings = settings_for(gpus, count_usable_cores())
            files = for_real_model(options.model, Path(data)) | NO_FILES
            folder, _ = run(7, files["training_file"], settings, files=files, rows=rows, template="job_gpu.yaml")
    for name, (value, unit) in figures(folder.metrics()).items():
        print(json.dumps({"name": name, "value": value, "unit": unit}), flush=True)
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        for file in folder.path.glob("*.jsonl"):
            if file.exists():  # the target of a link is missing if it was never written
                shutil.copy(file, options.keep)
    shutil.rmtree(folder.path.parent)


if __name__ == "__main__":
    main()
