"""LoRA against training of all weights on a real model: the shop's example, with the same seeds.

    python -m benchmarks.lora_orders build/smollm2-135m-instruct [--seeds 1 2 3] [--rank 32] [--trained all adapter]

Both begin with a warm start of all weights. The rate of LoRA is ten times that of the example's job, as `auto` has it.
The difference is over the unseen rows, which both answer. All files are written below `build/orders/lora`.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from examples.common.results import BUILD, paired_gain, table
from examples.common.way import Way, listening
from examples.orders.server import app
from trainer.spec.plan import LORA_FACTOR

ORDERS: Final = Path(__file__).parents[1] / "examples" / "orders"
TRAINED: Final = ("all", "adapter")


def write_job(path: Path, rank: int | None) -> Path:
    """The example's job with absolute paths; with a rank, it trains an adapter."""
    job: dict[str, Any] = yaml.safe_load((ORDERS / "job.yaml").read_text())
    job |= {name: str(ORDERS / job[name]) for name in ("training_file", "test_file")}
    job["model_options"]["chat_template"] = str(ORDERS / job["model_options"]["chat_template"])
    if rank is not None:
        algorithm = job["method"]["reinforcement"]["algorithm"]
        algorithm |= {"lora": {"rank": rank}, "learning_rate": algorithm["learning_rate"] * LORA_FACTOR}
    path.write_text(yaml.safe_dump(job))
    return path


def learn(model: Path, seed: int, trained: str, rank: int) -> Mapping[str, Any]:
    """Warm start and reinforcement; returns the summary."""
    folder = BUILD / "orders" / "lora" / f"seed-{seed}-{trained}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    job = write_job(folder / "job.yaml", rank if trained == "adapter" else None)
    with listening(app) as url:
        way = Way(job, ORDERS, folder, model.resolve(), {"ORDERS_URL": url, "ORDERS_SEED": str(seed)})
        way.trained()
    summary: dict[str, Any] = json.loads(way.write_summary(seed, [trained]).read_text())
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the model's folder, in Hugging Face's form")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--trained", choices=TRAINED, nargs="+", default=list(TRAINED))
    options = parser.parse_args()
    for seed in options.seeds:
        found = [learn(options.model, seed, trained, options.rank) for trained in options.trained]
        print(f"\n{table(found)}", flush=True)
        if len(found) > 1:
            difference, half = paired_gain(*(summary["stages"][-1]["grades"] for summary in found))
            print(f"{' against '.join(reversed(options.trained))}: {difference:+.3f} ± {half:.3f}", flush=True)


if __name__ == "__main__":
    main()
