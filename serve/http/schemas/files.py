"""Stored files."""

from __future__ import annotations

from typing import Literal

from serve.http.schemas.base import ResponseBody


class FileObject(ResponseBody):
    id: str
    """`file-...`."""
    object: Literal["file"]
    bytes: int
    """Size of the file."""
    created_at: int
    """Unix time in seconds."""
    expires_at: int | None
    """Unix time in seconds at which the file is deleted; null: never."""
    filename: str
    """The name that it was uploaded with."""
    purpose: str
    """What it was uploaded for; `fine-tune-results` for result files of jobs."""
    status: Literal["processed"]
    """Files are checked when a job reads them, so every stored file is processed."""
    status_details: str | None
    """Always null."""


class DeletedFile(ResponseBody):
    id: str
    object: Literal["file"]
    deleted: bool
