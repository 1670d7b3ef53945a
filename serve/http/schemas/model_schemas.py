"""Response models of the model list."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agent_rft.serve.http.schemas.base import ResponseBody


class ModelBody(ResponseBody):
    """A model that requests can use."""

    id: str
    """Value of `model` in requests."""
    object: Literal["model"] = "model"
    created: int = Field(validation_alias="created_at")
    """Creation time in Unix seconds; 0 if unknown."""
    owned_by: str
    """Owner of the model."""


class ModelList(ResponseBody):
    object: Literal["list"] = "list"
    data: list[ModelBody]


class DeletedModel(ResponseBody):
    id: str
    object: Literal["model"] = "model"
    deleted: bool = True
