"""Search and graders behind HTTP: `uvicorn examples.icd10.server:app --port 8014`.

`app` has the codes that the example ships, as in the SFT warm-up's conversations; `whole` has all codes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, HTTPException

from examples.icd10.codes import CodeList, all_codes, some_codes
from examples.icd10.graders import f1, held_out


def make_app(read: Callable[[], CodeList]) -> FastAPI:
    """Return an app that reads the list of codes when it starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.codes = read()
        yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/tools/search")
    def search(call: dict[str, Any]) -> dict[str, str]:
        try:
            query = json.loads(call["arguments"])["query"]
        except (ValueError, KeyError, TypeError, RecursionError):
            query = None
        if not isinstance(query, str):
            raise HTTPException(422, "give a query, a text")  # the model reads this and continues
        codes: CodeList = app.state.codes
        return {"output": codes.search(query)}

    @app.post("/grade")
    async def grade(body: dict[str, Any]) -> dict[str, Any]:
        return asdict(f1(body["sample"]["output_text"] or "", body["item"]))

    @app.post("/grade/held_out")
    async def grade_held_out(body: dict[str, Any]) -> dict[str, Any]:
        codes: CodeList = app.state.codes
        return asdict(held_out(body["sample"]["output_text"] or "", body["item"], codes.billable_names))

    return app


app = make_app(some_codes)
whole = make_app(all_codes)
