"""Program that `agent_rft.actors.grading.text_trials` starts for larger inputs.

It reads the text parts of a grader, a sample and an item, and prints the grade or failure of each part.
"""

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
    """Grade the `sample` and `item` in `values` with each part. Return {value, reason} or {error, details} by part."""
    return {name: await _grade_part(name, spec, values) for name, spec in parts.items()}


async def _grade_part(name: str, spec: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
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
