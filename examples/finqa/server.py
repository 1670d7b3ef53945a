"""Tools and graders of the reports behind HTTP: `uvicorn examples.finqa.server:app --port 8041`.

`FINQA_DATA` is a folder that `examples.finqa.convert` has written. The default is `data/`, with generated reports.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI, HTTPException
from pydantic import ValidationError

from examples.finqa.embeddings import EmbeddingsFailed, embeddings_of
from examples.finqa.grades import grade, held_out, most
from examples.finqa.library import TOOLS, Library, read_documents

GRADES: Final = {"grade": grade, "most": most, "held_out": held_out}
logger = logging.getLogger("uvicorn.error")


def make_app(library: Library) -> FastAPI:
    app = FastAPI()

    @app.post("/tools/{name}")
    def call_tool(name: str, call: dict[str, Any]) -> dict[str, Any]:
        tool = TOOLS.get(name)
        if tool is None:
            raise HTTPException(404)  # a configuration error: the dry run finds it
        try:
            output = tool.model_validate_json(str(call.get("arguments"))).run(library)
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'call'}: {e['msg']}" for e in error.errors()[:3])
            raise HTTPException(422, wrong) from None  # the model reads this and continues
        except EmbeddingsFailed as error:
            logger.warning("%s", error)
            raise HTTPException(503, "search is not available now") from None  # the run waits and calls again
        return {"type": "function_call_output", "id": call.get("id"), "call_id": call.get("call_id"), "output": output}

    @app.post("/{name}")
    def grade_answer(name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Grade by `grade` (training without judge), `most` (maximum for a judge) or `held_out` (never trained on)."""
        if name not in GRADES:
            raise HTTPException(404)
        item = body["item"]
        score = GRADES[name](body["sample"]["output_text"] or "", item)
        return {"score": score, "reason": f"{name} by strings, no judge: wanted {item['answer']}"}

    return app


def app_of(folder: Path, environment: dict[str, str]) -> FastAPI:
    """Return the app for a folder's documents, and log the method of search."""
    embed = embeddings_of(environment)
    means = "BM25 and embeddings" if embed else "BM25 alone: FINQA_EMBEDDINGS_URL is not set"
    logger.info("finqa: documents of %s, search by %s", folder, means)
    return make_app(Library(read_documents(folder / "documents.jsonl"), embed))


app = app_of(Path(os.environ.get("FINQA_DATA") or Path(__file__).parent / "data"), dict(os.environ))
