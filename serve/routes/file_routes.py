"""/v1/files: uploads and downloads, streamed to and from disk.

An API key can read all files except the results of other keys' readiness checks. Only admins and the key that uploaded
a file can delete the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal, get_args

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse
from starlette.concurrency import run_in_threadpool

from agent_rft.serve.http.audit_actions import set_created_id
from agent_rft.serve.http.auth import Reader, Writer, check_may_change
from agent_rft.serve.http.client_limits import DEADLINES, Deadlines, OwnerQuota
from agent_rft.serve.http.error_responses import make_too_many_error
from agent_rft.serve.http.multipart_upload import UploadForm, read_form
from agent_rft.serve.http.pagination import LIMIT, After
from agent_rft.serve.http.schemas.base import Page, Responses
from agent_rft.serve.http.schemas.file_schemas import DeletedFile, FileObject
from agent_rft.serve.stores.file_store import FileStore, FileTooLarge, ServerDiskFull, UnknownFile
from agent_rft.serve.stores.key_store import ApiKey
from agent_rft.spec.operator.operator_config import ServerLimits
from agent_rft.wire.api_errors import ApiError

FilePurpose = Literal["assistants", "batch", "evals", "fine-tune", "user_data", "vision"]
PURPOSES: tuple[FilePurpose, ...] = get_args(FilePurpose)
MIN_LIFE_S, MAX_LIFE_S = 3_600, 2_592_000
BATCH_LIFE_S = MAX_LIFE_S
"""Default lifetime of batch files in seconds; files with other purposes do not expire by default."""
FORM_BYTES = 1_000_000
"""Maximum size of a form in bytes, not counting its file."""
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
"""Request schema for the OpenAPI page, written by hand because the route parses the body itself."""
BYTES = {"schema": {"type": "string", "format": "binary"}}
CONTENT: Responses = {200: {"content": {"application/octet-stream": BYTES}}}
MAX_PAGE = 10_000


def make_router(
    files: FileStore, max_uploads: int = ServerLimits().max_uploads, deadlines: Deadlines = DEADLINES
) -> APIRouter:
    """Return the router for file endpoints.

    `max_uploads` limits concurrent uploads, to bound memory use. One API key can use at most half of this limit.
    """
    router = APIRouter(prefix="/files", tags=["files"])
    uploads = OwnerQuota(max_uploads)
    too_many_uploads = "Too many uploads are in progress, for this API key or in total. Try again in a moment."

    @router.post("", openapi_extra=UPLOAD)
    async def upload_file(request: Request, key: Writer) -> FileObject:
        """Upload a file. Its maximum size is 512 MB, unless the operator sets another limit."""
        with uploads.hold(key.id, make_too_many_error(too_many_uploads, "too_many_uploads", 2)) as take:
            take(1)
            return await receive_upload(request, key)

    async def receive_upload(request: Request, key: ApiKey) -> FileObject:
        with _upload_errors():
            length = request.headers.get("content-length", "")
            if length.isdecimal() and int(length[:20]) > files.max_bytes + FORM_BYTES:
                raise FileTooLarge(f"the file is over {files.max_bytes:,} bytes")
            async with files.receive() as incoming:
                kind = request.headers.get("content-type", "")
                form = await read_form(request.stream(), kind, "file", incoming.write, deadlines)
                filename, purpose, life_s = _check_form(form, incoming.num_bytes)
                record = await files.keep(incoming, filename, purpose, life_s, key.id)
                set_created_id(request, record.id)
                return FileObject.model_validate(record)

    @router.get("")
    async def list_files(
        key: Reader,
        order: Annotated[
            Literal["asc", "desc"], Query(description="Order by creation time; `desc`: newest first.")
        ] = "desc",
        purpose: Annotated[
            str | None, Query(max_length=100, description="Return only files with this purpose.")
        ] = None,
        after: After = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description=LIMIT)] = MAX_PAGE,
    ) -> Page[FileObject]:
        """List files. Every key can read all files, except the results of other keys' readiness checks."""
        with _unknown_file_as("after"):
            found, more = await run_in_threadpool(
                files.list,
                after=after,
                limit=limit,
                newest_first=order == "desc",
                purpose=purpose,
                viewer=_viewer(key),
            )
        return Page[FileObject].from_entries(found, more)

    @router.get("/{file_id}")
    async def get_file(file_id: str, key: Reader) -> FileObject:
        """Return a file's metadata, without its content."""
        with _unknown_file_as("file_id"):
            return FileObject.model_validate(await run_in_threadpool(files.get, file_id, _viewer(key)))

    @router.get("/{file_id}/content", response_class=FileResponse, responses=CONTENT)
    async def get_file_content(file_id: str, key: Reader) -> FileResponse:
        """Return the content of a file, exactly as uploaded."""
        with _unknown_file_as("file_id"):
            record = await run_in_threadpool(files.get, file_id, _viewer(key))
            path = await run_in_threadpool(files.path, file_id)
        return FileResponse(path, media_type="application/octet-stream", filename=record.filename)

    @router.delete("/{file_id}")
    async def delete_file(file_id: str, key: Writer) -> DeletedFile:
        """Delete a file. A key with the scope `write` can delete its own files, and files whose owner is unknown."""
        with _unknown_file_as("file_id"):
            check_may_change(key, (await run_in_threadpool(files.get, file_id, _viewer(key))).owner, "file")
            await run_in_threadpool(files.delete, file_id)
        return DeletedFile(id=file_id)

    return router


def _viewer(key: ApiKey) -> str | None:
    """Return the id by which the file store decides which files the key may see; None for admins."""
    return None if key.has_scope("admin") else key.id


def _check_form(form: UploadForm, num_bytes: int) -> tuple[str, FilePurpose, int | None]:
    """Return the filename, the purpose and the seconds until expiry of an upload; None means that it does not expire.

    Raises:
        ApiError: A field is missing or invalid.
    """
    if form.filename is None:
        raise ApiError(
            400, "The form has no file. Add it as the field `file`.", param="file", code="missing_required_parameter"
        )
    if _is_unsafe(form.filename):
        message = "The file's name is an absolute path, or contains .. or control characters. Use a plain name."
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
        message = "expires_after[anchor] must be created_at."
        raise ApiError(400, message, param=EXPIRY_FIELDS[0], code="invalid_value")
    if seconds is None or not re.fullmatch(r"[0-9]{1,9}", seconds) or not _is_valid_life(int(seconds)):
        message = f"expires_after[seconds] must be an integer from {MIN_LIFE_S} to {MAX_LIFE_S}."
        raise ApiError(400, message, param=EXPIRY_FIELDS[1], code="invalid_value")
    return form.filename, purpose, int(seconds)


def _is_unsafe(name: str) -> bool:
    """Return whether a filename could be an unsafe path on a client that downloads the file."""
    absolute = re.match(r"[/\\]|[A-Za-z]:", name) is not None
    return absolute or ".." in re.split(r"[/\\]", name) or re.search(r"[\x00-\x1f\x7f]", name) is not None


def _is_valid_life(seconds: int) -> bool:
    return MIN_LIFE_S <= seconds <= MAX_LIFE_S


@contextmanager
def _upload_errors() -> Iterator[None]:
    try:
        yield
    except FileTooLarge as error:
        raise ApiError(413, f"The file is too large: {error.message}.", param="file", code="file_too_large") from None
    except ServerDiskFull as error:
        raise ApiError(
            507, f"The file cannot be stored: {error.message}.", code="no_space", type="server_error"
        ) from None


@contextmanager
def _unknown_file_as(param: str) -> Iterator[None]:
    try:
        yield
    except UnknownFile as error:
        status = 404 if param == "file_id" else 400
        raise ApiError(status, error.message, param=param, code="not_found") from None
