"""The filings' tools and graders behind HTTP: `uvicorn examples.filings.server:app --port 8011`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, HTTPException

from examples.filings.rubrics import PRICE_OF_A_FALSE_CITATION, RUBRICS, false_citations
from examples.filings.world import TOOLS, Archive

app = FastAPI()
archive = Archive()


@app.post("/tools/{name}")
async def call_tool(name: str, call: dict[str, Any]) -> dict[str, str]:
    if name not in TOOLS:
        raise HTTPException(404)  # a configuration error: the dry run finds it
    parameter, _ = TOOLS[name]
    try:
        argument = str(json.loads(call["arguments"])[parameter])
    except (ValueError, KeyError, TypeError):
        raise HTTPException(422, f"give a {parameter}") from None  # the model reads this and continues
    return {"output": archive.search(argument) if name == "search" else archive.read(argument)}


@app.post("/grade/{name}")
async def grade(name: str, body: dict[str, Any]) -> dict[str, Any]:
    """`rubric` trains, `first` can be fooled, `held_out` is never trained on."""
    if name not in RUBRICS:
        raise HTTPException(404)
    item = body["item"]
    answer = body["sample"]["output_text"] or ""
    return asdict(RUBRICS[name](answer, archive.filings[item["company"]], item["points"]))


@app.post("/citations")
async def citations(body: dict[str, Any]) -> dict[str, Any]:
    """What the false citations of an answer cost: subtracted from a judge's score in job.yaml."""
    found = false_citations(body["sample"]["output_text"] or "", archive.filings[body["item"]["company"]])
    return {"score": PRICE_OF_A_FALSE_CITATION * found, "reason": f"false citations: {found}"}
