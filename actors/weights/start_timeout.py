"""Timeout for engines and learner ranks to start, which depends on the size of the model."""

from __future__ import annotations

from pathlib import Path

from agent_rft.trainer.learner.adapter import AdapterFolder

START_TIMEOUT_S = 900.0
"""Timeout for everything but reading the weights: imports, compilation, warm-up."""
READ_BYTES_PER_S = 50e6
"""Rate at which weights are read at least: a slow network disk that several nodes read at once."""


def start_timeout_s(model: Path) -> float:
    """Return the seconds in which a process must load the model of a folder and be ready.

    For a folder with an adapter, the weights of its base count as well.
    """
    adapter = AdapterFolder.read(model)
    folders = [model] if adapter is None else [model, adapter.base]
    files = [file for folder in folders for kind in ("*.safetensors", "*.bin") for file in folder.glob(kind)]
    return START_TIMEOUT_S + sum(file.stat().st_size for file in files) / READ_BYTES_PER_S
