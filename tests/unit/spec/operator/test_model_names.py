"""A name that an operator gives to a model also stands for its dated forms."""

from __future__ import annotations

from typing import get_args

import pytest
from openai.types.shared import ChatModel

from agent_rft.spec.operator.model_names import SNAPSHOTS, add_snapshots, find_similar_name, match_model_name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-5", "gpt-5"),
        ("gpt-5-2025-08-07", "gpt-5"),
        ("gpt-5-2031-02-28", "gpt-5"),
        ("o4-mini-2025-04-16", "o4-mini-2025-04-16"),
        ("o4-mini-2025-04-17", "o4-mini"),
        ("gpt-5-2025-02-29", None),
        ("gpt-5-2025-W08-7", None),
        ("gpt-5-2025-8-7", None),
        ("gpt-5-20250807", None),
        ("gpt-5-2025-08-07 ", None),
        ("gpt-5-٢٠٢٥-٠٨-٠٧", None),
        ("gpt-5-2025-08-07-2025-08-07", None),
        ("gpt-5-latest", None),
        ("gpt-5-mini-2025-08-07", None),
        ("-2025-08-07", None),
        ("2025-08-07", None),
        ("", None),
    ],
)
def test_a_dated_name_is_that_of_the_model_unless_the_operator_gave_it(name: str, expected: str | None) -> None:
    assert match_model_name(name, ["gpt-5", "o4-mini", "o4-mini-2025-04-16"]) == expected


def test_a_long_name_is_refused_at_once() -> None:
    """Both would take minutes if their time were quadratic in the length of what a client sends."""
    text = "-2025-08-07" * 500_000
    assert match_model_name(text, ["gpt-5"]) is None
    assert find_similar_name(text, ["gpt-5"]) is None


def test_a_list_has_the_known_dates_once() -> None:
    names = ["gpt-4o", "gpt-4o-2024-08-06", "Qwen/Qwen3-4B"]
    dated = ["gpt-4o-2024-05-13", "gpt-4o-2024-08-06", "gpt-4o-2024-11-20"]
    assert add_snapshots(names) == ["gpt-4o", *dated, "Qwen/Qwen3-4B"]


def test_each_snapshot_that_the_sdk_knows_is_known() -> None:
    other = ("audio", "search", "realtime")
    chat = {
        name
        for name in get_args(ChatModel)
        if match_model_name(name, [name[:-11]]) and not any(part in name for part in other)
    }
    assert "gpt-5-2025-08-07" in chat
    assert chat <= set(SNAPSHOTS)
    assert all(match_model_name(name, [name[:-11]]) for name in SNAPSHOTS)
