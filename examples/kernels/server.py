"""Tool and grader behind HTTP: `uvicorn examples.kernels.server:app --port 8012`.

Kernels do not run as Python here: the interpreter runs them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI

from examples.common.arguments import text_argument
from examples.kernels.grading import grade, tried

app = FastAPI()


@app.post("/tools/run")
def run_kernel(call: dict[str, Any]) -> dict[str, str]:
    return {"output": tried(text_argument(call, "code"), call["item"], call["trace_id"])}


@app.post("/grade")
def grade_kernel(body: dict[str, Any]) -> dict[str, Any]:
    return asdict(grade(body["sample"]["output_text"] or "", body["item"]))
