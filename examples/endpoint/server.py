"""A minimal tool and grader: `TOKEN=... uvicorn examples.endpoint.server:app --port 8000`.

Without TOKEN, requests need no token.
"""

import json
import os
from typing import Any

from fastapi import FastAPI, Header, HTTPException

app = FastAPI()


@app.post("/tools/add")
async def add(call: dict[str, Any], authorization: str = Header("")) -> dict[str, str]:
    token = os.environ.get("TOKEN", "").strip()
    if token and authorization != f"Bearer {token}":
        raise HTTPException(401)  # a configuration error: the job stops and names this endpoint
    try:
        arguments = json.loads(call["arguments"])
        return {"output": str(arguments["a"] + arguments["b"])}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise HTTPException(400, f"give numbers a and b: {error}") from None  # the model reads this and continues


@app.post("/grade")
async def grade(body: dict[str, Any]) -> dict[str, Any]:
    return {"score": float(body["sample"]["output_text"].strip() == body["item"]["reference_answer"])}
