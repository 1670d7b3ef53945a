"""Paginated lists, newest first: `after` is the last id of the previous page."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import JSONResponse

AFTER = "Id of the last entry of the page before."
LIMIT = "How many entries at most."


@dataclass(frozen=True, slots=True)
class PageQuery:
    """The part of a list that a request asks for."""

    after: str | None
    limit: int


def page_query(default: int, maximum: int) -> Callable[..., PageQuery]:
    """Returns a dependency that reads `after` and `limit`: `Annotated[PageQuery, Depends(page_query(20, 100))]`."""

    def read(
        after: Annotated[str | None, Query(max_length=200, description=AFTER)] = None,
        limit: Annotated[int, Query(ge=1, le=maximum, description=LIMIT)] = default,
    ) -> PageQuery:
        return PageQuery(after, limit)

    # Postponed annotations are resolved among the module's globals, which do not contain `maximum`.
    read.__annotations__["limit"] = Annotated[int, Query(ge=1, le=maximum, description=LIMIT)]
    return read


class AsciiJson(JSONResponse):
    """JSON in ASCII: texts of models and tools may hold half characters, which is not valid UTF-8."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
