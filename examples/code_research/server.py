"""The library's tools and the grader behind HTTP: `uvicorn examples.code_research.server:app --port 8030`."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI, HTTPException

from examples.code_research.library import TOOLS, Library
from examples.code_research.questions import grade, missing, most

app = FastAPI()
library = Library()


@app.post("/tools/{name}")
def call_tool(name: str, call: dict[str, Any]) -> dict[str, Any]:
    tool = TOOLS.get(name)
    if tool is None:
        raise HTTPException(404)  # a configuration error: the dry run names this endpoint
    try:
        output = tool.call(library, json.loads(call["arguments"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise HTTPException(422, str(error)) from None  # the model reads this and continues
    return {"type": "function_call_output", "id": call.get("id"), "call_id": call.get("call_id"), "output": output}


@app.post("/grade")
def grade_answer(body: dict[str, Any]) -> dict[str, Any]:
    answer, facts = body["sample"]["output_text"], body["item"]["facts"]
    return {"score": grade(answer, facts), "reason": f"missing: {', '.join(missing(answer, facts)) or 'nothing'}"}


@app.post("/most")
def most_of_answer(body: dict[str, Any]) -> dict[str, Any]:
    return {"score": most(body["sample"]["output_text"], body["item"]["facts"])}
