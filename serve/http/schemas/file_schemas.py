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
    """Upload time in Unix seconds."""
    expires_at: int | None
    """Expiry time in Unix seconds; null if the file does not expire."""
    filename: str
    """Name that the client gave the uploaded file."""
    purpose: str
    """Purpose from the upload, or `fine-tune-results` for a job's result files."""
    status: Literal["processed"] = "processed"
    """Always `processed`, since files are checked only when a job uses them."""
    status_details: str | None = None
    """Always null."""


class DeletedFile(ResponseBody):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True
