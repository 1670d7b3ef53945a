"""What the client of python graders on another node makes of its answers; with a real Ray: tests/ray."""

from __future__ import annotations

from typing import Any

import pytest

from agent_rft.actors.grading.grader_pool import GraderPool
from agent_rft.actors.grading.python_nodes import PythonNodes
from agent_rft.errors import GraderFailed
from agent_rft.spec.graders import PythonGrader
from agent_rft.spec.operator.operator_config import OperatorConfig

SPEC = PythonGrader(type="python", source="def grade(sample, item): return 0.5")


class Answers(PythonNodes):
    """Gives these answers to `grade`, and notes what it was asked."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(OperatorConfig())
        self.asked: list[tuple[Any, ...]] = []
        self._answers = iter(answers)

    async def call(self, method: str, *arguments: Any) -> Any:
        self.asked.append((method, *arguments))
        return next(self._answers) if method == "grade" else None


async def test_a_process_that_lacks_the_grader_gets_it_and_is_asked_again() -> None:
    nodes = Answers(None, [0.5, 0.1], [0.25, 0.1], None, (1.0, 0.2))
    grader = nodes.make_python_grader(SPEC, "mine", num_workers=3, start_ahead=False)
    grades = [await grader.grade({"output_text": "x"}, {"row": 1}, "trace_1") for _ in range(3)]
    assert [(grade.value, grade.latency_s) for grade in grades] == [(0.5, 0.1), (0.25, 0.1), (1.0, 0.2)]
    asks = ("grade", 0, {"output_text": "x"}, {"row": 1}, "trace_1")
    adds = ("add", 0, SPEC.model_dump(mode="json"), "mine", 3, False)
    assert nodes.asked == [asks, adds, asks, asks, asks, adds, asks]


@pytest.mark.parametrize("answer", ["1.0", [], [1.0], [True, 1.0], [1, 2.0], [1.0, None], {"value": 1.0}, [[1.0], 1.0]])
async def test_an_answer_that_is_no_grade_is_a_failure(answer: Any) -> None:
    with pytest.raises(GraderFailed, match="something other than a grade"):
        await Answers(answer).make_python_grader(SPEC, "mine").grade({}, {}, "trace_1")


async def test_without_a_cluster_graders_run_here() -> None:
    pool = GraderPool(SPEC, operator=OperatorConfig(python_grader_nodes=True))
    assert (await pool.grade({}, {}, "trace_1")).value == 0.5
    await pool.close()
