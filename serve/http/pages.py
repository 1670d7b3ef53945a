"""Paginated lists, newest first: `after` is the last id of the previous page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
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


def page(
    data: Sequence[Mapping[str, Any]],
    has_more: bool,
    response: type[JSONResponse] = JSONResponse,
    last: str | None = None,
) -> JSONResponse:
    """Returns a page in the wire form; clients continue with `after=<last_id>` while `has_more` is true.

    `last` is where the next page begins if that is not after the last entry.

    A finished response, since FastAPI would validate every value again, which costs more than the rest of a listing.
    """
    return response(
        {
            "object": "list",
            "data": list(data),
            "has_more": has_more,
            "first_id": data[0]["id"] if data else None,
            "last_id": last or (data[-1]["id"] if data else None),
        }
    )
