"""HTTP server for the tool, the grader and images of decks: `uvicorn examples.slides.server:app --port 8050`."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from PIL import Image

from examples.slides.measures import HEIGHT, WIDTH
from examples.slides.render import Busy, Chromium, Refused, Renderer, RenderFailed, name_of
from examples.slides.rubric import Verdict, describe, grade
from examples.slides.world import reports

RETRY: Final = {"Retry-After": "5"}


def make_app(renderer: Renderer) -> FastAPI:
    app = FastAPI()
    all_reports = reports()

    @app.exception_handler(RenderFailed)
    def failed(_: Request, error: RenderFailed) -> JSONResponse:  # no fault of the deck, and no grade
        status, headers = (503, RETRY) if isinstance(error, Busy) else (500, None)
        return JSONResponse({"detail": str(error)}, status, headers)

    @app.post("/tools/render")
    def render(call: dict[str, Any]) -> dict[str, str]:
        try:
            html = _html(call["arguments"])
            return {"output": describe(name_of(html), renderer.draw(html).deck)}
        except (ValueError, KeyError) as error:  # the model reads this and continues
            raise HTTPException(422, str(error)) from None

    @app.post("/grade")
    def grade_deck(body: dict[str, Any]) -> dict[str, Any]:
        item = body["item"]
        html = submitted(body["sample"])
        if html is None:
            return asdict(Verdict(0.0, "the answer is not the name of a deck that was rendered", {}))
        try:
            deck = renderer.draw(html).deck
        except Refused as error:
            return asdict(Verdict(0.0, str(error), {}))
        return asdict(grade(deck, all_reports[item["company"]], item["topics"], item["points"], item["slides"]))

    @app.get("/pictures/{name:path}")
    def picture(name: str) -> Response:
        """Return the image of a deck. It is an empty slide if the deck was refused or never rendered (grade 0)."""
        return Response(renderer.picture(name) or _empty(), media_type="image/png")

    return app


def _html(arguments: str) -> str:
    """Return the deck's HTML from the JSON arguments of a tool call.

    Raises:
        ValueError: The arguments contain no string `html`.
    """
    given = _object(arguments)
    if not isinstance(given.get("html"), str):
        raise ValueError("give html, a text")
    return str(given["html"])


def _object(text: str) -> dict[str, Any]:
    """Parse model-written text as a JSON object. Return an empty object if it is not one."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}


def submitted(sample: dict[str, Any]) -> str | None:
    """Return the HTML of the deck that a rollout's answer names, or None if the rollout did not render this deck."""
    name = _named(sample["output_text"] or "")
    return next((html for html in _rendered(sample) if name_of(html) == name), None)


def _named(answer: str) -> str:
    """Return the deck's name from an answer, which is either the name or `{"deck": name}`."""
    return str(_object(answer).get("deck", answer)).strip()


def _rendered(sample: dict[str, Any]) -> Iterator[str]:
    for call in sample["output_tools"]:
        if call["function"]["name"] == "render":
            try:
                yield _html(call["function"]["arguments"])
            except ValueError:
                continue


def _empty() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (WIDTH, HEIGHT), "white").save(file, "PNG")
    return file.getvalue()


app = make_app(Chromium())
