"""The engine of a served model: where its weights are, and what is wrong if they are not there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agent_rft.chat.serve_settings import ServeSettings
from agent_rft.errors import UserError
from agent_rft.serve.inference.model_apps import SERVED_RANK, EngineResources, RayServeModels, make_engine_config
from agent_rft.serve.stores.model_registry import ModelRecord
from agent_rft.spec.operator.operator_config import EngineLimits
from agent_rft.trainer.learner.adapter import AdapterConfig

RESOURCES = EngineResources(cores=1, gpus=0, max_num_seqs=4)


def base_model(at: str) -> ModelRecord:
    """A base model, as an operator's alias `gpt-5: at` makes it."""
    return ModelRecord("gpt-5", at, "gpt-5", None, 0, ServeSettings())


def test_a_base_model_with_a_hugging_face_name_is_served_from_the_cache(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    asked: list[str] = []

    def find(name: str) -> tuple[Path, None]:
        asked.append(name)
        return tmp_path, None

    config = make_engine_config(base_model("Qwen/Qwen3-4B"), RESOURCES, find)

    assert (asked, config.model, config.context_length) == (["Qwen/Qwen3-4B"], str(tmp_path), 512)


def test_a_model_that_is_not_there_is_named_with_the_fix() -> None:
    with pytest.raises(
        UserError, match=r"gpt-5: the folder no/such-model does not exist.*run `hf download no/such-model` first"
    ):
        make_engine_config(base_model("no/such-model"), RESOURCES)


def test_a_folder_whose_configuration_cannot_be_read_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")

    with pytest.raises(UserError, match="cannot be read"):
        make_engine_config(base_model(str(tmp_path)), RESOURCES)


def base_folder(folder: Path, context: int) -> ModelRecord:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": context}))
    return base_model(str(folder))


def adapter(base: ModelRecord, name: str, rank: int = 8, context_length: int | None = None) -> ModelRecord:
    """A tuned model whose folder has an adapter of `base`."""
    folder = Path(base.folder).parent / name
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(AdapterConfig(rank, 16.0).to_peft_config(base.folder)))
    return ModelRecord(name, str(folder), "gpt-5", "ftjob-1", 0, ServeSettings(context_length=context_length))


def test_an_engine_of_adapters_is_that_of_their_base_with_slots(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base", context=512)
    config = make_engine_config(adapter(base, "small", context_length=128), RESOURCES)
    assert (config.model, config.context_length, config.adapter_slots) == (base.folder, 512, RESOURCES.max_adapters)
    assert config.lora is not None and config.lora.rank == SERVED_RANK
    larger = make_engine_config(adapter(base, "large", rank=SERVED_RANK + 1), RESOURCES)
    assert larger.lora is not None and larger.lora.rank == 64
    assert make_engine_config(base, RESOURCES).lora is None


def test_adapters_of_one_base_share_an_application_with_it(tmp_path: Path) -> None:
    hosting = RayServeModels(EngineLimits(), RESOURCES)
    base, other = base_folder(tmp_path / "base", context=64_000), base_folder(tmp_path / "other", context=512)
    (shared,) = hosting.app_names(adapter(base, "a"))
    assert hosting.app_names(adapter(base, "b", rank=SERVED_RANK, context_length=128)) == [shared]
    first, own = hosting.app_names(base)
    assert first == shared != own
    apart = [
        *hosting.app_names(adapter(base, "of-a-larger-rank", rank=SERVED_RANK + 1)),
        *hosting.app_names(adapter(base, "of-a-longer-context", context_length=60_000)),
        *hosting.app_names(adapter(other, "of-another-base")),
        *hosting.app_names(replace(base, settings=ServeSettings(temperature=0.5)))[1:],
    ]
    assert len({shared, own, *apart}) == 6


def test_an_adapter_of_a_kind_that_is_not_served_is_an_error_without_its_path(tmp_path: Path) -> None:
    record = adapter(base_folder(tmp_path / "base", context=512), "dora")
    path = Path(record.folder, "adapter_config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"use_dora": True}))
    with pytest.raises(UserError, match="use_dora") as raised:
        RayServeModels(EngineLimits(), RESOURCES).app_names(record)
    assert str(tmp_path) in raised.value.message and str(tmp_path) not in raised.value.public_message
