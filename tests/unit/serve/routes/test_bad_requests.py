"""Bad requests for the frame, files, graders and tools: each is a 4xx in the wire form that names the param.

The other routers' tables are in their own test modules.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from agent_rft.cluster.records.blobs import FolderBlobs
from agent_rft.serve.http.grader_trials import TrialFactory
from agent_rft.serve.routes import file_routes, trial_routes
from agent_rft.serve.stores.database import Database
from agent_rft.serve.stores.file_store import FileStore
from agent_rft.serve.stores.migration import migrate
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from tests.support.api import client_of
from tests.support.bad_requests import SECRET, Bad, check_refused

RUN = "/v1/fine_tuning/alpha/graders/run"
VALIDATE = "/v1/fine_tuning/alpha/graders/validate"
TOOL = "/v1/fine_tuning/alpha/tool/run"
JSON_TYPE = {"Content-Type": "application/json"}
ZIPPED = JSON_TYPE | {"Content-Encoding": "gzip"}
BOMB = gzip.compress(b"0" * 5_000_000)
FORM_TYPE = {"Content-Type": "multipart/form-data; boundary=x"}
SIMILARITY = {"type": "text_similarity", "input": "{{ sample.output_text }}", "reference": "x"}
REMOTE = {"type": "endpoint", "url": "http://example.com"}
EXACT = {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "x", "operation": "eq"}
PYTHON = "def grade(sample, item): return 1.0"
JUDGE = {"type": "score_model", "model": "nobody", "input": [{"role": "user", "content": "x"}]}
PRIVATE = (
    "127.0.0.1",
    "localhost",
    "10.1.2.3",
    "169.254.169.254",
    "[::1]",
    "2130706433",
    "0x7f.1",
    "[::ffff:10.0.0.1]",
)


def without(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def part(disposition: str, content: bytes) -> bytes:
    return b"--x\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n" % (disposition.encode(), content)


FILE = part('name="file"; filename="a.jsonl"', b"{}")
PURPOSE = part('name="purpose"', b"fine-tune")


def upload(what: str, body: bytes, param: str | None, status: int = 400, kind: dict[str, str] | None = None) -> Bad:
    options = {"content": body, "headers": FORM_TYPE if kind is None else kind}
    return Bad(f"upload: {what}", "POST", "/v1/files", param, status, options)


def expiry(anchor: bytes | None, seconds: bytes | None) -> bytes:
    fields = (("anchor", anchor), ("seconds", seconds))
    parts = [part(f'name="expires_after[{name}]"', value) for name, value in fields if value is not None]
    return FILE + PURPOSE + b"".join(parts) + b"--x--\r\n"


ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
END = b"--x--\r\n"
UPLOADS = [
    upload("no form", b"hello", None, 415, {"Content-Type": "text/plain"}),
    upload("JSON", b"{}", None, 415, {"Content-Type": "application/json"}),
    upload("no content type", b"hello", None, 415, {}),
    upload("no boundary", b"--x", None, 415, {"Content-Type": "multipart/form-data"}),
    upload("a boundary of 1,000", b"--x", None, 400, {"Content-Type": "multipart/form-data; boundary=" + "x" * 1000}),
    upload("another boundary", b"--y\r\n", None),
    upload("nothing", b"", None),
    upload("half a header", b"--x\r\nContent-Dispo", None),
    upload("half a file", PURPOSE + FILE[:-5], None),
    upload("no end", PURPOSE + FILE, None),
    upload("a header without a colon", b"--x\r\nnonsense\r\n\r\n" + END, None),
    upload("a huge header", b"--x\r\nContent-Disposition: " + b"x" * 100_000 + b"\r\n\r\n" + END, None),
    upload("a part without a name", part("filename=a", b"x") + END, None),
    upload("no disposition", b"--x\r\nX: y\r\n\r\nz\r\n" + END, None),
    upload("no file", PURPOSE + END, "file"),
    *(
        upload(f"a file name that is {what}", part(f'name="file"; filename="{name}"', b"{}") + PURPOSE + END, "file")
        for what, name in (
            ("a path upwards", "../../etc/passwd"),
            ("a path upwards in the middle", "data/../../state.db"),
            ("a path upwards of Windows", "..\\..\\boot.ini"),
            ("absolute", "/etc/shadow"),
            ("a drive's", "C:/boot.ini"),
            ("a share's", "\\\\evil\\share"),
            ("..", ".."),
            ("NUL", "a.jsonl\0.exe"),
            ("a terminal's code", "a\x1b[2J.jsonl"),
        )
    ),
    upload("a file name of broken UTF-8", FILE.replace(b"a.jsonl", b"\xff\xfe.jsonl") + PURPOSE + END, "file"),
    upload("a Content-Length of 600 MB", FILE, "file", 413, FORM_TYPE | {"Content-Length": "629145600"}),
    upload("a Content-Length of 5,000 digits", FILE, "file", 413, FORM_TYPE | {"Content-Length": "9" * 5000}),
    upload("a zip bomb", BOMB, None, 415, FORM_TYPE | {"Content-Encoding": "gzip"}),
    upload("a file without a name", part('name="file"', b"x") + PURPOSE + END, "file"),
    upload("an empty file", part('name="file"; filename="a"', b"") + PURPOSE + END, "file"),
    upload("two files", FILE + FILE + PURPOSE + END, "file"),
    upload("no purpose", FILE + END, "purpose"),
    upload("an unknown purpose", FILE + part('name="purpose"', b"mischief") + END, "purpose"),
    upload("a purpose of jobs", FILE + part('name="purpose"', b"fine-tune-results") + END, "purpose"),
    upload("an empty purpose", FILE + part('name="purpose"', b"") + END, "purpose"),
    upload("two purposes", FILE + PURPOSE + PURPOSE + END, "purpose"),
    upload("a purpose of broken UTF-8", FILE + part('name="purpose"', b"\xff\xfe") + END, "purpose"),
    upload("a purpose of 1 MB", FILE + part('name="purpose"', b"x" * 1_000_000) + END, "purpose"),
    upload("a thousand parts", b"".join(part(f'name="{i}"', b"x") for i in range(1000)) + END, None),
    upload("too large", part('name="file"; filename="a"', b"x" * 20_000) + PURPOSE + END, "file", 413),
    upload("expiry without an anchor", expiry(None, b"3600"), ANCHOR),
    upload("expiry from another anchor", expiry(b"last_active_at", b"3600"), ANCHOR),
    upload("expiry without seconds", expiry(b"created_at", None), SECONDS),
    upload("expiry too soon", expiry(b"created_at", b"3599"), SECONDS),
    upload("expiry too late", expiry(b"created_at", b"2592001"), SECONDS),
    upload("expiry of a fraction", expiry(b"created_at", b"3600.5"), SECONDS),
    upload("expiry in other digits", expiry(b"created_at", "３６００".encode()), SECONDS),
    upload("expiry of 5,000 digits", expiry(b"created_at", b"9" * 5000), SECONDS),
]
FILES = [
    Bad("get: unknown", "GET", "/v1/files/file-none", "file_id", 404),
    Bad("get: too long", "GET", "/v1/files/" + "x" * 5000, "file_id", 404),
    Bad("get: a path", "GET", "/v1/files/..%2f..%2fetc%2fpasswd", None, 404),
    Bad("get: the database", "GET", "/v1/files/..%2fstate.db/content", None, 404),
    Bad("get: dots", "GET", "/v1/files/%2e%2e%5cstate.db/content", "file_id", 404),
    Bad("get: NUL", "GET", "/v1/files/file-%00/content", None, 400),
    Bad("get: broken UTF-8", "GET", "/v1/files/%ff%fe", "file_id", 404),
    Bad("get: SQL", "GET", "/v1/files/' OR 1=1 --", "file_id", 404),
    Bad("content: unknown", "GET", "/v1/files/file-none/content", "file_id", 404),
    Bad("delete: unknown", "DELETE", "/v1/files/file-none", "file_id", 404),
    Bad("delete: a path", "DELETE", "/v1/files/..%2f..%2fsecret.key", None, 404),
    Bad("delete: all", "DELETE", "/v1/files", None, 405),
    Bad("list: limit 0", "GET", "/v1/files?limit=0", "limit"),
    Bad("list: limit -1", "GET", "/v1/files?limit=-1", "limit"),
    Bad("list: limit 10001", "GET", "/v1/files?limit=10001", "limit"),
    Bad("list: limit of 5,000 digits", "GET", "/v1/files?limit=" + "9" * 5000, "limit"),
    Bad("list: limit none", "GET", "/v1/files?limit=", "limit"),
    Bad("list: limit true", "GET", "/v1/files?limit=true", "limit"),
    Bad("list: order", "GET", "/v1/files?order=sideways", "order"),
    Bad("list: after unknown", "GET", "/v1/files?after=file-none", "after"),
    Bad("list: after too long", "GET", "/v1/files?after=" + "x" * 300, "after"),
    Bad("list: after NUL", "GET", "/v1/files?after=%00", None),
    Bad("list: purpose too long", "GET", "/v1/files?purpose=" + "x" * 300, "purpose"),
]


def bad_grader(what: str, grader: Any, param: str) -> Bad:
    return Bad(f"grader: {what}", "POST", VALIDATE, param, options={"json": {"grader": grader}})


def multi(expression: Any, **parts: Any) -> dict[str, Any]:
    return {"type": "multi", "graders": parts or {"a": EXACT}, "calculate_output": expression}


GRADERS = [
    bad_grader("null", None, "grader"),
    bad_grader("a string", "string_check", "grader"),
    bad_grader("a list", [EXACT], "grader"),
    bad_grader("no type", without(EXACT, "type"), "grader"),
    bad_grader("an unknown type", {"type": "oracle"}, "grader"),
    bad_grader("a type of 100 kB", {"type": "x" * 100_000}, "grader"),
    bad_grader("a type that is a number", {"type": 7}, "grader"),
    bad_grader("no input", without(EXACT, "input"), "grader.input"),
    bad_grader("an input that is a number", EXACT | {"input": 7}, "grader.input"),
    bad_grader("an unknown operation", EXACT | {"operation": "approximately"}, "grader.operation"),
    bad_grader("an unknown key", EXACT | {"weight": 1}, "grader.weight"),
    bad_grader("an unknown key that is a secret", EXACT | {"api_key": SECRET}, "grader.api_key"),
    bad_grader("a template with an unknown name", EXACT | {"input": "{{ config.key }}"}, "grader.input"),
    bad_grader("__class__ in a template", EXACT | {"input": "{{ sample.__class__.__init__ }}"}, "grader.input"),
    bad_grader("a call in a template", EXACT | {"input": "{{ item.keys() }}"}, "grader.input"),
    bad_grader("a template that is not closed", EXACT | {"reference": "{{ item.x"}, "grader.reference"),
    bad_grader("a filter in a template", EXACT | {"reference": "{{ item.x | safe }}"}, "grader.reference"),
    bad_grader("an unknown metric", SIMILARITY | {"evaluation_metric": "vibes"}, "grader.evaluation_metric"),
    bad_grader("cosine without a model", SIMILARITY | {"evaluation_metric": "cosine"}, "grader.model"),
    bad_grader("python without a source", {"type": "python"}, "grader.source"),
    bad_grader("python with a syntax error", {"type": "python", "source": "def grade("}, "grader.source"),
    bad_grader("python without grade", {"type": "python", "source": "x = 1"}, "grader.source"),
    bad_grader("python with another grade", {"type": "python", "source": "def grade(): pass"}, "grader.source"),
    bad_grader("python of 300 kB", {"type": "python", "source": PYTHON + "#" * 300_000}, "grader.source"),
    bad_grader("python for an hour", {"type": "python", "source": PYTHON, "timeout_s": 3600}, "grader.timeout_s"),
    bad_grader("python nested too deep", {"type": "python", "source": "(" * 40_000}, "grader.source"),
    bad_grader("an unknown judge", JUDGE, "grader.model"),
    bad_grader("a judge without messages", JUDGE | {"input": []}, "grader.input"),
    bad_grader("a judge whose message is a string", JUDGE | {"input": ["x"]}, "grader.input[0]"),
    bad_grader("a descending range", JUDGE | {"range": [1, 0]}, "grader.range"),
    bad_grader("a range of strings", JUDGE | {"range": ["a", "b"]}, "grader.range[0]"),
    bad_grader(
        "no labels",
        without(JUDGE, "range") | {"type": "label_model", "labels": [], "passing_labels": ["a"]},
        "grader.labels",
    ),
    bad_grader("no parts", multi("a") | {"graders": {}}, "grader.graders"),
    bad_grader("a single grader in place of named parts", multi("a") | {"graders": EXACT}, "grader.graders"),
    bad_grader("parts in a list", multi("a") | {"graders": [EXACT]}, "grader.graders"),
    bad_grader("a multi in a multi", multi("a", a=multi("b", b=EXACT)), "grader.graders.a"),
    bad_grader("a bad part", multi("a", a=EXACT | {"operation": "x"}), "grader.graders.a.operation"),
    bad_grader("a bad template in a part", multi("a", a=EXACT | {"input": "{{x}}"}), "grader.graders.a.input"),
    bad_grader("a part with a function's name", multi("min", min=EXACT), "grader.graders.min"),
    bad_grader("no expression", without(multi("a"), "calculate_output"), "grader.calculate_output"),
    *(
        bad_grader(f"the expression {expression[:20]}", multi(expression), "grader.calculate_output")
        for expression in (
            "",
            "a +",
            "b",
            "1",
            "a / 0",
            "a / (1 - 1)",
            "9^9^9^9^9 * a",
            "a ** 10 ** 1000 if a else 1",
            "log(0) + a",
            "a.__class__",
            "__import__('os').system('id')",
            "a[0]",
            "lambda: a",
            "[a for a in (1,)]",
            "'x' * a",
            "a if a else 1",
            "min()",
            "sqrt(a, a)",
            "(" * 500 + "a" + ")" * 500,
            "a" + " + a" * 5000,
            "1e999 * a",
            "a\x07",
        )
    ),
    *(
        bad_grader(
            f"an endpoint at {host}", {"type": "endpoint", "url": f"http://{host}/grade?key={SECRET}"}, "grader.url"
        )
        for host in PRIVATE
        if host != "localhost"
    ),
    bad_grader(
        "an endpoint in a part", multi("a", a={"type": "endpoint", "url": "http://10.0.0.1"}), "grader.graders.a.url"
    ),
    bad_grader("an endpoint with a file URL", {"type": "endpoint", "url": "file:///etc/passwd"}, "grader.url"),
    bad_grader("an endpoint without a host", {"type": "endpoint", "url": "http://"}, "grader.url"),
    bad_grader("a header with a line break", REMOTE | {"headers": {"X": f"{SECRET}\r\nY: z"}}, "grader.url"),
    bad_grader("an invalid header name", REMOTE | {"headers": {"X y": SECRET}}, "grader.url"),
    bad_grader("a reserved header", REMOTE | {"headers": {"Content-Length": "1"}}, "grader.url"),
    bad_grader("a header that is a list", REMOTE | {"headers": {"X": [SECRET]}}, "grader.headers.X"),
]
RUNS = [
    Bad("run: nothing", "POST", RUN, "grader", options={"json": {}}),
    Bad("run: a zip bomb", "POST", RUN, None, 415, {"content": BOMB, "headers": ZIPPED}),
    Bad(
        "run: a zip bomb without Content-Encoding",
        "POST",
        RUN,
        None,
        400,
        {"content": BOMB, "headers": JSON_TYPE},
    ),
    Bad("run: broken UTF-8", "POST", RUN, None, 400, {"content": b'{"model_sample": "\xff"}', "headers": JSON_TYPE}),
    Bad("run: half a body", "POST", RUN, None, 400, {"content": b'{"grader": {"type": ', "headers": JSON_TYPE}),
    Bad("run: 33 MB", "POST", RUN, None, 413, {"content": b" " * 33_000_000, "headers": JSON_TYPE}),
    Bad("run: no sample", "POST", RUN, "model_sample", options={"json": {"grader": EXACT}}),
    *(
        Bad(f"run: {what}", "POST", RUN, param, options={"json": {"grader": EXACT, "model_sample": "x"} | values})
        for what, values, param in (
            ("a sample that is null", {"model_sample": None}, "model_sample"),
            ("a sample that is an object", {"model_sample": {}}, "model_sample"),
            ("an item that is a list", {"item": []}, "item"),
            ("an item that is a string", {"item": "x"}, "item"),
            ("a trace id that is a number", {"trace_id": 1}, "trace_id"),
            ("a trace id of 1,000", {"trace_id": "x" * 1000}, "trace_id"),
            ("an unknown key", {"temperature": 1}, "temperature"),
            ("a private endpoint", {"grader": {"type": "endpoint", "url": "http://10.0.0.1/"}}, "grader.url"),
            ("a private name", {"grader": {"type": "endpoint", "url": "http://localhost:1/"}}, "grader"),
        )
    ),
]
CALL = {"name": "search", "server_url": f"https://example.com/?key={SECRET}", "headers": {"Authorization": SECRET}}
TOOLS = [
    Bad(f"tool: {what}", "POST", TOOL, param, options={"json": values})
    for what, values, param in (
        ("nothing", {}, "name"),
        ("no URL", without(CALL, "server_url"), "server_url"),
        ("no name", without(CALL, "name"), "name"),
        ("an empty name", CALL | {"name": ""}, "name"),
        ("a name of 1,000", CALL | {"name": "x" * 1000}, "name"),
        ("a URL that is a number", CALL | {"server_url": 7}, "server_url"),
        ("a URL of 10,000", CALL | {"server_url": "http://example.com/" + "x" * 10_000}, "server_url"),
        ("a URL of another scheme", CALL | {"server_url": "gopher://example.com"}, "server_url"),
        ("a URL without a host", CALL | {"server_url": "/run"}, "server_url"),
        ("a URL that cannot be read", CALL | {"server_url": "http://[::1"}, "server_url"),
        ("a port out of range", CALL | {"server_url": "http://example.com:99999/"}, "server_url"),
        *((f"a tool at {host}", CALL | {"server_url": f"http://{host}:1/"}, "server_url") for host in PRIVATE),
        ("headers that are a string", CALL | {"headers": SECRET}, "headers"),
        ("a header that is a number", CALL | {"headers": {"X": 7}}, "headers.X"),
        ("a header with a line break", CALL | {"headers": {"X": f"{SECRET}\r\nX-Evil: 1"}}, "headers"),
        ("a header name with a line break", CALL | {"headers": {"X\r\nY": SECRET}}, "headers"),
        ("a reserved header", CALL | {"headers": {"Transfer-Encoding": "chunked"}}, "headers"),
        ("two credentials", CALL | {"server_url": f"http://user:{SECRET}@example.com"}, "headers"),
        ("arguments that are a list", CALL | {"arguments": [1]}, "arguments"),
        ("an id that is a number", CALL | {"call_id": 7}, "call_id"),
        ("an id of 1,000", CALL | {"call_id": "x" * 1000}, "call_id"),
        ("an item that is a list", CALL | {"item": [1]}, "item"),
    )
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """A client of one app for all requests, which must leave nothing behind."""
    folder = tmp_path_factory.mktemp("server")
    database = Database.from_folder(folder)
    migrate(database)
    store = FileStore(database, FolderBlobs(folder / "files"), folder, max_bytes=10_000)
    routers = [file_routes.make_router(store), trial_routes.make_router(TrialFactory(DEFAULT_CONFIG))]
    async with client_of(routers) as client:
        yield client
    database.close()
    assert os.listdir(folder / "files") == os.listdir(folder / "incoming") == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("bad", [*UPLOADS, *FILES, *GRADERS, *RUNS, *TOOLS], ids=str)
async def test_a_bad_request_is_refused_in_the_wire_form(bad: Bad, client: httpx.AsyncClient) -> None:
    await check_refused(bad, client)
