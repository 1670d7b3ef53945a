"""Start timeout of engines and learner ranks, which grows with the size of the model."""

from __future__ import annotations

from pathlib import Path

from agent_rft.trainer.learner.adapter import AdapterFolder

START_TIMEOUT_S = 900.0
"""Time limit, in seconds, for the imports, compilation and warm-up of a model process.

The time to read the weights is not included."""
READ_BYTES_PER_S = 50e6
"""Assumed minimum speed of reading weights, for a slow network disk that several nodes read concurrently."""


def start_timeout_s(model: Path) -> float:
    """Return the time limit, in seconds, for a process to load the model in the folder `model` and be ready.

    If the folder contains an adapter, the size of its base model counts as well.
    """
    adapter = AdapterFolder.read(model)
    folders = [model] if adapter is None else [model, adapter.base]
    files = [file for folder in folders for kind in ("*.safetensors", "*.bin") for file in folder.glob(kind)]
    return START_TIMEOUT_S + sum(file.stat().st_size for file in files) / READ_BYTES_PER_S
