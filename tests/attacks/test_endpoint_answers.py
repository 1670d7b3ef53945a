"""Answers of endpoints that cost much to read or never end, against the API in a process of its own."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, repeat

import httpx
import pytest

from agent_rft.actors.endpoints.network.response_limits import MAX_BODY_BYTES
from tests.support.api_process import Server, api_process
from tests.support.budget import budget_of, cpu_of
from tests.support.hostile_endpoint import hostile_endpoint, with_length

SIZE = MAX_BODY_BYTES - 100
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
EMPTY_BLOCKS = b"\x00\x00\x00\xff\xff" * 10_000
"""Blocks of deflate that decode to nothing."""
params = pytest.mark.parametrize


def filled(part: str, start: str = "[", end: str = "]") -> bytes:
    """A body of nearly the maximum size that consists of many equal parts."""
    return f"{start}{part * ((SIZE - len(start) - len(end)) // len(part))}{end}".encode()


BODIES = {
    "empty lists": filled("[],", end="0]"),
    "empty objects": filled("{},", end="0]"),
    "numbers": filled("0,", end="0]"),
    "an output of many values": filled("[],", '{"output": [', "0]}"),
    "as many values as allowed": f'{{"output": [{"[]," * 49_000}0]}}'.encode(),
    "as many objects as allowed": f'{{"output": [{",".join(["{" + chr(34) * 2 + ":{}}"] * 33_000)}]}}'.encode(),
    "depth": filled("[", end=""),
    "depth of objects": filled('{"a":', end="0"),
    "depth below Python's limit": b'{"output": ' + b"[" * 900 + b"]" * 900 + b"}",
    "many keys": ("{" + ",".join(f'"{i}":0' for i in range(450_000)) + "}").encode(),
    "equal keys": filled('"a":0,', "{", '"a":0}'),
    "as many keys as allowed, and two that are equal": (
        '{"output":"a",' + ",".join(f'"{i}":0' for i in range(95_000)) + ',"1":0}'
    ).encode(),
    "parts of a score": ('{"score":1,"scores":{' + ",".join(f'"{i}":0' for i in range(95_000)) + "}}").encode(),
    "long numbers": filled("9" * 4_300 + ",", end="0]"),
    "one number": filled("9"),
    "one fraction": filled("9", "[0."),
    "a large exponent": filled("9", "[1e"),
    "empty strings": filled('"",', end='""]'),
    "one string": filled("a", '{"output": "', '"}'),
    "escapes": filled("\\u0001", '["', '"]'),
    "escaped quotes": filled('\\",', '["', '"]'),
    "separators in a string": filled("[,", '["', '"]'),
    "blanks": filled(" ", "", ""),
    "no UTF-8": b"\xff" * SIZE,
    "UTF-16": ("[" + "[]," * 900_000 + "0]").encode("utf-16"),
    "wide characters": '["\U0001f600'.encode() + b"a" * (SIZE - 20) + b'"]',
    "escape sequences": b"\x1b]" * (SIZE // 2),
    "an error's message": filled("\x1b[", '{"error": {"message": "', '"}}').replace(b"\x1b", b"\\u001b")[:SIZE],
}
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


def endless(start: bytes, piece: bytes) -> Callable[[], Iterable[bytes]]:
    return lambda: chain([start], repeat(piece))


def compressed_to_nothing() -> Iterator[bytes]:
    stream = zlib.compressobj(wbits=31)
    yield HEAD + b"Content-Encoding: gzip\r\n\r\n" + stream.compress(b"") + stream.flush(zlib.Z_SYNC_FLUSH)
    yield from repeat(EMPTY_BLOCKS)


ENDLESS = {
    "interim responses": endless(b"", INTERIM * 2_000),
    "the shortest interim responses": endless(b"", b"HTTP/1.1 100\r\n\r\n" * 4_000),
    "interim responses one at a time": endless(b"", INTERIM),
    "interim responses with headers": endless(b"", b"HTTP/1.1 103 Hints\r\n" + b"link: a\r\n" * 100 + b"\r\n"),
    "headers": endless(HEAD, b"a: b\r\n" * 1_000),
    "one header": endless(HEAD + b"a: ", b"a" * 10_000),
    "a status line": endless(b"HTTP/1.1 200 ", b"a" * 10_000),
    "blank lines": endless(b"", b"\r\n" * 10_000),
    "chunks of one byte": endless(CHUNKED, b"1\r\na\r\n" * 10_000),
    "chunks of a few bytes": endless(CHUNKED, b"8\r\naaaaaaaa\r\n" * 5_000),
    "chunks one at a time": endless(CHUNKED, b"1\r\na\r\n"),
    "chunk extensions": endless(CHUNKED, (b"1;a=" + b"b" * 5_000 + b"\r\na\r\n") * 10),
    "one chunk extension": endless(CHUNKED + b"1;a=", b"b" * 60_000),
    "a chunk size": endless(CHUNKED, b"0" * 60_000),
    "trailers": endless(CHUNKED + b"0\r\n", b"a: b\r\n" * 1_000),
    "compressed chunks of one byte": endless(
        HEAD + b"Content-Encoding: deflate\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n\x78\x9c\r\n",
        b"".join(b"1\r\n%c\r\n" % byte for byte in EMPTY_BLOCKS[:5_000]),
    ),
    "compressed blocks without content": compressed_to_nothing,
    "answers": endless(b"", with_length(b'{"output": 1}') * 1_000),
    "a body in segments of one byte": endless(HEAD + b"\r\n", b"a"),
}
FINE = {"output": "fine", "score": 1}
ERRORS = ("empty lists", "no UTF-8", "escape sequences", "an error's message")
"""Bodies that are also answers with an error's status, which become messages."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    answers: dict[str, Callable[[], Iterable[bytes]]] = dict(ENDLESS)
    for name, body in BODIES.items():
        answers[name] = partial(repeat, with_length(body), 1)
    for name in ERRORS:
        answers[f"400 {name}"] = partial(repeat, with_length(BODIES[name], "400 Bad Request"), 1)
        answers[f"500 {name}"] = partial(repeat, with_length(BODIES[name], "500 Internal Server Error"), 1)
    answers["fine"] = partial(repeat, with_length(json.dumps(FINE).encode()), 1)
    with hostile_endpoint(answers) as url:
        yield url


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, url: str) -> Iterator[Server]:
    with api_process(tmp_path_factory.mktemp("server"), {}, ["127.0.0.0/8"]) as server, server.client() as client:
        for call in (call_tool, grade):  # the first requests import and compile, which no attack can repeat
            assert call(client, f"{url}/fine").status_code == 200
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def call_tool(client: httpx.Client, url: str) -> httpx.Response:
    return client.post("/v1/fine_tuning/alpha/tool/run", json={"name": "t", "server_url": url})


def grade(client: httpx.Client, url: str) -> httpx.Response:
    grader = {"type": "endpoint", "name": "g", "url": url, "max_retries": 0}
    return client.post("/v1/fine_tuning/alpha/graders/run", json={"grader": grader, "model_sample": "a"})


@params("name", [*BODIES, *(f"{status} {name}" for status in (400, 500) for name in ERRORS)])
def test_a_large_answer_costs_little(server: Server, client: httpx.Client, url: str, name: str) -> None:
    for call in (call_tool, grade):
        with budget_of(server.pid):
            answer = call(client, f"{url}/{name}")
        assert answer.status_code in (200, 424) and len(answer.content) < 1_000_000, answer.text[:500]


@params("name", ENDLESS)
def test_an_answer_that_never_ends_costs_little(server: Server, client: httpx.Client, url: str, name: str) -> None:
    with budget_of(server.pid):
        answer = call_tool(client, f"{url}/{name}")
    if name == "answers" and answer.status_code == 200:  # the first one arrived alone
        assert answer.json()["output"] == "1"
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (424, "tool_failed"), answer.text
    with budget_of(server.pid):
        assert grade(client, f"{url}/{name}").json()["reward"] == 0.0


@params("name", ["empty lists", "as many values as allowed", "interim responses", "chunks of one byte"])
def test_other_keys_keep_their_latency(server: Server, client: httpx.Client, url: str, name: str) -> None:
    """Twelve such answers at once delayed another key's requests by seven seconds.

    The delay is the CPU time that the server uses for others until it answers, since wall time depends on the load.
    """
    with ThreadPoolExecutor(12) as pool, server.client(1) as other:
        work = [pool.submit(call_tool, client, f"{url}/{name}") for _ in range(24)]
        delays_s = []
        while not all(each.done() for each in work):
            begun_s = cpu_of(server.pid)
            assert other.get("/v1/models").status_code == 200
            assert call_tool(other, f"{url}/fine").json()["output"] == "fine"
            delays_s.append(cpu_of(server.pid) - begun_s)
    assert {each.result().status_code for each in work} <= {200, 424}
    assert max(delays_s) < 1.0
