"""LoRA against training of all weights on a real model: the shop's example, with the same seeds.

    python -m benchmarks.lora_orders build/smollm2-135m-instruct [--seeds 1 2 3] [--rank 32] [--trained all adapter]
                                     [--rows N]

Both begin with an SFT warm-up of all weights. LoRA's rate is ten times that of the example's job, as `auto` has it.
The difference is over the unseen rows, which both answer. All files are written below `build/orders/lora`. With
`--rows` each of the example's files is truncated to so many rows, a multiple of the batch size of 8.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from agent_rft.spec.step_plan import LORA_FACTOR
from benchmarks.common import copy_rows, print_figure
from examples.common.results import BUILD, paired_gain, table
from examples.common.way import Way, listening
from examples.orders.server import app

ORDERS: Final = Path(__file__).parents[1] / "examples" / "orders"
TRAINED: Final = ("all", "adapter")


def copy_example(folder: Path, max_rows: int | None) -> Path:
    """Copy the example and its chat template into `folder`, with at most `max_rows` rows per file; return the copy."""
    example = folder / ORDERS.name
    shutil.copytree(ORDERS, example)
    (folder / "common").mkdir()
    shutil.copy(ORDERS.parent / "common" / "chat_template.jinja", folder / "common")
    for file in (ORDERS / "data").glob("*.jsonl"):
        copy_rows(file, example / "data" / file.name, max_rows)
    return example


def train_adapter(job_file: Path, rank: int) -> None:
    """Change the job in `job_file` so that it trains an adapter."""
    job: dict[str, Any] = yaml.safe_load(job_file.read_text())
    algorithm = job["method"]["reinforcement"]["algorithm"]
    algorithm |= {"lora": {"rank": rank}, "learning_rate": algorithm["learning_rate"] * LORA_FACTOR}
    job_file.write_text(yaml.safe_dump(job))


def learn(model: Path, seed: int, trained: str, rank: int, max_rows: int | None) -> Mapping[str, Any]:
    """Train the warm start, then by reinforcement; return the summary."""
    size = "" if max_rows is None else f"-{max_rows}-rows"
    folder = BUILD / "orders" / "lora" / f"seed-{seed}-{trained}{size}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    example = copy_example(folder / "example", max_rows)
    job = example / "job.yaml"
    if trained == "adapter":
        train_adapter(job, rank)
    with listening(app) as url:
        way = Way(job, example, folder, model.resolve(), {"ORDERS_URL": url, "ORDERS_SEED": str(seed)})
        way.trained()
    summary: dict[str, Any] = json.loads(way.write_summary(seed, [trained]).read_text())
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the model's folder, in Hugging Face's form")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--trained", choices=TRAINED, nargs="+", default=list(TRAINED))
    parser.add_argument("--rows", type=int, help="rows of each file, a multiple of 8; default: the full files")
    options = parser.parse_args()
    for seed in options.seeds:
        found = [learn(options.model, seed, trained, options.rank, options.rows) for trained in options.trained]
        print(f"\n{table(found)}", flush=True)
        for trained, summary in zip(options.trained, found, strict=True):
            before, after = summary["stages"][-2:]
            name = f"orders, {trained}, seed {seed}: grade"
            print_figure(name, after["grade"], "", baseline=before["grade"], minutes=summary["minutes"])
        if len(found) > 1:
            difference, half = paired_gain(*(summary["stages"][-1]["grades"] for summary in found))
            print(f"{' against '.join(reversed(options.trained))}: {difference:+.3f} ± {half:.3f}", flush=True)


if __name__ == "__main__":
    main()
