"""Every setting says what it does where it is declared: the manual, JSON schemas and the OpenAPI page rely on it."""

from __future__ import annotations

import re

import pytest

from agent_rft.spec.endpoints import StrictModel
from tests.support.settings import all_models

FILLERS = frozenset({"a", "an", "the", "of", "in", "for", "to", "is", "its", "this", "that", "number", "setting"})


def words(text: str) -> set[str]:
    return {word.removesuffix("s") for word in re.findall("[a-z]+", text.lower())}


def says_nothing(name: str, description: str) -> bool:
    return len(words(description) - words(name) - FILLERS) < 2


@pytest.mark.parametrize("model", all_models(), ids=lambda model: model.__name__)
def test_every_setting_says_more_than_its_name(model: type[StrictModel]) -> None:
    described = {name: field.description or "" for name, field in model.model_fields.items()}
    assert [name for name, description in described.items() if says_nothing(name, description)] == []


@pytest.mark.parametrize("description", ["", "The batch size.", "Size of a batch"])
def test_a_description_that_repeats_the_name_does_not_count(description: str) -> None:
    assert says_nothing("batch_size", description)
    assert not says_nothing("batch_size", "Rows of the training file per step.")


@pytest.mark.parametrize("model", all_models(), ids=lambda model: model.__name__)
def test_descriptions_are_whole_sentences(model: type[StrictModel]) -> None:
    for name, field in model.model_fields.items():
        assert (field.description or "").endswith("."), name
