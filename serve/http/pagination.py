"""Query parameters of paginated lists, and JSON responses in ASCII."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import JSONResponse

After = Annotated[
    str | None, Query(max_length=200, description="Id of the last entry of the previous page (`last_id`).")
]
LIMIT = "Maximum number of entries."


class AsciiJson(JSONResponse):
    """JSON response in ASCII, since models and tools may return lone surrogates, which UTF-8 cannot encode."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
