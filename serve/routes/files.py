"""/v1/files: uploads and downloads, streamed to and from disk; every key sees all files and deletes its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal, get_args

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse
from starlette.concurrency import run_in_threadpool

from agent_rft.serve.http.audit import made
from agent_rft.serve.http.auth import Reader, Writer, check_may_change
from agent_rft.serve.http.client_limits import DEADLINES, Deadlines, Shares
from agent_rft.serve.http.errors import too_many
from agent_rft.serve.http.pages import LIMIT, After
from agent_rft.serve.http.schemas.base import Page, Responses
from agent_rft.serve.http.schemas.files import DeletedFile, FileObject
from agent_rft.serve.http.upload import UploadForm, read_form
from agent_rft.serve.stores.file_store import FileStore, FileTooLarge, NoSpace, UnknownFile
from agent_rft.serve.stores.keys import ApiKey
from agent_rft.spec.operator.config import ServerLimits
from agent_rft.wire.errors import ApiError

FilePurpose = Literal["assistants", "batch", "evals", "fine-tune", "user_data", "vision"]
PURPOSES: tuple[FilePurpose, ...] = get_args(FilePurpose)
MIN_LIFE_S, MAX_LIFE_S = 3_600, 2_592_000
BATCH_LIFE_S = MAX_LIFE_S
"""Batch files expire after this time by default; files of other purposes do not expire."""
FORM_BYTES = 1_000_000
"""An upper bound on the size of a form without its file."""
EXPIRY_FIELDS = ("expires_after[anchor]", "expires_after[seconds]")
FORM = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string", "enum": list(PURPOSES)},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": MIN_LIFE_S, "maximum": MAX_LIFE_S},
    },
}
UPLOAD = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": FORM}}}}
"""Described by hand for the OpenAPI page, since the route parses the body itself."""
BYTES = {"schema": {"type": "string", "format": "binary"}}
CONTENT: Responses = {200: {"content": {"application/octet-stream": BYTES}}}
MAX_PAGE = 10_000


def make_router(
    files: FileStore, max_uploads: int = ServerLimits().max_uploads, deadlines: Deadlines = DEADLINES
) -> APIRouter:
    """Returns the routes of files, with at most `max_uploads` uploads at a time, half of them of one key.

    The bound is on memory: Ray Serve receives bodies as fast as they arrive and buffers what is not yet on disk.
    """
    router = APIRouter(prefix="/files", tags=["files"])
    uploads = Shares(max_uploads)
    busy = "Too many uploads are already in progress, of this API key or of all; try again in a moment."

    @router.post("", openapi_extra=UPLOAD)
    async def upload(request: Request, key: Writer) -> FileObject:
        """Upload a file of up to 512 MB (the operator's limit)."""
        with uploads.of(key.id, too_many(busy, "too_many_uploads", 2)) as take:
            take(1)
            return await receive(request, key)

    async def receive(request: Request, key: ApiKey) -> FileObject:
        with _upload_errors():
            length = request.headers.get("content-length", "")
            if length.isdecimal() and int(length[:20]) > files.max_bytes + FORM_BYTES:
                raise FileTooLarge(f"the file is over {files.max_bytes:,} bytes")
            async with files.receive() as incoming:
                kind = request.headers.get("content-type", "")
                form = await read_form(request.stream(), kind, "file", incoming.write, deadlines)
                filename, purpose, life_s = _checked(form, incoming.num_bytes)
                record = await files.keep(incoming, filename, purpose, life_s, key.id)
                made(request, record.id)
                return FileObject.model_validate(record)

    @router.get("")
    async def list_files(
        key: Reader,
        order: Annotated[Literal["asc", "desc"], Query(description="By time; desc: newest first.")] = "desc",
        purpose: Annotated[str | None, Query(max_length=100, description="Only files of this purpose.")] = None,
        after: After = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description=LIMIT)] = MAX_PAGE,
    ) -> Page[FileObject]:
        """List files."""
        with _unknown("after"):
            found, more = await run_in_threadpool(
                files.list, after=after, limit=limit, newest_first=order == "desc", purpose=purpose
            )
        return Page[FileObject].from_entries(found, more)

    @router.get("/{file_id}")
    async def get_file(file_id: str, key: Reader) -> FileObject:
        """Return what is known about a file, without its content."""
        with _unknown("file_id"):
            return FileObject.model_validate(await run_in_threadpool(files.get, file_id))

    @router.get("/{file_id}/content", response_class=FileResponse, responses=CONTENT)
    async def get_content(file_id: str, key: Reader) -> FileResponse:
        """Return the bytes of a file, as they were uploaded."""
        with _unknown("file_id"):
            record = await run_in_threadpool(files.get, file_id)
            path = await run_in_threadpool(files.path, file_id)
        return FileResponse(path, media_type="application/octet-stream", filename=record.filename)

    @router.delete("/{file_id}")
    async def delete_file(file_id: str, key: Writer) -> DeletedFile:
        """Delete a file: with the scope `write` one that the same key made, or that has no known owner."""
        with _unknown("file_id"):
            check_may_change(key, (await run_in_threadpool(files.get, file_id)).owner, "file")
            await run_in_threadpool(files.delete, file_id)
        return DeletedFile(id=file_id)

    return router


def _checked(form: UploadForm, num_bytes: int) -> tuple[str, FilePurpose, int | None]:
    """Returns the filename, the purpose and the seconds until expiry (None: never) of an upload.

    Raises:
        ApiError: a field is missing or invalid.
    """
    if form.filename is None:
        raise ApiError(400, "The form has no file.", param="file", code="missing_required_parameter")
    if _is_unsafe(form.filename):
        message = "The file's name is an absolute path, contains .. or contains control characters: use a plain name."
        raise ApiError(400, message, param="file", code="invalid_filename")
    if num_bytes == 0:
        raise ApiError(400, "The file is empty.", param="file", code="empty_file")
    purpose = form.fields.get("purpose")
    if purpose is None:
        raise ApiError(400, "The form has no purpose.", param="purpose", code="missing_required_parameter")
    if purpose not in PURPOSES:
        message = f"The purpose must be one of {', '.join(PURPOSES)}."
        raise ApiError(400, message, param="purpose", code="invalid_value")
    anchor, seconds = map(form.fields.get, EXPIRY_FIELDS)
    if anchor is None and seconds is None:
        return form.filename, purpose, BATCH_LIFE_S if purpose == "batch" else None
    if anchor != "created_at":
        message = "The anchor of expires_after must be created_at."
        raise ApiError(400, message, param=EXPIRY_FIELDS[0], code="invalid_value")
    if seconds is None or not re.fullmatch(r"[0-9]{1,9}", seconds) or not _may_live(int(seconds)):
        message = f"The seconds of expires_after must be a number from {MIN_LIFE_S} to {MAX_LIFE_S}."
        raise ApiError(400, message, param=EXPIRY_FIELDS[1], code="invalid_value")
    return form.filename, purpose, int(seconds)


def _is_unsafe(name: str) -> bool:
    """Whether a name would be dangerous as a path for clients that download the file; the server never uses it so."""
    absolute = re.match(r"[/\\]|[A-Za-z]:", name) is not None
    return absolute or ".." in re.split(r"[/\\]", name) or re.search(r"[\x00-\x1f\x7f]", name) is not None


def _may_live(seconds: int) -> bool:
    return MIN_LIFE_S <= seconds <= MAX_LIFE_S


@contextmanager
def _upload_errors() -> Iterator[None]:
    try:
        yield
    except FileTooLarge as error:
        raise ApiError(413, f"The file is too large: {error.message}.", param="file", code="file_too_large") from None
    except NoSpace as error:
        raise ApiError(
            507, f"The file cannot be stored: {error.message}.", code="no_space", type="server_error"
        ) from None


@contextmanager
def _unknown(param: str) -> Iterator[None]:
    try:
        yield
    except UnknownFile as error:
        status = 404 if param == "file_id" else 400
        raise ApiError(status, error.message, param=param, code="not_found") from None
