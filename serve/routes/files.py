"""/v1/files: uploads go to disk as they come in, downloads from it. All keys of a server see all files."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import FileResponse, JSONResponse
from starlette.concurrency import run_in_threadpool

from cluster.stores.file_store import FileRecord, FileStore, FileTooLarge, NoSpace, UnknownFile
from serve.http.auth import Reader, Writer
from serve.http.errors import ApiError, ErrorBody
from serve.http.pages import PageQuery, page, page_query
from serve.http.schemas import DeletedFile, FileObject, Page, Responses, answers
from serve.http.upload import UploadForm, read_form
from trainer.spec.operator import ServerLimits

FilePurpose = Literal["assistants", "batch", "evals", "fine-tune", "user_data", "vision"]
PURPOSES: tuple[FilePurpose, ...] = get_args(FilePurpose)
LEAST_LIFE_S, LONGEST_LIFE_S = 3_600, 2_592_000
BATCH_LIFE_S = LONGEST_LIFE_S
"""Files of this purpose do not stay where nothing else is said."""
BUSY_S = "2"
FORM_BYTES = 1_000_000
"""What a form has beside its file."""
EXPIRY_FIELDS = ("expires_after[anchor]", "expires_after[seconds]")
FORM = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string", "enum": list(PURPOSES)},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": LEAST_LIFE_S, "maximum": LONGEST_LIFE_S},
    },
}
UPLOAD = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": FORM}}}}
"""The body is read by hand, so the OpenAPI page has to be told of it."""
BYTES = {"schema": {"type": "string", "format": "binary"}}
CONTENT: Responses = {200: {"content": {"application/octet-stream": BYTES}}, "5XX": {"model": ErrorBody}}

Pages = Annotated[PageQuery, Depends(page_query(10_000, 10_000))]


def make_router(files: FileStore, max_uploads: int = ServerLimits().max_uploads) -> APIRouter:
    """`max_uploads` at a time: Ray Serve takes in a body as fast as it comes, and holds in memory what is not yet on
    disk.
    """
    router = APIRouter(prefix="/files", tags=["files"])
    uploads = asyncio.Semaphore(max_uploads)

    @router.post("", response_model=None, responses=answers(FileObject), openapi_extra=UPLOAD)
    async def upload(request: Request, key: Writer) -> dict[str, Any]:
        """Upload a file of up to 512 MB (the operator's limit)."""
        if uploads.locked():
            message = f"{max_uploads} uploads are under way; try again in a moment."
            raise ApiError(
                429, message, code="too_many_uploads", type="rate_limit_error", headers={"Retry-After": BUSY_S}
            )
        async with uploads:
            return await receive(request)

    async def receive(request: Request) -> dict[str, Any]:
        with _upload_errors():
            announced = request.headers.get("content-length", "")
            if announced.isdecimal() and int(announced[:20]) > files.max_bytes + FORM_BYTES:
                raise FileTooLarge(f"the file is over {files.max_bytes:,} bytes")
            async with files.receive() as incoming:
                kind = request.headers.get("content-type", "")
                form = await read_form(request.stream(), kind, "file", incoming.write)
                filename, purpose, life_s = _checked(form, incoming.num_bytes)
                return file_object(await files.keep(incoming, filename, purpose, life_s))

    @router.get("", response_model=None, responses=answers(Page[FileObject]))
    async def list_files(
        key: Reader,
        pages: Pages,
        order: Literal["asc", "desc"] = "desc",
        purpose: Annotated[str | None, Query(max_length=100)] = None,
    ) -> JSONResponse:
        with _unknown("after"):
            found, more = await run_in_threadpool(
                files.list, after=pages.after, limit=pages.limit, newest_first=order == "desc", purpose=purpose
            )
        return page([file_object(record) for record in found], more)

    @router.get("/{file_id}", response_model=None, responses=answers(FileObject))
    async def get_file(file_id: str, key: Reader) -> dict[str, Any]:
        with _unknown("file_id"):
            return file_object(await run_in_threadpool(files.get, file_id))

    @router.get("/{file_id}/content", response_class=FileResponse, responses=CONTENT)
    async def get_content(file_id: str, key: Reader) -> FileResponse:
        """The bytes, as they were uploaded."""
        with _unknown("file_id"):
            record = await run_in_threadpool(files.get, file_id)
            path = await run_in_threadpool(files.path, file_id)
        return FileResponse(path, media_type="application/octet-stream", filename=record.filename)

    @router.delete("/{file_id}", response_model=None, responses=answers(DeletedFile))
    async def delete_file(file_id: str, key: Writer) -> dict[str, Any]:
        with _unknown("file_id"):
            await run_in_threadpool(files.delete, file_id)
        return {"id": file_id, "object": "file", "deleted": True}

    return router


def file_object(record: FileRecord) -> dict[str, Any]:
    """The wire form."""
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.num_bytes,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "status_details": None,
    }


def _checked(form: UploadForm, num_bytes: int) -> tuple[str, FilePurpose, int | None]:
    """(filename, purpose, seconds until it expires) of an upload. Raises ApiError."""
    if form.filename is None:
        raise ApiError(400, "The form has no file.", param="file", code="missing_required_parameter")
    if _leads_elsewhere(form.filename):
        message = "The file's name is a path that leads elsewhere, or holds control characters: give a plain name."
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
        message = f"The seconds of expires_after must be a number from {LEAST_LIFE_S} to {LONGEST_LIFE_S}."
        raise ApiError(400, message, param=EXPIRY_FIELDS[1], code="invalid_value")
    return form.filename, purpose, int(seconds)


def _leads_elsewhere(name: str) -> bool:
    """Names are never used as paths here. One that is made to be would be dangerous to whoever saves the file."""
    absolute = re.match(r"[/\\]|[A-Za-z]:", name) is not None
    return absolute or ".." in re.split(r"[/\\]", name) or re.search(r"[\x00-\x1f\x7f]", name) is not None


def _may_live(seconds: int) -> bool:
    return LEAST_LIFE_S <= seconds <= LONGEST_LIFE_S


@contextmanager
def _upload_errors() -> Iterator[None]:
    try:
        yield
    except FileTooLarge as error:
        raise ApiError(413, f"It is too large: {error.message}.", param="file", code="file_too_large") from None
    except NoSpace as error:
        raise ApiError(507, f"It cannot be stored: {error.message}.", code="no_space", type="server_error") from None


@contextmanager
def _unknown(param: str) -> Iterator[None]:
    try:
        yield
    except UnknownFile as error:
        status = 404 if param == "file_id" else 400
        raise ApiError(status, error.message, param=param, code="not_found") from None
