"""Requests that cost much or take very long, against the API in a process of its own, on real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import product
from typing import Any, TypeVar

import httpx
import psutil
import pytest

from agent_rft.serve.http.json_body import MAX_VALUES
from agent_rft.serve.inference import chat
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG, ServerLimits
from tests.support.api import client_of
from tests.support.api_process import Server, api_process
from tests.support.budget import MIB, budget_of
from tests.support.fake_models import FakeModels, turn
from tests.support.hostile_requests import BYTES, PLACES, REFUSED, ROOM, VALUES, WIDE

JSON = {"Content-Type": "application/json"}
CHAT = {"model": "gpt-5", "messages": [{"role": "user", "content": "a"}]}
MAX_CONNECTIONS = 40
SHORT = {
    "headers_s": 1.0,
    "body_s": 1.0,
    "upload_idle_s": 1.0,
    "upload_bytes_per_s": 1e5,
    "unread_s": 1.0,
    "rest_s": 1.0,
}
IN_FULL = ("completions messages", "completions item", "responses input", "run item", "run arguments", "a method")
params = pytest.mark.parametrize
Case = TypeVar("Case")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with api_process(tmp_path_factory.mktemp("server"), {}) as server:
        with server.client() as client:  # the first requests import and compile, which no attack can repeat
            for path in ("chat/completions", "responses", "fine_tuning/jobs"):
                client.post(f"/v1/{path}", json={})
        yield server


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with short deadlines and few connections."""
    with api_process(tmp_path_factory.mktemp("hasty"), SHORT, max_connections=MAX_CONNECTIONS) as server:
        yield server


def at_once(check: Callable[[Case], None], cases: Iterable[Case]) -> None:
    """Run the check for several cases at a time: each waits a second for the server to give up."""
    with ThreadPoolExecutor(8) as pool:
        for checked in [pool.submit(check, case) for case in cases]:
            checked.result()


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error of an answer, in the wire form and short."""
    assert set(answer.json()) == {"error"} and len(answer.content) < 10_000
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"] and error["type"]
    return dict(error)


def attack(server: Server, client: httpx.Client, method: str, path: str, body: bytes, **headers: str) -> httpx.Response:
    assert len(body) < 1_000_000
    with budget_of(server.pid):
        answer = client.request(method, path, content=body, headers=JSON | headers)
        assert client.get("/health").status_code == 200  # so whatever it left to the event loop is done
    if answer.status_code != 200:
        assert 400 <= answer.status_code < 500, answer.text
        error_of(answer)
    return answer


# -- what a request costs ----------------------------------------------------------------------------------------------


@params("place", PLACES)
def test_a_value_that_is_parsed(server: Server, place: str) -> None:
    at = PLACES[place]
    with server.client() as client:
        for name, value in (VALUES if place in IN_FULL else WIDE).items():
            answer = attack(server, client, "POST", at.path, at.body(value))
            assert '"invalid_json"' not in answer.text, f"{name} must reach the route"


@params("name", REFUSED)
@params("place", ["a job", "responses input"])
def test_a_value_that_is_not_parsed(server: Server, name: str, place: str) -> None:
    at = PLACES[place]
    with server.client() as client:
        answer = attack(server, client, "POST", at.path, at.before.encode() + REFUSED[name].encode("latin-1"))
    assert (answer.status_code, error_of(answer)["code"]) == (400, "invalid_json")


def test_a_body_where_there_is_none_is_not_read(hasty: Server) -> None:
    def sent_to(route: tuple[str, str]) -> None:
        method, path = route
        with hasty.client() as client:
            answer = client.request(method, path, content=b"[" + b"[]," * 10)
            sent = client.request(method, path, content=iter([b"[[],", b"[],"]))
        assert (answer.status_code, sent.status_code) == (400, 400), route
        if method != "HEAD":
            assert error_of(answer)["code"] == error_of(sent)["code"] == "unexpected_body", route
        head = f"{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 32000000\r\n\r\n"
        assert answer_of(hasty, head.encode()).startswith(b"HTTP/1.1 400"), route  # before any of it arrives

    paths = ("/v1/models", "/v1/fine_tuning/jobs", "/health", "/docs")
    at_once(sent_to, product(("GET", "HEAD", "DELETE", "OPTIONS"), paths))


@params("name", BYTES)
def test_bytes_that_are_hardly_http(server: Server, name: str) -> None:
    status, content = BYTES[name]
    with budget_of(server.pid), server.client() as client:
        answer = answer_of(server, content)
        client.get("/health")
    assert answer.startswith(f"HTTP/1.1 {status}".encode()), answer[:200]
    assert set(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]) == {"message", "type", "param", "code"}


CHUNKED = "POST /v1/responses HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-type: application/json\r\n"


def test_trailers_and_extensions_of_chunks_are_as_short_as_headers(hasty: Server) -> None:
    def sent(case: tuple[str, str]) -> None:
        start, rest = case
        head, long = CHUNKED + f"authorization: Bearer {hasty.tokens[0]}\r\n\r\n", rest * (ROOM // len(rest))
        assert answer_of(hasty, (head + start + long).encode()).startswith(b"HTTP/1.1 431"), case
        with connected(hasty) as connection:
            connection.sendall(f"{CHUNKED}\r\n{start}".encode())
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 401"), case
            begun = time.monotonic()
            with suppress(OSError):
                connection.sendall(long.encode())
            said = said_on(connection)
        assert b"headers_too_large" in said or time.monotonic() < begun + SHORT["rest_s"], case

    at_once(sent, [("0\r\na: ", "a"), ("0\r\na", "a"), ("0\r\n", "a: b\r\n"), ("1;a=", "a"), ("1;", "a=b;")])


def test_a_trailer_is_not_a_header(server: Server) -> None:
    trailer = f"0\r\nauthorization: Bearer {server.tokens[0]}\r\n\r\n"
    with connected(server) as connection:
        connection.sendall(f"{CHUNKED}\r\n{trailer}".encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 401")


FORM = "multipart/form-data; boundary=x"
PART = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\na\r\n'
FORMS = {
    "many parts": b"".join(PART % str(i).encode() for i in range(ROOM // 60)),
    "parts without anything": b"--x\r\n\r\n\r\n" * (ROOM // 9),
    "a long name": PART % (b"a" * (ROOM - 100)),
    "a long header": b"--x\r\n" + b"a" * ROOM,
    "many headers": b"--x\r\n" + b"a: b\r\n" * (ROOM // 6),
    "a long value": PART[:-3] % b"purpose" + b"a" * ROOM,
    "line ends": b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"\r" * (ROOM - 200),
    "almost boundaries": b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    + b"\r\n--" * (ROOM // 4 - 50),
    "no form": b"a" * ROOM,
    "line ends before it": b"\r\n" * (ROOM // 2),
}


@params("name", FORMS)
def test_a_form(server: Server, name: str) -> None:
    with server.client() as client:
        answer = attack(server, client, "POST", "/v1/files", FORMS[name], **{"Content-Type": FORM})
        assert answer.status_code == 400, answer.text
        path = "/v1/files?" + "a" * 60_000
        attack(server, client, "POST", path, FORMS[name], **{"Content-Type": FORM + "x" * 60_000})


async def test_a_key_holds_a_share_of_the_requests_and_of_the_memory() -> None:
    """Half of 128 bodies are of one key: its next ones are told to retry, and other keys go on."""
    size, go_on, begun = 1_000, asyncio.Event(), asyncio.Semaphore(0)

    async def body() -> AsyncIterator[bytes]:
        yield b" " * size
        begun.release()
        await go_on.wait()
        yield b""

    routers = [chat.make_router(FakeModels(turn("1")), DEFAULT_CONFIG)]
    async with client_of(routers, limits=ServerLimits(max_body_bytes=size, max_connections=200)) as client:
        path = "/v1/chat/completions"
        held = [asyncio.create_task(client.post(path, content=body())) for _ in range(64)]
        for _ in held:
            await begun.acquire()
        refused = await client.post(path, json=CHAT)
        assert (refused.status_code, error_of(refused)["code"]) == (429, "too_many_in_progress")
        other = {"Authorization": "Bearer sk-rft-write"}
        assert (await client.post(path, json=CHAT, headers=other)).status_code == 200
        assert (await client.get("/v1/models")).status_code == 404, "it holds no body"
        go_on.set()
        await asyncio.gather(*held)
        assert (await client.post(path, json=CHAT)).status_code == 200
    async with client_of(routers, limits=ServerLimits(max_connections=2)) as client:
        go_on.clear()
        held = [asyncio.create_task(client.post(path, content=body()))]
        await begun.acquire()
        assert (await client.get("/v1/models")).status_code == 429
        assert (await client.get("/v1/models", headers=other)).status_code == 404
        go_on.set()
        await asyncio.gather(*held)
        assert (await client.get("/v1/models")).status_code == 404


# -- how long a client may take ----------------------------------------------------------------------------------------


def connected(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), 20)


def answer_of(server: Server, content: bytes) -> bytes:
    """All that the server says until it closes the connection; it may do so before it has received everything."""
    with connected(server) as connection:
        with suppress(OSError):
            connection.sendall(content)
        return said_on(connection)


def said_on(connection: socket.socket) -> bytes:
    """All bytes until the connection is closed."""
    said = b""
    try:
        while chunk := connection.recv(1 << 16):
            said += chunk
    except ConnectionResetError:
        pass
    return said


def drip(connection: socket.socket, piece: bytes) -> bytes:
    """Send a piece ten times a second until the server answers or closes, and return what it said."""
    connection.settimeout(0.1)
    said = b""
    for _ in range(200):
        try:
            connection.sendall(piece)
            chunk = connection.recv(1 << 16)
        except TimeoutError:
            continue
        except OSError:
            return said
        if not chunk:
            return said
        said += chunk
    pytest.fail("the connection stayed open for 20 s")


@params("sent", ["", "GET /v1/mod", "GET /v1/models HTTP/1.1\r\nhost: a\r\n"])
def test_half_sent_headers_end_and_leave_room_for_others(hasty: Server, sent: str) -> None:
    share = MAX_CONNECTIONS // 2
    with ExitStack() as stack:
        waiting = [stack.enter_context(connected(hasty)) for _ in range(share)]
        for each in waiting:
            each.sendall(sent.encode())
        refused = stack.enter_context(connected(hasty))
        said = said_on(refused)
        assert b"503" in said and b"too_many_connections" in said
        assert [said_on(each) for each in waiting] == [b""] * share
    with hasty.client() as client:
        assert client.get("/health").status_code == 200


def test_headers_that_drip(hasty: Server) -> None:
    def sent(piece: bytes) -> None:
        with connected(hasty) as connection:
            connection.sendall(b"" if piece == b"\r\n" else b"GET /health HTTP/1.1\r\nhost: a\r\n")
            assert drip(connection, piece) == b"", piece

    at_once(sent, [b"a", b"a: b\r\n", b"\r\n"])


def test_headers_that_drip_after_an_answer(hasty: Server) -> None:
    with connected(hasty) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        assert drip(connection, b"\r\n") in (b"", b'{"status":"ok"}')


def head_of(server: Server, path: str, length: int, kind: str = "application/json", key: int = 0) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {server.tokens[key]}\r\n"
    return f"{head}content-type: {kind}\r\ncontent-length: {length}\r\n\r\n".encode()


def test_a_body_that_drips(hasty: Server) -> None:
    def sent_to(path: str) -> None:
        with connected(hasty) as connection:
            connection.sendall(head_of(hasty, path, 1_000_000))
            said = drip(connection, b" ")
        assert said.startswith(b"HTTP/1.1 408") and b'"timeout"' in said, path

    at_once(sent_to, ["/v1/responses", "/v1/fine_tuning/jobs", "/v1/fine_tuning/jobs/x/cancel"])


def test_the_rest_of_a_refused_body_that_drips(hasty: Server) -> None:
    with connected(hasty) as connection:
        connection.sendall(head_of(hasty, "/v1/responses", 100_000_000))
        assert drip(connection, b" ").startswith(b"HTTP/1.1 413")


def test_slow_uploads_of_a_key_end_and_leave_room_for_others(hasty: Server) -> None:
    start = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    share = ServerLimits().max_uploads // 2
    with ExitStack() as stack:
        slow = [stack.enter_context(connected(hasty)) for _ in range(share + 1)]
        for each in slow:
            each.sendall(head_of(hasty, "/v1/files", 10**8, FORM) + start)
        with hasty.client(1) as other:
            form: Any = {"files": {"file": ("a.jsonl", b"{}")}, "data": {"purpose": "fine-tune"}}
            assert other.post("/v1/files", **form).status_code == 200
        codes = sorted(drip(each, b"a" * 100).rpartition(b'"code":')[2] for each in slow)
        assert codes == [b'"timeout"}}'] * share + [b'"too_many_uploads"}}']
    with hasty.client() as client:
        assert client.post("/v1/files", **form).status_code == 200


def test_a_stream_that_is_not_read_ends_and_holds_no_memory(hasty: Server) -> None:
    body = json.dumps(CHAT | {"stream": True}).encode()
    with ExitStack() as stack, budget_of(hasty.pid, cpu_s=5):
        unread = [stack.enter_context(connected(hasty)) for _ in range(10)]
        for each in unread:
            each.sendall(head_of(hasty, "/v1/chat/completions", len(body)) + body)
        time.sleep(SHORT["unread_s"] * 3)  # the kernel's buffers are full long before
        for each in unread:
            said = said_on(each)
            assert len(said) > MIB and not said.endswith(b"0\r\n\r\n"), "it was cut off"


def test_a_stream_that_is_read_slowly_goes_on(hasty: Server) -> None:
    """The system wants more only when a third of its buffer is free, which is megabytes."""
    body = json.dumps(CHAT | {"stream": True}).encode()
    with connected(hasty) as connection:
        connection.sendall(head_of(hasty, "/v1/chat/completions", len(body)) + body)
        begun = time.monotonic()
        while time.monotonic() < begun + 3 * SHORT["unread_s"]:
            assert connection.recv(1 << 16)
            time.sleep(SHORT["unread_s"] / 5)
        of_clients = [each.raddr.port for each in psutil.Process(hasty.pid).net_connections() if each.raddr]
        assert connection.getsockname()[1] in of_clients


def test_streams_that_were_sent_before_other_requests_end_with_their_connection(hasty: Server) -> None:
    """A key may have half of the requests in progress: had any of them gone on, the last client would be refused."""
    body = json.dumps(CHAT | {"stream": True}).encode()
    request = head_of(hasty, "/v1/chat/completions", len(body)) + body
    for _ in range(MAX_CONNECTIONS // 2):
        with connected(hasty) as connection:
            connection.sendall(request * 3)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
    with hasty.client() as client:
        given_up = time.monotonic() + 20
        while (answer := client.post("/v1/chat/completions", json=CHAT)).status_code == 429:
            assert time.monotonic() < given_up, answer.text
    assert answer.status_code == 200


def test_a_body_of_many_values_that_is_allowed_is_answered(server: Server) -> None:
    """The bounds leave room for what is sent in earnest."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, 2, 3], "b": "x, y"}'}}
    result = {"role": "tool", "tool_call_id": "a", "content": "1, 2, " * 50}
    messages = [{"role": "user", "content": "a"}, *[{"role": "assistant", "tool_calls": [call]}, result] * 1_700]
    body = {"model": "gpt-5", "messages": messages}
    assert json.dumps(body).count(",") > 2 * MAX_VALUES
    with server.client() as client:
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
