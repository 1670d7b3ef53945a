"""Makes the base model from scratch: `python -m examples.ledger.make_base`.

Phase 0 trains a model in plain torch to look up values and copy them. Phase 1 trains it with this system's supervised
method to imitate the clumsy script: rows and a job are written to the build folder, and `agent-rft train` runs the job.
Neither phase trains on companies of validation or test; the score of phase 0 uses companies of validation.
"""

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Final

import torch

from examples.ledger.base_model import build_model
from examples.ledger.lookup_samples import LookupSamples
from examples.ledger.lookup_training import TARGET_SCORE, LookupResult, train_lookup
from examples.ledger.supervised_rows import write_supervised_rows
from examples.ledger.tokenizer import build_tokenizer
from examples.ledger.world import World

BUILD: Final = Path(__file__).parent / "build"
LOOKUP_MODEL: Final = "lookup"
ROWS: Final = "supervised.jsonl"
JOB: Final = "supervised.yaml"
NUM_SCORED: Final = 200
PRACTICE_WORLD_SEED: Final = 123
ALL_NAMES: Final = 10_000
"""Number of companies that exceeds the number of names, so that the practice world uses every name."""

SUPERVISED_JOB: Final = f"""\
# Phase 1 of ledger's base model. Paths are relative to this file.
model: {LOOKUP_MODEL}
training_file: {ROWS}
seed: 7
suffix: ledger-base
method:
  type: supervised
  supervised:
    hyperparameters: {{batch_size: 16, n_epochs: 1}}
    algorithm: {{learning_rate: 1.0e-3}}
"""


def practice_samples(world: World, rng: random.Random) -> LookupSamples:
    """Return samples from a world with other values, without the companies of validation and test."""
    excluded = frozenset(world.companies_in("validation") + world.companies_in("test"))
    practice = World(PRACTICE_WORLD_SEED, num_companies=ALL_NAMES, excluded=excluded)
    return LookupSamples(practice, practice.companies, build_tokenizer(), rng)


CARD = {
    "format": 1,
    "family": "hermes",
    "tool_parser": "hermes",
    "template_arguments": {},
    "stop_tokens": [],
    "tools_in_prompt": False,
    "template_digest": "2110209bc16d307f",
}
"""Model card for agent-rft. The model needs no tool descriptions in its prompt, because it is trained on its tools."""


def make_lookup_model(folder: Path, world: World, seed: int, limit_s: float) -> LookupResult:
    """Phase 0: train a model and save it with its tokenizer, whatever its score."""
    rng = random.Random(seed)
    model, tokenizer = build_model(seed), build_tokenizer()
    scored = LookupSamples(world, world.companies_in("validation"), tokenizer, random.Random(0))
    result = train_lookup(
        model, practice_samples(world, rng).draw, scored.scored_conversations(NUM_SCORED), rng, limit_s
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "agent_rft.json").write_text(json.dumps(CARD, indent=2) + "\n")
    return result


def write_supervised_job(folder: Path, world: World, seed: int) -> Path:
    """Write the rows and the job of phase 1, and return the job's path."""
    rng = random.Random(seed)
    write_supervised_rows(folder / ROWS, world, practice_samples(world, rng), rng)
    job = folder / JOB
    job.write_text(SUPERVISED_JOB, encoding="utf-8")
    return job


def main() -> None:
    """Run both phases, or stop after phase 0 if its score is too low."""
    parser = argparse.ArgumentParser(prog="python -m examples.ledger.make_base", description=__doc__)
    parser.add_argument("--phase0-seconds", type=float, default=900.0, help="time limit (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and samples (default %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads in phase 0 (default %(default)s)")
    parser.add_argument("--build-dir", type=Path, default=BUILD, help="output folder")
    parser.add_argument(
        "--no-phase1", action="store_true", help="write the rows and the job of phase 1, but do not run it"
    )
    options = parser.parse_args()
    command = Path(sys.executable).with_name("agent-rft")
    if not options.no_phase1 and not command.exists():
        sys.exit(f"phase 1 needs {command}: install this repository first, or pass --no-phase1")
    torch.set_num_threads(options.threads)
    options.build_dir.mkdir(parents=True, exist_ok=True)
    world = World()
    job = write_supervised_job(options.build_dir, world, options.seed)
    result = make_lookup_model(options.build_dir / LOOKUP_MODEL, world, options.seed, options.phase0_seconds)
    print(f"phase 0: look-up score {result.score:.3f} after {result.num_tokens} tokens", flush=True)
    if result.score < TARGET_SCORE:
        sys.exit(f"the score is below {TARGET_SCORE}: try more --phase0-seconds or another --seed")
    if not options.no_phase1:
        subprocess.run([command, "train", job], check=True)


if __name__ == "__main__":
    main()
