"""Durations of options."""

from __future__ import annotations

import pytest

from agent_rft.cli.api_commands.key_commands import parse_duration
from agent_rft.errors import UserError


def test_durations_have_a_number_and_a_unit() -> None:
    found = [parse_duration(text, "--expires") for text in ("90s", "10m", "1h", "90d", "8w")]
    assert found == [90, 600, 3_600, 90 * 86_400, 8 * 604_800]


@pytest.mark.parametrize("text", ["", "90", "d", "0d", "-1d", "1.5d", "90 d", "90D", "1y", "99999d", "１d", "1d\n"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UserError, match=r"--expires .*; give a number .*, such as 90d"):
        parse_duration(text, "--expires")
