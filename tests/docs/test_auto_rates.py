"""The table of learning rates in docs/openai.md is what `auto` resolves to."""

from __future__ import annotations

import re

import pytest

from agent_rft.spec.step_plan import MethodType, auto_learning_rate
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "openai.md"
UNITS = {"M": 1e6, "B": 1e9}


def cells(first: str) -> list[str]:
    (line,) = (line for line in PAGE.read_text().splitlines() if line.strip().startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip().strip("|").split("|")][1:]


@pytest.mark.parametrize("method", ["reinforcement", "supervised"])
def test_the_rates_of_the_page_are_those_of_the_formula(method: MethodType) -> None:
    sizes = [match for cell in cells("parameters") if (match := re.match(r"([\d.]+)([MB])", cell))]
    assert len(sizes) == 5
    rates = [auto_learning_rate(method, round(float(size[1]) * UNITS[size[2]])) for size in sizes]
    assert [float(cell) for cell in cells(method)] == rates
