"""Requests below 1 MB that are made to cost much: values of JSON, and the places in requests where they are sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agent_rft.serve.http.json_body import MAX_VALUES

ROOM = 999_000
"""Bytes of a value, so that the request stays below 1 MB."""
MESSAGE = '{"role":"user"}'
GRADER = '{"type":"string_check","name":"a","input":"a","reference":"a","operation":"eq"}'


def many(unit: str, most: int = MAX_VALUES - 100) -> str:
    """As many copies of a value, with commas, as the server parses (at `most`) and fit into a request."""
    values = unit.count(",") + unit.count("[") + unit.count("{") + 1
    return ",".join([unit] * min(ROOM // (len(unit) + 1), most // values))


def keys(value: str, most: int) -> str:
    return "{" + ",".join(f'"{i:x}":{value}' for i in range(most)) + "}"


WIDE = {
    "empty lists": f"[{many('[]')}]",
    "empty objects": f"[{many('{}')}]",
    "floats": f"[{many('1.5')}]",
    "names": keys("0", MAX_VALUES - 100),
    "names of objects": keys("{}", MAX_VALUES // 2 - 100),
    "messages without content": f"[{many(MESSAGE)}]",
    "parts of a text": '[{"role":"user","content":[' + many('{"type":"x"}', MAX_VALUES - 200) + "]}]",
    "calls without anything": '[{"role":"assistant","tool_calls":[' + many("{}", MAX_VALUES - 200) + "]}]",
    "97 levels": f"[{many('[' * 90 + ']' * 90)}]",
}
LONG = {
    "long names": "{" + ",".join(f'"{"a" * 4_000}{i}":0' for i in range(ROOM // 4_010)) + "}",
    "numbers of 4,000 digits": f"[{many('9' * 4_000)}]",
    "floats of 4,000 digits": f"[{many('1.' + '9' * 4_000)}]",
    "a float of a million digits": "1." + "9" * (ROOM - 2),
    "escapes": '"' + "\\u0041" * (ROOM // 6) + '"',
    "escaped NULs that are none": '"' + "\\\\u0000" * (ROOM // 7) + '"',
    "backslashes": '"' + "\\\\" * (ROOM // 2 - 5) + '\\\\u0000"',
    "a wide character": '"' + "a" * (ROOM - 10) + '\U0001f600"',
    "commas in a text": '"' + "," * ROOM + '"',
    "spaces": " " * ROOM + "0",
}
VALUES = WIDE | LONG
"""JSON that is parsed, so that each route gets it: as many values as are allowed, and values as long as fit."""

REFUSED = {
    "lists": "[" + "[]," * (ROOM // 3) + "0]",
    "objects": "[" + "{}," * (ROOM // 3) + "0]",
    "names": keys("0", 90_000),
    "texts": "[" + '"",' * (ROOM // 3) + "0]",
    "numbers": "[" + "0," * (ROOM // 2) + "0]",
    "levels": "[" * (ROOM // 2) + "]" * (ROOM // 2),
    "open levels": "[" * ROOM,
    "levels of objects": '{"":' * (ROOM // 5) + "0" + "}" * (ROOM // 5),
    "more behind a backslash": '"\\\\",[' + "[]," * (ROOM // 3) + '0]"',
    "more behind a quote": '["\\"",' + "[]," * (ROOM // 3) + "0]",
    "UTF-16": ("[" + "[]," * (ROOM // 8) + "0]").encode("utf-16").decode("latin-1"),
    "a number of a million digits": "9" * ROOM,
    "an open text": '"' + "a" * ROOM,
    "text": "a" * ROOM,
}
"""What is refused before, or while, it is parsed; sent as Latin-1."""


@dataclass(frozen=True, slots=True)
class Place:
    """A route, and the field of its body in which a value is sent: the part of the body before it and after it."""

    path: str
    before: str = ""
    after: str = ""

    def body(self, value: str) -> bytes:
        return f"{self.before}{value}{self.after}".encode()


def _fields(path: str, fixed: str, names: str) -> Iterator[tuple[str, Place]]:
    for name in names.split():
        yield f"{path.rpartition('/')[2]} {name}", Place(path, f'{{{fixed},"{name}":', "}")


JOB = '"model":"gpt-5","training_file":"file-1"'
METHOD = f'{{{JOB},"method":{{"type":"reinforcement","reinforcement":'
PLACES: dict[str, Place] = {
    **dict(_fields("/v1/chat/completions", '"model":"gpt-5"', "messages")),
    **dict(
        _fields(
            "/v1/chat/completions",
            '"model":"gpt-5","messages":[{"role":"user","content":"a"}]',
            "tools metadata unknown stop logit_bias item grader response_format",
        )
    ),
    **dict(_fields("/v1/responses", '"model":"gpt-5"', "input")),
    **dict(_fields("/v1/responses", '"model":"gpt-5","input":"a"', "tools include metadata")),
    **dict(_fields("/v1/fine_tuning/jobs", JOB, "integrations metadata cluster hyperparameters")),
    **dict(_fields("/v1/fine_tuning/alpha/graders/validate", '"a":0', "grader")),
    **dict(_fields("/v1/fine_tuning/alpha/graders/run", f'"grader":{GRADER},"model_sample":"a"', "item")),
    **dict(_fields("/v1/fine_tuning/alpha/tool/run", '"server_url":"http://127.0.0.1:1/","name":"a"', "arguments x")),
    "a job": Place("/v1/fine_tuning/jobs"),
    "a method": Place("/v1/fine_tuning/jobs", METHOD, "}}"),
    "a job's tools": Place("/v1/fine_tuning/jobs", f'{METHOD}{{"grader":{GRADER},"tools":', "}}}"),
    "a job's grader": Place("/v1/fine_tuning/jobs", METHOD + '{"grader":', "}}}"),
    "a grader's input": Place("/v1/fine_tuning/alpha/graders/validate", '{"grader":' + GRADER[:-1] + ',"input":', "}}"),
    "cancel": Place("/v1/fine_tuning/jobs/x/cancel"),
}

POST = b"POST /v1/responses HTTP/1.1\r\ncontent-length: 9\r\n\r\n"
BYTES: dict[str, tuple[int, bytes]] = {
    "a long URL": (431, b"GET /" + b"a" * ROOM + b" HTTP/1.1\r\n\r\n"),
    "a long query": (431, b"GET /v1/models?" + b"a=%41&" * (ROOM // 6) + b" HTTP/1.1\r\n\r\n"),
    "a long header": (431, b"GET /v1/models HTTP/1.1\r\na: " + b"a" * ROOM + b"\r\n\r\n"),
    "many headers": (431, b"GET /v1/models HTTP/1.1\r\n" + b"a: b\r\n" * (ROOM // 6) + b"\r\n"),
    "a header without an end": (431, b"GET /v1/models HTTP/1.1\r\na: " + b"a" * ROOM),
    "a URL without an end": (431, b"GET /" + b"a" * ROOM),
    "many requests at once": (400, POST + b"GET / HTTP/1.1\r\n\r\n" * 9_000),
    "no HTTP": (400, b"\x16\x03\x01" * (ROOM // 3)),
    "empty lines": (400, b"\r\n" * 100 + b"a" * ROOM),
}
"""What a socket receives, and the status of the answer."""
