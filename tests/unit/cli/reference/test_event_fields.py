"""Each kind of event and each of its fields says what it means."""

from __future__ import annotations

from dataclasses import fields

import pytest

from agent_rft.cli.reference.docstrings import docstring_text, field_docstrings
from agent_rft.cli.reference.event_fields import event_fields, json_type
from agent_rft.events import KINDS, Event
from agent_rft.types import Evaluation


@pytest.mark.parametrize("cls", KINDS.values(), ids=KINDS)
def test_a_kind_and_its_fields_are_described(cls: type[Event]) -> None:
    assert not docstring_text(cls).startswith(f"{cls.__name__}("), "the docstring that dataclasses generate"
    assert field_docstrings(cls).keys() == {field.name for field in fields(cls)}
    assert [name for name, _, _ in event_fields(cls)] == [field.name for field in fields(cls) if field.name != "step"]
    assert all(text.endswith((".", "`")) for text in field_docstrings(cls).values())


def test_types_are_named_as_in_json() -> None:
    assert json_type(float | None) == "number or null"
    assert json_type(tuple[str, ...]) == "list of strings"
    assert json_type(dict[str, float]) == "object of numbers"
    assert json_type(Evaluation) == "object"


def test_a_text_of_several_lines_becomes_one_line_a_paragraph() -> None:
    class Documented:
        """First line.

        Second
        paragraph.
        """

        size: int
        """How
        large."""
        plain: int

    assert docstring_text(Documented) == "First line.\n\nSecond paragraph."
    assert field_docstrings(Documented) == {"size": "How large."}
