"""Files through the official SDK and by hand: stored whole or not at all, with names that are never used as paths."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from agent_rft.cluster.records.blobs import FolderBlobs
from agent_rft.serve.routes.file_routes import make_router
from agent_rft.serve.stores.file_store import FileStore
from tests.support.api import TOKEN, by_hand, client_of, openai_of
from tests.support.jobs import database_with_tables, fixture_of

MAX_BYTES = 5_000_000
HOUR_S = 3600


class FileServer:
    """A server with files in a folder, and a clock that only tests move."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 1_000_000.0
        self.database = database_with_tables(folder)
        self.store = FileStore(self.database, FolderBlobs(folder / "files"), folder, MAX_BYTES, lambda: self.now)
        self.http = client_of([make_router(self.store)])
        self.sdk = openai_of(self.http)

    def on_disk(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("*") if path.is_file() and "state.db" not in path.name)


server = fixture_of(FileServer)


def form(*parts: tuple[str, bytes], end: bytes = b"--x--\r\n") -> dict[str, Any]:
    """Returns a multipart body; each part is (its parameters after `form-data;`, its content)."""
    body = b"".join(
        b"--x\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n" % (name.encode(), content) for name, content in parts
    )
    return {"content": body + end, "headers": {"Content-Type": "multipart/form-data; boundary=x"}}


async def test_more_uploads_than_the_operator_allows_are_told_to_retry(server: FileServer) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def slow_body() -> AsyncIterator[bytes]:
        yield form()["content"][:0]
        arrived.set()
        await go_on.wait()
        yield form(('name="purpose"', b"fine-tune"), ('name="file"; filename="a"', b"{}"))["content"]

    async with client_of([make_router(server.store, max_uploads=1)]) as http:
        headers = form()["headers"]
        first = asyncio.create_task(http.post("/v1/files", content=slow_body(), headers=headers))
        await arrived.wait()
        second = await http.post("/v1/files", **form(('name="purpose"', b"fine-tune")))
        assert second.status_code == 429 and second.json()["error"]["code"] == "too_many_uploads"
        assert int(second.headers["Retry-After"]) > 0
        go_on.set()
        assert (await first).status_code == 200
        again = form(('name="purpose"', b"fine-tune"), ('name="file"; filename="b"', b"{}"))
        assert (await http.post("/v1/files", **again)).status_code == 200


async def test_the_sdk_uploads_downloads_lists_and_deletes(server: FileServer) -> None:
    content = bytes(range(256)) * 4000
    made = await server.sdk.files.create(file=("rows.jsonl", content), purpose="fine-tune")
    assert (made.object, made.filename, made.bytes, made.purpose) == ("file", "rows.jsonl", len(content), "fine-tune")
    assert made.id.startswith("file-") and made.status == "processed" and made.created_at == 1_000_000
    assert await server.sdk.files.retrieve(made.id) == made
    downloaded = await server.sdk.files.content(made.id)
    assert downloaded.content == content
    assert [file.id async for file in server.sdk.files.list()] == [made.id]
    deleted = await server.sdk.files.delete(made.id)
    assert deleted.deleted and deleted.id == made.id
    with pytest.raises(openai.NotFoundError) as gone:
        await server.sdk.files.retrieve(made.id)
    assert gone.value.code == "not_found" and gone.value.param == "file_id"
    assert server.on_disk() == []


async def test_files_are_listed_in_pages_in_both_orders_and_by_purpose(server: FileServer) -> None:
    names = [f"{number}.jsonl" for number in range(7)]
    for name in names:
        await server.sdk.files.create(file=(name, b"x"), purpose="evals" if name == "3.jsonl" else "fine-tune")
    assert [file.filename async for file in server.sdk.files.list(limit=3)] == names[::-1]
    assert [file.filename async for file in server.sdk.files.list(limit=2, order="asc")] == names
    assert [file.filename async for file in server.sdk.files.list(purpose="evals")] == ["3.jsonl"]
    first = (await server.http.get("/v1/files", params={"limit": 7})).json()
    assert first["has_more"] is False and first["last_id"] == first["data"][-1]["id"]


@pytest.mark.parametrize(("token", "sees"), [("sk-rft-write", True), ("sk-rft-read", False), (TOKEN, True)])
async def test_a_result_with_rows_is_a_file_of_its_owner_and_admins(server: FileServer, token: str, sees: bool) -> None:
    async def content() -> AsyncIterator[bytes]:
        yield b"rows"

    private = await server.store.create(content(), "readiness.json", "r", owner="sk-rft-write", owner_only=True)
    public = await server.store.create(content(), "step_metrics.csv", "r", owner="sk-rft-write")
    unowned = await server.store.create(content(), "readiness.json", "r", owner_only=True)
    headers = {"authorization": f"Bearer {token}"}
    listed = (await server.http.get("/v1/files", params={"limit": 5}, headers=headers)).json()["data"]
    seen = {public.id} | ({private.id} if sees else set()) | ({unowned.id} if token == TOKEN else set())
    assert {one["id"] for one in listed} == seen
    for file in (private, public, unowned):
        for path in (f"/v1/files/{file.id}", f"/v1/files/{file.id}/content"):
            assert (await server.http.get(path, headers=headers)).status_code == (200 if file.id in seen else 404)


async def test_a_hidden_file_cannot_be_deleted_and_looks_like_one_that_never_was(server: FileServer) -> None:
    async def content() -> AsyncIterator[bytes]:
        yield b"rows"

    hidden = await server.store.create(content(), "readiness.json", "r", owner="key-1", owner_only=True)
    headers = {"authorization": "Bearer sk-rft-write"}
    for id in (hidden.id, "file-unknown"):
        answer = await server.http.delete(f"/v1/files/{id}", headers=headers)
        message = f"No such File object: {id}"
        assert (answer.status_code, answer.json()["error"]["message"]) == (404, message)
    assert server.store.get(hidden.id).owner_only


async def test_a_file_is_deleted_when_it_expires(server: FileServer) -> None:
    expiry: Any = {"anchor": "created_at", "seconds": HOUR_S}
    made = await server.sdk.files.create(file=("a", b"x"), purpose="user_data", expires_after=expiry)
    assert made.expires_at == made.created_at + HOUR_S
    stays = await server.sdk.files.create(file=("b", b"x"), purpose="user_data")
    server.now += HOUR_S
    assert [file.id async for file in server.sdk.files.list()] == [stays.id]
    with pytest.raises(openai.NotFoundError):
        await server.sdk.files.content(made.id)
    server.store.sweep()
    assert server.on_disk() == [stays.id]


async def test_the_remains_of_an_upload_to_a_dead_server_are_swept(server: FileServer) -> None:
    left = server.folder / "incoming" / "file-left"
    left.write_bytes(b"half")
    server.now = left.stat().st_mtime + 3600
    server.store.sweep()
    assert left.exists()  # it may be an upload in progress at another server
    server.now += 2 * 24 * 3600
    server.store.sweep()
    assert not left.exists()


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("data/train.jsonl", "train.jsonl"),
        (" ", "file"),
        (".", "file"),
        ("a\u202etxt.exe", "atxt.exe"),
        ("日本語.jsonl", "日本語.jsonl"),
        ("x" * 1000, "x" * 255),
        ('a\\"; filename=\\"b', 'a"; filename="b'),
    ],
)
async def test_a_file_name_is_sanitized_and_never_used_as_a_path(server: FileServer, given: str, kept: str) -> None:
    body = form((f'name="file"; filename="{given}"', b"content"), ('name="purpose"', b"user_data"))
    made = (await server.http.post("/v1/files", **body)).json()
    assert made["filename"] == kept
    assert server.on_disk() == [made["id"]]
    answer = await server.http.get(f"/v1/files/{made['id']}/content")
    assert answer.content == b"content" and "x-evil" not in answer.headers


async def test_the_order_of_the_fields_does_not_matter(server: FileServer) -> None:
    made = await server.http.post(
        "/v1/files", **form(('name="file"; filename="a"', b"\r\n--x\n\r"), ('name="purpose"', b"evals"))
    )
    assert made.status_code == 200, made.text
    assert (await server.http.get(f"/v1/files/{made.json()['id']}/content")).content == b"\r\n--x\n\r"


class Chunks:
    """A body in pieces, which counts how many were read."""

    def __init__(self, pieces: int, end: bytes) -> None:
        self.pieces, self.end, self.num_read = pieces, end, 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        start = form(('name="purpose"', b"evals"), end=b"")["content"]
        yield start + b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(self.pieces):
            self.num_read += 1
            yield b"y" * 65536
        yield self.end


async def test_a_file_over_the_limit_is_refused_during_the_upload(server: FileServer) -> None:
    body = Chunks(10_000, b"\r\n--x--\r\n")
    answer = await server.http.post("/v1/files", content=body, headers=form()["headers"])
    assert answer.status_code == 413 and answer.json()["error"]["param"] == "file"
    assert body.num_read < 100 and server.on_disk() == []


async def test_a_body_with_a_content_length_over_the_limit_is_not_read(server: FileServer) -> None:
    body = Chunks(10_000, b"")
    headers = form()["headers"] | {"Content-Length": str(600 * 2**20)}
    answer = await server.http.post("/v1/files", content=body, headers=headers)
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "file_too_large"
    assert body.num_read == 0


async def test_an_incomplete_upload_leaves_nothing(server: FileServer) -> None:
    answer = await server.http.post("/v1/files", content=Chunks(3, b""), headers=form()["headers"])
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_multipart"
    assert server.on_disk() == []
    assert (await server.http.get("/v1/files")).json()["data"] == []


async def test_a_client_that_disconnects_in_mid_upload_leaves_nothing(server: FileServer) -> None:
    body = Chunks(1, b"").__aiter__()
    pieces = [{"type": "http.request", "body": await anext(body), "more_body": True}, {"type": "http.disconnect"}]
    sent = []

    async def receive() -> Any:
        return pieces.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    request = server.http.build_request("POST", "/v1/files", headers=form()["headers"])
    await by_hand(server.http, request, receive, send)
    assert sent == [] and server.on_disk() == []
