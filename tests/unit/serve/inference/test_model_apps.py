"""The engine of a served model: where its weights are, and what is wrong if they are not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.stores.model_registry import ModelRecord
from serve.inference.model_apps import EngineResources, engine_config
from trainer.chat.serving import ServeSettings
from trainer.errors import UserError

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

    config = engine_config(base_model("Qwen/Qwen3-4B"), RESOURCES, find)

    assert (asked, config.model, config.context_length) == (["Qwen/Qwen3-4B"], str(tmp_path), 512)


def test_a_model_that_is_not_there_is_named_with_the_remedy() -> None:
    with pytest.raises(
        UserError, match=r"gpt-5: there is no folder no/such-model.*run `hf download no/such-model` first"
    ):
        engine_config(base_model("no/such-model"), RESOURCES)


def test_a_folder_whose_configuration_cannot_be_read_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")

    with pytest.raises(UserError, match="is not a readable model"):
        engine_config(base_model(str(tmp_path)), RESOURCES)
