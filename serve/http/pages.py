"""Paginated lists, newest first: `after` is the last id of the previous page, `limit` the number of entries at most."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import JSONResponse

After = Annotated[str | None, Query(max_length=200, description="Id of the last entry of the page before.")]
LIMIT = "How many entries at most."


class AsciiJson(JSONResponse):
    """JSON in ASCII: texts of models and tools may hold half characters, which is not valid UTF-8."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
