"""Models."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agent_rft.serve.http.schemas.base import ResponseBody


class ModelBody(ResponseBody):
    id: str
    """The name for `model` in requests."""
    object: Literal["model"] = "model"
    created: int = Field(validation_alias="created_at")
    """Unix time in seconds; 0: unknown."""
    owned_by: str
    """Who made it."""


class ModelList(ResponseBody):
    object: Literal["list"] = "list"
    data: list[ModelBody]


class DeletedModel(ResponseBody):
    id: str
    object: Literal["model"] = "model"
    deleted: bool = True
