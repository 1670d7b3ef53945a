"""Process of `agent_rft.actors.grading.text_trials`: reads parts and values, writes each part's grade or failure."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from pydantic import TypeAdapter

from agent_rft.actors.grading.grader_factory import make_grader
from agent_rft.actors.runtime.process_setup import limit_process
from agent_rft.errors import GraderFailed
from agent_rft.spec.graders import SingleGrader

GRADER: TypeAdapter[SingleGrader] = TypeAdapter(SingleGrader)


async def grade_parts(parts: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return the answer for each part: {value, reason}, or {error, details}."""
    return {name: await _answer(name, spec, values) for name, spec in parts.items()}


async def _answer(name: str, spec: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    grader = make_grader(GRADER.validate_python(spec | {"name": name}))
    try:
        grade = await grader.grade(values["sample"], values["item"], "")
    except GraderFailed as error:
        return {"error": error.message, "details": error.details}
    finally:
        await grader.close()
    return {"value": grade.value, "reason": grade.reason}


if __name__ == "__main__":
    limit_process(cpu_s=int(sys.argv[1]), memory_bytes=int(sys.argv[2]))
    request = json.load(sys.stdin)
    print(json.dumps(asyncio.run(grade_parts(request["parts"], request["values"]))))
