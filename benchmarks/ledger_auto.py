"""The ledger through OpenAI's SDK with every hyperparameter at `auto`: grade on the test rows before and after.

    python -m benchmarks.ledger_auto [--seeds 7 8 9] [--rows N] [--test-rows N]

Aim: at least +0.30 in 15 steps with each seed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from openai import OpenAI

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.serve.host.server_state import StateLocations
from agent_rft.serve.stores.key_store import KeyStore
from agent_rft.serve.stores.migration import open_database
from benchmarks.api import CONFIG, serving
from benchmarks.common import copy_rows, print_figure
from benchmarks.ledger_seeds import add_row_options
from examples.ledger.services import services
from examples.openai_sdk.agent_rft import DATA, Servers, follow, tools_and_grader, upload

MODEL = "gpt-5"
AUTO = ("batch_size", "n_epochs", "learning_rate_multiplier", "compute_multiplier", "eval_interval", "eval_samples")


def learn(client: OpenAI, files: dict[str, str], reinforcement: dict[str, Any], seed: int) -> str:
    """Train one job and return its id."""
    hyperparameters = dict.fromkeys(AUTO, "auto")
    method: Any = {"type": "reinforcement", "reinforcement": reinforcement | {"hyperparameters": hyperparameters}}
    job = client.fine_tuning.jobs.create(
        model=MODEL,
        method=method,
        seed=seed,
        training_file=files["train"],
        validation_file=files["validation"],
        extra_body={"test_file": files["test"]},
    )
    ended = follow(client, job.id)
    if ended.status != "succeeded":
        raise SystemExit(f"{job.id}: {ended.status}, {ended.error}")
    return str(job.id)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9])
    add_row_options(parser)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="agent-rft-bench-"))
    base = Path(__file__).parents[1] / "examples" / "ledger" / "base"
    operator = {"allowed_networks": ["127.0.0.0/8"], "aliases": {MODEL: str(base)}}
    (folder / CONFIG).write_text(yaml.safe_dump(operator))
    StateLocations(folder).save()
    database = open_database(folder, None)
    _, token = KeyStore(database).create("bench", ["write"])
    database.close()
    rows = {"train": options.rows, "validation": None, "test": options.test_rows}
    for name, max_rows in rows.items():
        copy_rows(DATA / f"{name}.jsonl", folder / f"{name}.jsonl", max_rows)
    results = []
    with services() as environment, serving(folder) as (url, _):
        servers = Servers(*(environment[name] for name in ("LEDGER_TOOLS_URL", "LEDGER_GRADER_URL", "LEDGER_TOKEN")))
        client = OpenAI(base_url=url, api_key=token)
        files = {name: upload(client, folder / f"{name}.jsonl") for name in rows}
        for seed in options.seeds:
            started = time.monotonic()
            job = learn(client, files, tools_and_grader(servers), seed)
            whole_s = time.monotonic() - started
            run = RunFolder(folder / "runs" / job)
            results.append((seed, run.evaluations(), len(run.metrics()), whole_s))
    print("| seed | grade before | after | change | calls before | after | steps | total s |")
    print("|---|---|---|---|---|---|---|---|")
    for seed, evaluations, steps, whole_s in results:
        before, after = evaluations["test-before"], evaluations["test-after"]
        print(
            f"| {seed} | {before.grade:.3f} | {after.grade:.3f} | {after.grade - before.grade:+.3f} "
            f"| {before.tool_calls:.2f} | {after.tool_calls:.2f} | {steps} | {whole_s:.0f} |"
        )
    for seed, evaluations, steps, whole_s in results:
        before, after = evaluations["test-before"], evaluations["test-after"]
        training = {"seed": seed, "steps": steps, "total_s": whole_s}
        print_figure(f"ledger at auto, seed {seed}: grade", after.grade, "", baseline=before.grade, **training)
        print_figure(
            f"ledger at auto, seed {seed}: tool calls",
            after.tool_calls,
            "calls",
            baseline=before.tool_calls,
            **training,
        )


if __name__ == "__main__":
    main()
