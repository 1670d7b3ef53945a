"""Lists in pages: the newest first, `after` the id that the last page ended with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import JSONResponse


@dataclass(frozen=True, slots=True)
class PageQuery:
    """What part of a list a request asks for."""

    after: str | None
    limit: int


def page_query(default: int, maximum: int) -> Callable[..., PageQuery]:
    """A dependency that reads `after` and `limit` of a route: `Annotated[PageQuery, Depends(page_query(20, 100))]`."""

    def read(
        after: Annotated[str | None, Query(max_length=200)] = None,
        limit: Annotated[int, Query(ge=1, le=maximum)] = default,
    ) -> PageQuery:
        return PageQuery(after, limit)

    # Postponed annotations are looked up among a module's names, where `maximum` is none.
    read.__annotations__["limit"] = Annotated[int, Query(ge=1, le=maximum)]
    return read


def page(data: Sequence[Mapping[str, Any]], has_more: bool) -> JSONResponse:
    """A page in the wire form. Clients go on with `after=<last_id>` while `has_more`. Made here: FastAPI would look at
    each value again, which costs more than all the rest of a listing.
    """
    return JSONResponse(
        {
            "object": "list",
            "data": list(data),
            "has_more": has_more,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
        }
    )
