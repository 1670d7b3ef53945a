"""The folder of a checkpoint says how its model writes conversations, in the files that every library reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_rft.chat.model_card import ModelCard, read_card
from agent_rft.chat.model_files import ModelFiles

CARD = ModelCard(family="llama3", tool_parser="llama3_json")
OWN = "{% for m in messages %}über{% endfor %}"


def written(folder: Path, files: ModelFiles, **before: Any) -> dict[str, Any]:
    """The JSON files of a folder that had those of `before`."""
    for name, values in before.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    files.write(folder)
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def test_the_jobs_template_replaces_the_models_own_wherever_it_stands(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ old }}")
    found = written(tmp_path, ModelFiles(CARD, OWN), tokenizer_config={"a": "ü", "chat_template": "{{ old }}"})
    assert found["tokenizer_config"] == {"a": "ü", "chat_template": OWN}
    assert (tmp_path / "chat_template.jinja").read_text() == OWN
    assert read_card(tmp_path) == CARD


def test_a_folder_without_a_template_of_its_own_gets_the_jobs_as_a_file(tmp_path: Path) -> None:
    assert written(tmp_path, ModelFiles(CARD, OWN), tokenizer_config={"a": 1})["tokenizer_config"] == {"a": 1}
    assert (tmp_path / "chat_template.jinja").read_text() == OWN


def test_the_models_own_template_stays_if_the_job_has_none(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ old }}")
    written(tmp_path, ModelFiles(CARD))
    assert (tmp_path / "chat_template.jinja").read_text() == "{{ old }}"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"generation_config": {"eos_token_id": 1, "top_k": 5}}, {"eos_token_id": [1, 2, 3], "top_k": 5}),
        ({"generation_config": {"eos_token_id": [3, 1]}}, {"eos_token_id": [3, 1, 2]}),
        ({"generation_config": {"eos_token_id": [2, 3]}}, {"eos_token_id": [2, 3]}),
        ({"generation_config": {"top_k": 5}, "config": {"eos_token_id": 0}}, {"eos_token_id": [0, 2, 3], "top_k": 5}),
        ({"generation_config": {}, "config": {"eos_token_id": 1}}, {"eos_token_id": [1, 2, 3]}),
        ({"config": {"eos_token_id": None}}, {"eos_token_id": [2, 3]}),
        ({"config": {}}, {"eos_token_id": [2, 3]}),
    ],
)
def test_all_end_tokens_are_in_the_generation_config(tmp_path: Path, before: Any, after: Any) -> None:
    assert written(tmp_path, ModelFiles(CARD, None, (2, 3)), **before)["generation_config"] == after
