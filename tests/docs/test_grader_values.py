"""The table of return values in docs/graders.md describes what graders accept."""

from __future__ import annotations

import re

import pytest

from agent_rft.actors.graders.grader_protocol import Grader
from agent_rft.actors.graders.kinds.endpoint_grader import EndpointCaller
from agent_rft.actors.graders.kinds.python_grader import PythonRunner
from agent_rft.errors import GraderFailed
from agent_rft.spec.graders import EndpointGrader, PythonGrader
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from tests.support.fakes_http import LOCAL, FakeEndpoint, FakeTime, says
from tests.support.paths import ROOT

TITLE = "### Return values"
EFFECTS = {"trained on", "not trained on", "failure"}
CODE = re.compile(r"`([^`]+)`")
SOURCE = "import numpy\ndef grade(sample, item):\n    return eval(item['value'])"


def read_values(column: int) -> list[tuple[str, str]]:
    """Return the values in a column of the table, each with its effect."""
    section = (ROOT / "docs/graders.md").read_text().partition(TITLE)[2]
    lines = section.partition("\n\n")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [(value, row[2].strip()) for row in rows for value in CODE.findall(row[column])]


async def effect_of(grader: Grader, value: str = "") -> str:
    try:
        grade = await grader.grade({}, {"value": value}, "trace_1")
    except GraderFailed:
        return "failure"
    return "trained on" if grade.train else "not trained on"


async def test_python_graders_may_return_the_listed_values() -> None:
    runner = PythonRunner(PythonGrader(type="python", source=SOURCE), "mine", DEFAULT_CONFIG, num_workers=1)
    try:
        values = read_values(0)
        assert {effect for _, effect in values} == EFFECTS
        assert [(value, await effect_of(runner, value)) for value, _ in values] == values
    finally:
        await runner.close()


@pytest.mark.parametrize(("body", "effect"), read_values(1))
async def test_endpoints_may_answer_the_listed_bodies(body: str, effect: str) -> None:
    async with FakeEndpoint(says(body)) as server:
        spec = EndpointGrader(type="endpoint", url=server.url)
        grader = EndpointCaller(spec, "mine", LOCAL, FakeTime().timing())
        assert await effect_of(grader) == effect
        await grader.close()
