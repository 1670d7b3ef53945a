"""OpenAPI documents whose operations become tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from agent_rft.cli.projects.openapi_document import MAX_BYTES
from agent_rft.cli.projects.openapi_tools import ToolApi, read_api
from agent_rft.errors import InvalidJob, UserError

PETS = """\
openapi: 3.0.3
servers: [{url: "https://{place}.example.com/v1/", variables: {place: {default: eu}}}]
paths:
  /pets/{petId}:
    parameters:
      - $ref: '#/components/parameters/petId'
      - {name: fields, in: query, schema: {type: string}}
    get:
      operationId: get_pet
      summary: Shows a pet.
      description: Its name and tag.
      parameters:
        - {name: fields, in: query, description: which, schema: {type: array, items: {type: string}}}
        - {name: Authorization, in: header, schema: {type: string}}
        - {name: X-Page, in: header, schema: {type: integer, minimum: 0, exclusiveMinimum: true, maximum: 9}}
    put:
      operationId: put_pet
      requestBody:
        required: true
        content:
          application/json:
            schema: {$ref: '#/components/schemas/Pet'}
components:
  parameters:
    petId: {name: petId, in: path, required: true, schema: {type: string}}
  schemas:
    Pet:
      type: object
      title: A pet
      required: [id, name]
      properties:
        id: {type: integer, readOnly: true}
        name: {type: string, nullable: true, example: Rex}
        tag: {$ref: '#/components/schemas/Tag'}
        title: {type: string}
    Tag: {type: string, enum: [a, b], nullable: true, x-order: 1}
"""


def read(folder: Path, text: str, *wanted: str, name: str = "api.yaml") -> ToolApi:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_api(str(path), wanted)


@pytest.mark.parametrize("as_json", [False, True])
def test_each_operation_becomes_a_tool_without_references(tmp_path: Path, as_json: bool) -> None:
    api = read(tmp_path, json.dumps(yaml.safe_load(PETS)) if as_json else PETS)
    assert api.url == "https://eu.example.com/v1"
    get, put = api.operations
    assert (get.tool.name, get.tool.description) == ("get_pet", "Shows a pet.\nIts name and tag.")
    assert get.tool.parameters == {
        "type": "object",
        "properties": {
            "petId": {"type": "string"},
            "fields": {"description": "which", "type": "array", "items": {"type": "string"}},
            "X-Page": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9},
        },
        "required": ["petId"],
        "additionalProperties": False,
    }
    assert (get.method, get.path, get.tool.may_change_data) == ("GET", "/pets/{petId}", False)
    assert get.argument_places == {"petId": "path", "fields": "query", "X-Page": "header"}, (
        "tokens are the server's matter"
    )
    assert put.tool.may_change_data and put.tool.parameters["required"] == ["petId", "body"]
    assert put.tool.parameters["properties"]["body"] == {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": ["string", "null"]},
            "tag": {"type": ["string", "null"], "enum": ["a", "b", None]},
            "title": {"type": "string"},
        },
    }
    (only,) = read(tmp_path, PETS, "put_pet").operations
    assert only.tool == put.tool


def changed(old: str, new: str) -> str:
    assert old in PETS
    return PETS.replace(old, new)


OTHERS = "such as --tool|each with --tool"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            changed("      operationId: get_pet\n", ""),
            r"paths./pets/{petId}.get \(.*api.yaml:8\): operationId.* is missing.*\n.*: get_pets_petId, or",
        ),
        (
            changed("get_pet", "pets.get"),
            r"get.operationId \(.*:9\): 'pets.get' is not a valid name.*\n.*write pets_get",
        ),
        (
            changed("put_pet", "get_pet"),
            r"put.operationId \(.*:17\): 'get_pet' is also the operationId of get /pets/{petId}",
        ),
        (
            changed(
                "        tag: {$ref: '#/components/schemas/Tag'}", "        tag: {$ref: '#/components/schemas/Pet'}"
            ),
            r"schemas.Pet.properties.tag.\$ref \(.*:34\): operation 'put_pet': #/components/schemas/Pet contains itself"
            r".*\n.*replace this reference",
        ),
        (changed("schemas/Tag'}", "schemas/Dog'}"), r"tag.\$ref \(.*:34\): .*#/components/schemas/Dog does not exist"),
        (changed("'#/components/schemas/Tag'", "other.yaml#/Tag"), r"'other.yaml#/Tag' is in another document"),
        (
            changed("#/components/parameters/petId", "http://127.0.0.1:9/petId"),
            r"'http://127.0.0.1:9/petId' cannot be resolved",
        ),
        (changed("in: path", "in: query"), r"paths./pets/{petId}.get \(.*:8\): .*the path contains {petId}"),
        (
            changed("application/json", "multipart/form-data"),
            r"its body is multipart/form-data; only JSON.*\n.*or leave out",
        ),
        (
            changed("name: fields, in: query, schema", "in: query, schema"),
            r"parameters\[1\] \(.*:7\): .*`name` of a parameter must be a string",
        ),
        (changed("type: array, items", "type: arr, items"), r"its arguments at \$.properties.fields.*"),
        (
            changed("https://{place}.example.com", "/api"),
            r"servers\[0\].url \(.*:2\): .*'/api/v1/', which is not absolute",
        ),
        (changed("place: {default: eu}", ""), r"servers\[0\].url"),
        (
            changed("default: eu", "default: '{place}{place}'"),
            r"servers\[0\].url .*'https://{place}{place}.*not absolute",
        ),
        (changed("default: eu", f"default: {'x' * 2_001}"), r"servers\[0\].url .*too long.*\n.*at most 2,000"),
        (changed("/pets/{petId}", "'@evil.example/x'"), r"get_pet.: .* path '@evil.example/x' .*\n.*begin the path "),
        (changed("/pets/{petId}", '"/pets\\n"'), r"get_pet.: .* path '/pets\\n' .*\n.*no control characters"),
        (changed("/pets/{petId}", "404"), r"paths.404.get \(.*:8\): .* path '404' .*\n.*begin the path with /"),
        (
            changed("name: fields, in: query, schema", "name: [q], in: query, schema"),
            r"parameters\[1\] .*`name` of a parameter must be a string",
        ),
        (
            changed("name: fields, in: query, schema", "name: q, in: [query], schema"),
            r"parameters\[1\] .*`in` must be path, query, header or cookie",
        ),
        (changed("[id, name]", "[[id], name]"), r"put_pet.: its arguments at \$.properties.body.required"),
    ],
)
def test_what_cannot_be_called_is_named_with_line_and_fix(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        read(tmp_path, text)


def test_keys_of_yaml_are_text_as_in_json(tmp_path: Path) -> None:
    text = changed("        title: {type: string}", "        on: {type: string}\n        1: {type: integer}")
    text = text.replace("      operationId: put_pet", "      operationId: put_pet\n      responses: {200: {}}")
    (put,) = read(tmp_path, text, "put_pet").operations
    assert put.tool.parameters["properties"]["body"]["properties"].keys() == {"name", "tag", "on", "1"}


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://me:secret@api.example.com", r"must not contain '@': a user.*\n.*API_AUTHORIZATION"),
        ("//me:secret@api.example.com", r"must not contain '@': a user"),
        ("https://api.example.com/v1?key=secret", r"must not contain '\?': .* query .*\n.*API_AUTHORIZATION"),
        ("https://api.example.com/#secret", r"must not contain '#': .* fragment"),
        ("https://api.example.com/\n", r"has spaces or control characters.*\n.*remove them"),
        ("https://a b.example.com", r"has spaces or control characters"),
        ("https://[", r"is 'https://\[', which is not absolute"),
        ("https:///v1", r"is 'https:///v1', which is not absolute"),
    ],
)
def test_the_url_of_an_api_has_nothing_but_its_place(tmp_path: Path, url: str, said: str) -> None:
    with pytest.raises(InvalidJob, match=r"servers\[0\].url \(.*:\d+\): the API's URL " + said) as got:
        read(tmp_path, changed('"https://{place}.example.com/v1/"', json.dumps(url)))
    assert "secret" not in str(got.value).replace("may be secret", "")


def with_text(at: str) -> str:
    """JSON with half of a surrogate pair at this place."""
    document = json.loads(operations(1))
    operation = document["paths"]["/0"]["get"]
    operation |= {"summary": "", "parameters": [{"name": "a", "in": "query", "schema": {"enum": ["b"]}}]}
    return json.dumps(document).replace(at, at[:-1] + "\\ud800" + at[-1])


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ('"summary": ""', r"paths./0.get.summary contains a lone"),
        ('"https://a.example"', r"servers\[0\].url contains a lone"),
        ('["b"', r"paths./0.get.parameters\[0\].schema.enum\[0\] contains a lone"),
        ('"/0"', r"paths contains a lone surrogate, such as \\ud800: write complete characters"),
    ],
)
def test_half_of_a_surrogate_pair_is_refused_with_its_place(tmp_path: Path, at: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read(tmp_path, with_text(at), name="api.json")


def operations(number: int) -> str:
    """A document with so many operations."""
    paths = {f"/{i}": {"get": {"operationId": f"get_{i}"}} for i in range(number)}
    return json.dumps({"openapi": "3.1.0", "servers": [{"url": "https://a.example"}], "paths": paths})


DOUBLED = {f"s{i}": {"allOf": [{"$ref": f"#/components/schemas/s{i + 1}"}] * 2} for i in range(40)}
EXPLODING = json.loads(operations(1))
EXPLODING["components"] = {"schemas": {**DOUBLED, "s40": {"type": "string"}}}
EXPLODING["paths"]["/0"]["get"]["parameters"] = [
    {"name": "a", "in": "query", "schema": {"$ref": "#/components/schemas/s0"}}
]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("swagger: '2.0'\npaths: {}", r"is Swagger 2.0: convert it"),
        ("- 1", r"is not an OpenAPI document: `openapi` must be 3.0 or 3.1"),
        ("openapi: 3.1.0", r"has no object `paths`"),
        ("openapi: 3.1.0\npaths: {/a: {description: b}}", r"has no operations below `paths`"),
        ("openapi: 3.1.0\npaths: [", r"api.yaml:3 is not valid YAML"),
        ('{"openapi": "3.1.0",\n"paths": }', r"api.yaml:2 is not valid JSON"),
        ("a: &a [1]\nb: *a", r"api.yaml:2 has an unsupported YAML alias \(\*a\)"),
        ("[" * 100_000, r"nested too deeply"),
        ("a: " + "[" * 100_000, r"api.yaml:1 is nested more than 200 levels deep"),
        ("a: \0", r"is neither JSON nor YAML"),
        (operations(65), r"has 65 operations.*select at most 64, each with --tool, such as --tool get_0"),
        (operations(1).replace("/0", "/" + "{" * 60_000), r"path has 60,001 characters.*\n.*at most 2,000"),
        (operations(5_001), r"more than the limit of 5,000 operations"),
        (json.dumps(EXPLODING), r"more than 2,000 parts or 40 levels"),
        ("#" * (MAX_BYTES + 1), r"larger than (the limit of )?8,388,608 bytes"),
    ],
)
def test_what_is_no_description_of_an_api_is_refused_in_bounded_time(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read(tmp_path, text)


def test_one_operation_of_a_large_document_can_be_chosen(tmp_path: Path) -> None:
    (chosen,) = read(tmp_path, operations(5_000), "get_4999").operations
    assert chosen.path == "/4999"
    with pytest.raises(UserError, match=r"--tool nothing: .* has no such operation; available: get_0, get_1"):
        read(tmp_path, operations(2), "nothing")


def test_only_the_chosen_operations_must_be_right(tmp_path: Path) -> None:
    text = changed("application/json", "multipart/form-data")
    assert [operation.tool.name for operation in read(tmp_path, text, "get_pet").operations] == ["get_pet"]


@contextmanager
def site(answers: dict[str, tuple[int, dict[str, str], bytes]]) -> Iterator[str]:
    """A server on this machine with these answers by path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = answers[self.path]
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_document_is_fetched_from_a_url_within_bounds() -> None:
    relative = changed("https://{place}.example.com/v1/", "/v1/").encode()
    answers = {
        "/api.yaml?key=secret": (200, {}, relative),
        "/moved": (302, {"Location": "/api.yaml"}, b""),
        "/none": (404, {}, b"secret"),
        "/large": (200, {}, b" " * (MAX_BYTES + 1)),
    }
    with site(answers) as url:
        api = read_api(f"{url}/api.yaml?key=secret")
        assert api.url == f"{url}/v1", "a relative address is that of the document's server"
        for path, said in (
            ("/moved", "HTTP 302 Found; give the URL of the redirect"),
            ("/none", "HTTP 404 Not Found; check the URL, or save the file yourself"),
            ("/large", "larger than (the limit of )?8,388,608 bytes"),
        ):
            with pytest.raises(UserError, match=said) as got:
                read_api(url + path)
            assert "secret" not in str(got.value)
    with pytest.raises(UserError, match="cannot be read: no connection \\(Connection refused\\); check the URL"):
        read_api(url)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://169.254.169.254/openapi.json", "its host resolves to 169.254.169.254, a cloud metadata address"),
        ("http://0.0.0.0/openapi.json", "an unspecified address"),
        ("http://[fe80::1]/openapi.json", "a link-local address"),
        ("http://", "its URL must start with http:// or https:// and name a host"),
    ],
)
def test_addresses_that_no_api_has_are_not_read(url: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_api(url)
