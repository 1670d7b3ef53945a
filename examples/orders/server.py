"""Tools and grader of the shop behind HTTP: `uvicorn examples.orders.server:app --port 8010`."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, HTTPException

from examples.common.arguments import text_argument
from examples.orders.questions import grade
from examples.orders.shop import TOOLS, Shop

app = FastAPI()
shop = Shop()


@app.post("/tools/{name}")
async def call_tool(name: str, call: dict[str, Any]) -> dict[str, str]:
    tool = TOOLS.get(name)
    if tool is None:
        raise HTTPException(404)  # a configuration error: the job stops and names this endpoint
    return {"output": tool.run(shop, text_argument(call, tool.parameter))}


@app.post("/grade")
async def grade_answer(body: dict[str, Any]) -> dict[str, float]:
    item = body["item"]
    return {"score": grade(body["sample"]["output_text"], item["messages"][-1]["content"], item["values"])}
