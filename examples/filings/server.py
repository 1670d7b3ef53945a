"""Tools and graders of the filings behind HTTP: `uvicorn examples.filings.server:app --port 8011`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, HTTPException

from examples.common.arguments import text_argument
from examples.filings.rubrics import PRICE_OF_A_FALSE_CITATION, RUBRICS, false_citations, uncited
from examples.filings.world import TOOLS, Archive

app = FastAPI()
archive = Archive()


@app.post("/tools/{name}")
async def call_tool(name: str, call: dict[str, Any]) -> dict[str, str]:
    if name not in TOOLS:
        raise HTTPException(404)  # a configuration error: the dry run finds it
    parameter, _ = TOOLS[name]
    argument = text_argument(call, parameter)
    return {"output": archive.search(argument) if name == "search" else archive.read(argument)}


@app.post("/grade/{name}")
async def grade(name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Grade an answer by `rubric` (for training), `first` (can be fooled) or `held_out` (never trained on)."""
    if name not in RUBRICS:
        raise HTTPException(404)
    item = body["item"]
    answer = body["sample"]["output_text"] or ""
    return asdict(RUBRICS[name](answer, archive.filings[item["company"]], item["points"]))


@app.post("/citations")
async def citations(body: dict[str, Any]) -> dict[str, Any]:
    """Return the price of an answer's false and missing citations, which job.yaml subtracts from a judge's score."""
    answer = body["sample"]["output_text"] or ""
    false, missing = false_citations(answer, archive.filings[body["item"]["company"]]), uncited(answer)
    reason = f"false citations: {false}, sentences without one: {missing}"
    return {"score": PRICE_OF_A_FALSE_CITATION * (false + missing), "reason": reason}
