"""A supervised job of a tiny model, which trains without engines, for tests of checkpoints in whole commands."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.support.tiny_model import write_tiny_model

BATCH = 4


def supervised_job(folder: Path, steps: int, interval: int, store: str) -> Path:
    """Write job.yaml with `steps` batches and a checkpoint every `interval` steps; agent-rft.yaml names the `store`."""
    write_tiny_model(folder / "base")
    rows = [[{"role": "user", "content": "?"}, {"role": "assistant", "content": str(i)}] for i in range(BATCH * steps)]
    (folder / "rows.jsonl").write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    job = {"model": "base", "training_file": "rows.jsonl", "cluster": {"checkpoint_interval": {"steps": interval}}}
    job |= {"method": {"type": "supervised", "supervised": {"hyperparameters": {"batch_size": BATCH, "n_epochs": 1}}}}
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    (folder / "agent-rft.yaml").write_text(yaml.safe_dump({"checkpoint_store": store}))
    return folder / "job.yaml"
