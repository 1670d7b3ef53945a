"""The calls of S3 that s3fs makes for small files, in memory: `async with FakeS3() as server`."""

from __future__ import annotations

import re
from types import TracebackType
from urllib.parse import unquote
from xml.sax.saxutils import escape

from aiohttp import web

MODIFIED = "2026-01-01T00:00:00.000Z"


class FakeS3:
    """An S3 server with one bucket.

    With `is_conditional` it refuses to overwrite a file if the request says so. With `names_condition` the answer says
    why, as Amazon's does.
    """

    def __init__(self, *, is_conditional: bool = True, names_condition: bool = True) -> None:
        self.objects: dict[str, bytes] = {}
        self.url = ""
        self._is_conditional = is_conditional
        self._names_condition = names_condition

    async def __aenter__(self) -> FakeS3:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{bucket}", self._bucket)
        app.router.add_route("*", "/{bucket}/{key:.*}", self._object)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _bucket(self, request: web.Request) -> web.Response:
        if request.method == "POST" and "delete" in request.query:
            for key in re.findall(r"<Key>(.*?)</Key>", await request.text()):
                self.objects.pop(key, None)
            return _xml("<DeleteResult/>")
        if request.method == "GET":
            return self._list(request.query.get("prefix", ""), request.query.get("delimiter", ""))
        return web.Response()

    def _list(self, prefix: str, delimiter: str) -> web.Response:
        found = [key.removeprefix(prefix) for key in sorted(self.objects) if key.startswith(prefix)]
        folders = {key.split(delimiter)[0] + delimiter for key in found if delimiter and delimiter in key}
        files = [prefix + key for key in found if not (delimiter and delimiter in key)]
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key])}</Size>"
            f"<LastModified>{MODIFIED}</LastModified></Contents>"
            for key in files
        )
        prefixes = "".join(
            f"<CommonPrefixes><Prefix>{escape(prefix + name)}</Prefix></CommonPrefixes>" for name in sorted(folders)
        )
        return _xml(f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}{prefixes}</ListBucketResult>")

    async def _object(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        match request.method:
            case "PUT":
                return await self._put(request, key)
            case "DELETE":
                self.objects.pop(key, None)
                return web.Response(status=204)
        if key not in self.objects:
            return _xml("<Error><Code>NoSuchKey</Code></Error>", 404)
        headers = {"ETag": '"1"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        if request.method == "HEAD":
            return web.Response(headers=headers | {"Content-Length": str(len(self.objects[key]))})
        part = request.http_range
        return web.Response(status=206 if part.stop else 200, body=self.objects[key][part], headers=headers)

    async def _put(self, request: web.Request, key: str) -> web.Response:
        body = await request.read()  # first: the condition and the write are one step
        if copied := request.headers.get("x-amz-copy-source"):
            self.objects[key] = self.objects[unquote(copied).lstrip("/").partition("/")[2]]
            return _xml('<CopyObjectResult><ETag>"1"</ETag></CopyObjectResult>')
        if self._is_conditional and request.headers.get("If-None-Match") == "*" and key in self.objects:
            condition = "<Condition>If-None-Match</Condition>" if self._names_condition else ""
            return _xml(f"<Error><Code>PreconditionFailed</Code>{condition}</Error>", 412)
        self.objects[key] = _unchunked(body) if "aws-chunked" in request.headers.get("Content-Encoding", "") else body
        return web.Response(headers={"ETag": '"1"'})


def _unchunked(body: bytes) -> bytes:
    """The content of a body in the encoding `aws-chunked`: sizes in hexadecimal, each before its bytes."""
    content = b""
    while body:
        head, body = body.split(b"\r\n", 1)
        size = int(head.split(b";")[0], 16)
        if size == 0:
            break
        content, body = content + body[:size], body[size + 2 :]
    return content


def _xml(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="application/xml")
