"""Streaming parser for multipart forms. It forwards the file's bytes as they arrive, and stores only text fields."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from agent_rft.serve.http.client_limits import DEADLINES, Deadlines
from agent_rft.wire.api_errors import ApiError

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_FIELD_BYTES = 10_000
MAX_PARTS = 20


@dataclass(slots=True)
class UploadForm:
    """The text fields of a form, and the name of its file."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None


async def read_form(
    stream: AsyncIterator[bytes],
    content_type: str,
    file_field: str,
    write: Callable[[bytes], Awaitable[None]],
    deadlines: Deadlines = DEADLINES,
) -> UploadForm:
    """Parse a form, and pass the content of its part `file_field` to `write` in chunks.

    Raises:
        ApiError: The body is not a complete multipart form, the upload is too slow, or a field is too long or
            duplicated.
    """
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        message = "The request is not a file upload. Send multipart/form-data with the fields `file` and `purpose`."
        raise ApiError(415, message, code="unsupported_media_type")
    parts, started, num_bytes = _FormParts(file_field), time.monotonic(), 0
    try:
        parser = MultipartParser(options[b"boundary"], parts.callbacks())
        while not parts.ended:
            spare_s = deadlines.upload_idle_s + num_bytes / deadlines.upload_bytes_per_s
            left_s = started + spare_s - time.monotonic()
            async with asyncio.timeout(min(deadlines.upload_idle_s, left_s)):
                chunk = await anext(stream, b"")
            if not chunk:
                break
            num_bytes += len(chunk)
            parser.write(chunk)
            await write(parts.take())
    except FormParserError:
        raise ApiError(400, "The request body is not a valid multipart form.", code="invalid_multipart") from None
    except TimeoutError:
        message = (
            f"The upload is too slow: no data arrived for {deadlines.upload_idle_s:g} s, or fewer than "
            f"{deadlines.upload_bytes_per_s:,.0f} bytes per second arrived."
        )
        raise ApiError(408, message, code="timeout") from None
    if not parts.ended:
        raise ApiError(
            400,
            "The request body is incomplete. The closing boundary of the form is missing.",
            code="invalid_multipart",
        )
    return parts.form


class _FormParts:
    """Collects the fields and file data from the parser's callbacks."""

    def __init__(self, file_field: str) -> None:
        self.form = UploadForm()
        self.ended = False
        self._file_field = file_field
        self._num_parts = 0
        self._header = b""
        self._value = b""
        self._disposition = b""
        self._name = ""
        self._data: list[bytes] = []
        self._text = bytearray()

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._on_part_begin,
            "on_part_data": self._on_part_data,
            "on_part_end": self._on_part_end,
            "on_header_field": self._on_header_field,
            "on_header_value": self._on_header_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers_finished,
            "on_end": self._on_end,
        }

    def take(self) -> bytes:
        """Return the file's bytes that arrived since the last call."""
        data = b"".join(self._data)
        self._data.clear()
        return data

    def _on_part_begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise ApiError(400, f"The form has more than {MAX_PARTS} parts.", code="invalid_multipart")
        self._disposition = b""
        self._text.clear()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode(errors="replace")
        if not self._name:
            raise ApiError(400, "A part of the form has no name.", code="invalid_multipart")
        if self._name in self.form.fields or (self._name == self._file_field and self.form.filename is not None):
            raise ApiError(
                400, "The form contains this field more than once.", param=self._name, code="invalid_multipart"
            )
        if self._name == self._file_field:
            if b"filename" not in options:
                raise ApiError(400, "The field must be a file with a name.", param=self._name, code="invalid_value")
            try:
                self.form.filename = options[b"filename"].decode()
            except UnicodeDecodeError:
                message = "The file's name is not valid UTF-8."
                raise ApiError(400, message, param=self._name, code="invalid_value") from None

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name == self._file_field:
            self._data.append(data[start:end])
            return
        self._text += data[start:end]
        if len(self._text) > MAX_FIELD_BYTES:
            raise ApiError(
                400, f"The field is longer than {MAX_FIELD_BYTES:,} bytes.", param=self._name, code="invalid_value"
            )

    def _on_part_end(self) -> None:
        if self._name != self._file_field:
            try:
                self.form.fields[self._name] = self._text.decode()
            except UnicodeDecodeError:
                raise ApiError(400, "The field is not valid UTF-8.", param=self._name, code="invalid_value") from None

    def _on_end(self) -> None:
        self.ended = True
