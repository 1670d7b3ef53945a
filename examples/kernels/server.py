"""The tool and the grader behind HTTP: `uvicorn examples.kernels.server:app --port 8012`.

No kernel runs as Python here: the interpreter runs it.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, HTTPException

from examples.kernels.grading import grade, tried

app = FastAPI()


@app.post("/tools/run")
def run_kernel(call: dict[str, Any]) -> dict[str, str]:
    try:
        code = str(json.loads(call["arguments"])["code"])
    except (ValueError, KeyError, TypeError):
        raise HTTPException(422, "give code") from None  # the model reads this and continues
    return {"output": tried(code, call["item"], call["trace_id"])}


@app.post("/grade")
def grade_kernel(body: dict[str, Any]) -> dict[str, Any]:
    return asdict(grade(body["sample"]["output_text"] or "", body["item"]))
