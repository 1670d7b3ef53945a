"""Jobs in each state in a server's stores, with the records that drivers leave: what the console's tests look at."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.run.sinks.event_stream import EventStream
from agent_rft.events import EngineReplaced, PhaseStarted
from agent_rft.serve.jobs.processes.store_sink import StoreSink
from agent_rft.serve.jobs.processes.wire_metrics import checkpoint_metrics, make_wire_data
from agent_rft.serve.stores.database import Database
from agent_rft.serve.stores.job_states import JobStatus
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.job_tables import JobError
from agent_rft.serve.stores.model_registry import ModelRegistry
from agent_rft.serve.stores.sealed_secrets import SecretBox
from agent_rft.types import Group
from tests.support.builders import raw_job
from tests.support.jobs import NEW_JOB
from tests.support.synthetic import Synthetic

NO_MESSAGES = JobError("invalid_training_file", "training_file: line 7 has no messages: add them", "training_file")


@dataclass(frozen=True, slots=True)
class Made:
    """A job to make: the moves that lead to its state, and the share of its steps that are done."""

    name: str
    moves: Sequence[JobStatus]
    done: float = 0.0
    error: JobError | None = None


JOBS = (
    Made("first-try", ["failed"], error=NO_MESSAGES),
    Made("ledger-done", ["queued", "running", "succeeded"], 1.0),
    Made("ledger-paused", ["queued", "running", "paused"], 0.2),
    Made("orders-queued", ["queued"]),
    Made("ledger-live", ["queued", "running"], 0.4),
)
"""The oldest first."""


class Measured(Synthetic):
    """A synthetic run with the numbers that only engines and learners measure."""

    def metrics(self, step: int, total: int, groups: list[Group]) -> dict[str, float]:
        rng = random.Random(step)
        return super().metrics(step, total, groups) | {
            "trained_tokens": rng.uniform(8e3, 9e3),
            "held_out_grade_mean": 0.3 + 0.4 * step / total + rng.uniform(-0.05, 0.05),
            "time_checkpoint_s": 0.4 if step % 4 == 0 else 0.0,
            "call_errors/invalid_arguments": float(rng.randint(0, max(0, 6 - step // 8))),
            "call_errors/tool_error": float(rng.randint(0, 2)),
        }


def make_jobs(
    folder: Path, database: Database, secrets: SecretBox, owner: str, tool_url: str, steps: int
) -> dict[str, str]:
    """Makes JOBS in a server's folder, with tools at this address, and returns their ids by name."""
    store, models = JobStore(database), ModelRegistry(database, {"gpt-5": str(folder)})
    tools = [{"name": name, "server_url": tool_url} for name in ("search", "cat", "list")]
    numbers = {"batch_size": "auto", "n_epochs": 2, "eval_interval": 4, "reasoning_effort": "low"}
    spec: dict[str, Any] = raw_job(tools=tools, hyperparameters=numbers)
    spec |= {"model": str(folder), "training_file": "train.jsonl"}
    new = replace(NEW_JOB, owner=owner, validation_file="file-2", method=spec["method"], labels={"team": "ledger"})
    found = {}
    for made in JOBS:

        def seal(job_id: str) -> str:
            return secrets.sealer("job", job_id).seal(json.dumps(spec))

        job, _ = store.create(replace(new, suffix=made.name, digest=made.name), seal=seal)
        store.add_event(job.id, "info", f"Created fine-tuning job: {job.id}")
        found[made.name] = job.id
        for move in made.moves:
            more: dict[str, Any] = {"error": made.error} if made.error else {}
            if move == "succeeded":
                more["fine_tuned_model"] = f"ft:gpt-5:local:{made.name}:1"
            store.move(job.id, move, **more)
            if move == "running":
                _drive(folder, store, models, job.id, made, steps)
    return found


def _drive(folder: Path, store: JobStore, models: ModelRegistry, job_id: str, made: Made, total: int) -> None:
    """What the job's driver writes."""
    done = round(made.done * total)
    store.next_attempt(job_id, 0, "handle", failures=0)
    run = RunFolder(folder / "runs" / job_id)

    def name(step: int | None) -> str:
        return f"ft:gpt-5:local:{made.name}:1" + ("" if step is None else f":ckpt-step-{step}")

    sink = StoreSink(store, models, job_id, 1, "gpt-5", "key-1", run.path, name, {})
    stream = EventStream(made.name, [run, sink], [run])
    stream.emit(PhaseStarted(phase="actors", detail="engines"))
    Measured().play(stream, run, steps=done, total=total)
    stream.emit(EngineReplaced(step=done, engine="engine-1", reason="it did not answer"))
    run.close()
    sink.close()
    steps = {int(metrics["step"]): metrics for metrics in run.metrics()}
    for step in sorted(steps)[3::4][-4:]:
        models.add(name(step), run.path, "gpt-5", job_id)
        store.add_checkpoint(job_id, step, name(step), checkpoint_metrics(make_wire_data(steps[step])))
