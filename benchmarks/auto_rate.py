"""A short reinforcement job of a real instruct model at the automatic learning rate: does it learn, and stay stable?

    python -m benchmarks.auto_rate MODEL_FOLDER [--multiplier 1] [--steps 10] [--test-rows 20]

The task is one in which a small model is sometimes right: name a capital and nothing else. It trains ten steps of four
rows, with everything else at `auto`, and grades 20 other rows before and after. SmolLM2-135M-Instruct takes seven
minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from agent_rft.cluster.records.run_folder import RunFolder
from benchmarks.common import print_figure

CAPITALS = (
    "France:Paris Italy:Rome Spain:Madrid Germany:Berlin Japan:Tokyo China:Beijing Russia:Moscow Egypt:Cairo "
    "Greece:Athens Portugal:Lisbon Austria:Vienna Poland:Warsaw Sweden:Stockholm Norway:Oslo Finland:Helsinki "
    "Denmark:Copenhagen Ireland:Dublin Hungary:Budapest Turkey:Ankara Iran:Tehran Iraq:Baghdad Thailand:Bangkok "
    "Vietnam:Hanoi Cuba:Havana Peru:Lima Chile:Santiago Argentina:Buenos_Aires Canada:Ottawa Kenya:Nairobi "
    "Belgium:Brussels Bulgaria:Sofia Romania:Bucharest Ukraine:Kyiv Serbia:Belgrade Croatia:Zagreb Lebanon:Beirut "
    "Syria:Damascus Jordan:Amman Israel:Jerusalem Nepal:Kathmandu Colombia:Bogota Venezuela:Caracas "
    "Uruguay:Montevideo Ecuador:Quito Morocco:Rabat Tunisia:Tunis Algeria:Algiers Libya:Tripoli Ghana:Accra "
    "Senegal:Dakar Indonesia:Jakarta Philippines:Manila Malaysia:Kuala_Lumpur Pakistan:Islamabad Afghanistan:Kabul "
    "Cyprus:Nicosia Iceland:Reykjavik Latvia:Riga Estonia:Tallinn Netherlands:Amsterdam"
)
BATCH_SIZE = 4
GRADER = """\
def grade(sample, item):
    text = sample["output_text"].strip().rstrip(".")
    if text == item["reference_answer"]:
        return 1.0
    return 0.2 if item["reference_answer"] in text else 0.0
"""


def rows() -> list[dict[str, Any]]:
    found = []
    for country, capital in (pair.split(":") for pair in CAPITALS.split()):
        question = f"What is the capital of {country}? Reply with the name of the city only."
        message = {"role": "user", "content": question}
        found.append({"messages": [message], "reference_answer": capital.replace("_", " ")})
    random.Random(0).shuffle(found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of an instruct model")
    parser.add_argument("--multiplier", type=float, default=1.0, help="learning_rate_multiplier")
    parser.add_argument("--steps", type=int, default=10, help=f"training steps of {BATCH_SIZE} rows")
    parser.add_argument("--test-rows", type=int, default=20, help="rows that are graded before and after")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="agent-rft-bench-"))
    every, num_trained = rows(), options.steps * BATCH_SIZE
    if num_trained + options.test_rows > len(every):
        parser.error(
            f"--steps {options.steps} and --test-rows {options.test_rows} need {num_trained + options.test_rows} rows, "
            f"and there are {len(every)}. Use fewer steps or test rows."
        )
    parts = {"train": every[:num_trained], "test": every[len(every) - options.test_rows :]}
    for name, part in parts.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    hyperparameters = {
        "batch_size": BATCH_SIZE,
        "n_epochs": 1,
        "eval_samples": 4,
        "learning_rate_multiplier": options.multiplier,
    }
    reinforcement = {
        "grader": {"type": "python", "source": GRADER},
        "hyperparameters": hyperparameters,
        "limits": {"max_completion_tokens": 32},
    }
    job = {
        "model": str(options.model.resolve()),
        "training_file": "train.jsonl",
        "test_file": "test.jsonl",
        "seed": 7,
        "method": {"type": "reinforcement", "reinforcement": reinforcement},
        "cluster": {"context_length": 256},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    agent_rft = str(Path(sys.executable).with_name("agent-rft"))
    subprocess.run([agent_rft, "train", str(folder / "job.yaml"), "--runs", str(folder / "runs")], check=True)
    (path,) = (folder / "runs").iterdir()
    run = RunFolder(path)
    before, after = run.evaluations()["test-before"].grade, run.evaluations()["test-after"].grade
    steps = [metrics["train_mean_grade"] for metrics in run.metrics()]
    print_figure("auto rate: grade after training", after, "", before=before, steps=steps)
    print(f"grade {before:.3f} -> {after:.3f}; of each step: {' '.join(f'{grade:.3f}' for grade in steps)}")


if __name__ == "__main__":
    main()
