"""Stored files."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agent_rft.serve.http.schemas.base import ListEntry, ResponseBody


class FileObject(ListEntry):
    id: str
    """`file-...`."""
    object: Literal["file"] = "file"
    bytes: int = Field(validation_alias="num_bytes")
    """Size of the file."""
    created_at: int
    """Unix time in seconds."""
    expires_at: int | None
    """Unix time in seconds at which the file is deleted; null: never."""
    filename: str
    """The name that it was uploaded with."""
    purpose: str
    """What it was uploaded for; `fine-tune-results` for result files of jobs."""
    status: Literal["processed"] = "processed"
    """Files are checked when a job reads them, so every stored file is processed."""
    status_details: str | None = None
    """Always null."""


class DeletedFile(ResponseBody):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True
