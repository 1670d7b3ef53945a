"""Where python graders find no sandbox: which problem a job has, and on which field."""

from __future__ import annotations

import pytest

from agent_rft.cluster.checks.check_job import _sandbox_problems
from agent_rft.errors import GraderFailed, RftError, UserError
from agent_rft.spec.job import Reinforcement
from agent_rft.spec.operator.operator_config import OperatorConfig
from tests.support.builders import EXACT

PYTHON = {"type": "python", "source": "def grade(sample, item): return 1.0"}
WITH_PYTHON = Reinforcement.model_validate(
    {"grader": {"type": "multi", "graders": {"a": EXACT, "b": PYTHON}, "calculate_output": "a + b"}}
)
FIELD = "method.reinforcement.grader.graders.b"
OPERATOR = OperatorConfig(python_grader_nodes=True)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("no way: allow it", problem="no way", fix="allow it"), "no_sandbox"),
        (GraderFailed("it did not answer within 60 s", kind="late"), "no_free_resources"),
    ],
)
async def test_a_python_grader_without_a_sandbox_or_a_node_is_a_problem(error: RftError, code: str) -> None:
    async def fails(operator: OperatorConfig) -> None:
        assert operator is OPERATOR
        raise error

    (problem,) = await _sandbox_problems(WITH_PYTHON, OPERATOR, fails)
    assert (problem.code, problem.field) == (code, FIELD)
    assert ("python_grader" in problem.fix) == (code == "no_free_resources")


async def test_other_graders_need_none() -> None:
    async def fails(operator: OperatorConfig) -> None:
        raise AssertionError

    assert await _sandbox_problems(Reinforcement.model_validate({"grader": EXACT}), OPERATOR, fails) == []


async def test_without_a_cluster_the_sandbox_of_this_machine_counts() -> None:
    """As for `agent-rft grade`, which runs graders where it is called."""
    assert await _sandbox_problems(WITH_PYTHON, OPERATOR) == []
