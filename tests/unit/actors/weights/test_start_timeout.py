"""The timeout of a start: a fixed part, and the time in which a slow disk reads the weights."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from agent_rft.actors.weights.start_timeout import START_TIMEOUT_S, start_timeout_s
from agent_rft.trainer.learner.adapter import CONFIG_FILE, WEIGHTS_FILE, AdapterConfig

GB = 10**9


def write_weights(folder: Path, num_bytes: int, name: str = "model.safetensors") -> None:
    """Write a file of this size that takes no space on the disk."""
    folder.mkdir(exist_ok=True)
    with (folder / name).open("wb") as file:
        os.truncate(file.fileno(), num_bytes)


def test_model_without_weights_has_the_fixed_part(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert start_timeout_s(tmp_path) == START_TIMEOUT_S == 900.0


@pytest.mark.parametrize(("gigabytes", "timeout_s"), [(0.5, 910.0), (16, 1220.0), (140, 3700.0)])
def test_each_gigabyte_of_weights_adds_twenty_seconds(tmp_path: Path, gigabytes: float, timeout_s: float) -> None:
    write_weights(tmp_path, int(gigabytes * GB))
    assert start_timeout_s(tmp_path) == timeout_s


def test_all_weight_files_count(tmp_path: Path) -> None:
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "pytorch_model.bin"):
        write_weights(tmp_path, GB, name)
    write_weights(tmp_path, GB, "optimizer.pt")
    assert start_timeout_s(tmp_path) == START_TIMEOUT_S + 60


def test_links_count_with_the_size_of_their_file(tmp_path: Path) -> None:
    write_weights(tmp_path / "blobs", GB, "a1b2")
    (tmp_path / "model.safetensors").symlink_to("blobs/a1b2")
    assert start_timeout_s(tmp_path) == START_TIMEOUT_S + 20


def test_adapter_counts_with_its_base(tmp_path: Path) -> None:
    base = tmp_path / "base"
    write_weights(base, 2 * GB)
    adapter = tmp_path / "adapter"
    write_weights(adapter, GB, WEIGHTS_FILE)
    (adapter / CONFIG_FILE).write_text(json.dumps(AdapterConfig(8, 16.0).to_peft_config(str(base))))
    assert start_timeout_s(adapter) == START_TIMEOUT_S + 60
