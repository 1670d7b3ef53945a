"""Response models of stored files."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agent_rft.serve.http.schemas.base import ListEntry, ResponseBody


class FileObject(ListEntry):
    """A stored file, without its content."""

    id: str
    """Id of the file, `file-...`."""
    object: Literal["file"] = "file"
    bytes: int = Field(validation_alias="num_bytes")
    """Size of the file in bytes."""
    created_at: int
    """Unix time of the upload, in seconds."""
    expires_at: int | None
    """Unix time in seconds at which the file is deleted; null if it does not expire."""
    filename: str
    """Name with which the file was uploaded."""
    purpose: str
    """Purpose given with the upload; `fine-tune-results` for the result files of jobs."""
    status: Literal["processed"] = "processed"
    """Always `processed`, since files are checked only when a job uses them."""
    status_details: str | None = None
    """Always null."""


class DeletedFile(ResponseBody):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True
