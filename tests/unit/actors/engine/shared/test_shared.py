"""Which jobs find the same shared engine."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.shared.shared_engine import SharedConfig
from agent_rft.trainer.learner.adapter import CONFIG_FILE, AdapterConfig

LORA = AdapterConfig(8, 16.0)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def own(model: Path) -> EngineConfig:
    return EngineConfig(str(model), "float32", context_length=512, max_num_seqs=8, seed=1, lora=LORA)


def shared(config: EngineConfig, lora: AdapterConfig = LORA, cores: int = 1, index: int = 0) -> SharedConfig:
    return SharedConfig.for_job(config, lora, cores, index)


def test_jobs_share_an_engine_whatever_is_their_own(base: Path) -> None:
    first = shared(own(base))
    assert first.engine.lora == AdapterConfig(8, 1.0) and first.adapter is None
    for other in (
        shared(replace(own(base), seed=2, log_stats=True)),
        shared(own(base), AdapterConfig(5, 32.0, ("q_proj",))),
    ):
        assert (other.name, other.engine) == (first.name, first.engine)
        assert other.name == first.name
    assert other.lora == AdapterConfig(5, 32.0, ("q_proj",))


def test_what_the_engine_is_made_of_is_in_its_name(base: Path) -> None:
    names = {
        shared(own(base)).name,
        shared(own(base), index=1).name,
        shared(own(base), cores=2).name,
        shared(own(base), AdapterConfig(9, 16.0)).name,
        shared(replace(own(base), gpus=1)).name,
        shared(replace(own(base), dtype="bfloat16")).name,
        shared(replace(own(base), context_length=1024)).name,
        shared(replace(own(base), max_num_seqs=4)).name,
        shared(replace(own(base), reasoning_delimiters=("<think>", "</think>"))).name,
    }
    assert len(names) == 9


def test_a_model_that_was_trained_again_in_its_folder_is_another(base: Path) -> None:
    before = shared(own(base)).name
    os.utime(base / "model.safetensors", (1, 1))
    assert shared(own(base)).name != before


def test_a_job_that_goes_on_with_an_adapter_shares_the_engine_of_its_base(base: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / CONFIG_FILE).write_text(json.dumps(LORA.to_peft_config(str(base))))
    found = shared(own(adapter))
    assert found.name == shared(own(base)).name
    assert found.adapter == adapter
