"""agent_rft.json in a model's folder: what is written is read again, and what cannot be read says the fix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_rft.chat.dialect import Dialect
from agent_rft.chat.model_card import FILE, ModelCard, hash_template, read_card
from agent_rft.errors import UserError
from agent_rft.spec.model_options import LoraSpec, ModelOptions

DIALECT = Dialect("llama3", "llama3_json", ("<|eom_id|>",), None, {"date_string": "today"}, "{{ messages }}")


def test_a_card_is_read_as_it_was_written(tmp_path: Path) -> None:
    options = ModelOptions(stop_tokens=("<|eom_id|>",), tools_in_prompt=False)
    card = ModelCard.from_job(DIALECT, options, "{{ messages }}", LoraSpec(rank=8))
    (tmp_path / FILE).write_text(card.model_dump_json())
    assert read_card(tmp_path) == card
    assert json.loads((tmp_path / FILE).read_text()) == {
        "format": 1,
        "family": "llama3",
        "tool_parser": "llama3_json",
        "template_arguments": {"date_string": "today"},
        "stop_tokens": ["<|eom_id|>"],
        "tools_in_prompt": False,
        "template_digest": hash_template("{{ messages }}"),
        "lora": {"rank": 8, "alpha": 32.0, "targets": "all-linear"},
    }


def test_a_folder_without_a_card_says_nothing(tmp_path: Path) -> None:
    assert read_card(tmp_path) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "its agent_rft.json: Invalid JSON"),
        ("[]", "its agent_rft.json: Input should be an object"),
        ('{"format": 2, "family": "x", "tool_parser": "y"}', "format: Input should be less than or equal to 1"),
        ('{"format": 1, "family": "x", "tool_parser": ""}', "tool_parser: "),
        ('{"family": "x", "tool_parser": "y", "template_arguments": {"messages": 1}}', "'messages' is set by"),
    ],
)
def test_a_card_that_cannot_be_read_is_refused_with_the_fix(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(UserError) as error:
        read_card(tmp_path)
    assert said in error.value.message
    assert "delete the file and set model_options" in error.value.message


def test_a_job_that_starts_from_the_model_takes_what_it_does_not_say_itself() -> None:
    card = ModelCard.from_job(
        DIALECT, ModelOptions(stop_tokens=("<|eom_id|>",), tools_in_prompt=False), "{{ messages }}"
    )
    assert card.complete_options(ModelOptions()) == ModelOptions(
        template_arguments={"date_string": "today"},
        stop_tokens=("<|eom_id|>",),
        tool_parser="llama3_json",
        tools_in_prompt=False,
    )
    given = ModelOptions(template_arguments={}, stop_tokens=(), tool_parser="auto", tools_in_prompt=True)
    assert card.complete_options(given) == given
