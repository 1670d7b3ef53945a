"""Python graders with one real worker, and how a grade of one fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent_rft.actors.graders.kinds.python_grader import PythonRunner
from agent_rft.errors import GraderFailed
from agent_rft.spec.graders import PythonGrader
from agent_rft.spec.operator.operator_config import OperatorConfig

Make = Callable[..., PythonRunner]
RUNTIME, SERVER = "python_grader_runtime_error", "python_grader_server_error"


@asynccontextmanager
async def python_graders(timeout_s: float) -> AsyncIterator[Make]:
    """A factory of graders, by default in the sandbox that always exists; closes them at the end."""
    made = []
    default_s = timeout_s

    def grader(
        source: str, timeout_s: float = default_s, range: tuple[float, float] | None = None, **more: Any
    ) -> PythonRunner:
        spec = PythonGrader(type="python", source=source, timeout_s=timeout_s, range=range)
        made.append(
            PythonRunner(spec, "mine", OperatorConfig(), **{"sandbox_method": "namespaces", "num_workers": 1, **more})
        )
        return made[-1]

    yield grader
    for one in made:
        await one.close()


async def failure(grader: PythonRunner, item: dict[str, Any] | None = None) -> GraderFailed:
    with pytest.raises(GraderFailed) as caught:
        await grader.grade({}, item or {}, "trace_1")
    return caught.value
