"""Every operation of the OpenAPI page, with hostile and large valid requests: none below 1 MB costs the API much."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.api_process import Server, api_process
from tests.support.budget import budget_of
from tests.support.hostile_requests import VALUES
from tests.support.operation_bodies import FIELDS, LARGE, BodyPlaces

JSON = {"Content-Type": "application/json"}
OPERATIONS = [
    *("chat/completions", "responses", "embeddings", "api_keys", "fine_tuning/jobs", "fine_tuning/jobs/check"),
    *("fine_tuning/readiness", "fine_tuning/alpha/graders/validate", "fine_tuning/alpha/graders/run"),
    *("fine_tuning/alpha/tool/run", "fine_tuning/jobs/{job_id}/tool/run"),
]
"""Operations with a JSON body. `test_bodies.py` has those of forms, and the bodies that no route reads."""
INNER = {name: (VALUES | FIELDS)[name] for name in ("names", "97 levels", "commas in a text", *FIELDS)}
"""Values for the places below the top level."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with api_process(tmp_path_factory.mktemp("server"), {}) as server:
        with server.client() as client:  # the first requests import and compile, which no attack can repeat
            for path in OPERATIONS:
                for body in ({}, *LARGE.get(f"/v1/{path}", [])):
                    client.post(f"/v1/{path.replace('{job_id}', 'ftjob-a')}", json=body)
        yield server


@pytest.fixture(scope="module")
def places(server: Server) -> BodyPlaces:
    with server.client() as client:
        return BodyPlaces(client.get("/openapi.json").json())


class Attacks:
    """Requests to a server, each within the budget. Collects what exceeds it, so that a test shows all of it."""

    def __init__(self, server: Server, client: httpx.Client) -> None:
        self._server, self._client = server, client
        self.costly: list[str] = []

    def send(self, name: str, method: str, path: str, body: bytes | None = None, **options: Any) -> httpx.Response:
        assert body is None or len(body) < 1_000_000, (name, len(body or b""))
        headers = options.pop("headers", {}) | ({} if body is None else JSON)
        try:
            with budget_of(self._server.pid):
                answer = self._client.request(method, path, content=body, headers=headers, **options)
                assert self._client.get("/health").status_code == 200  # so whatever it left to the event loop is done
        except AssertionError as error:
            self.costly.append(f"{method} {path:.80} {name}: {error}")
            return httpx.Response(0)
        if answer.status_code >= 400 and method != "HEAD":
            assert answer.status_code < 500 or answer.json()["error"]["code"] in ("not_ready", "database_unavailable")
            assert len(answer.content) < 20_000, (name, answer.text[:500])
        return answer


def test_all_operations_with_a_body_are_attacked(places: BodyPlaces) -> None:
    found = {path for method, path, operation in places.operations() if places.find_places(path, operation)}
    assert found == {f"/v1/{path}" for path in OPERATIONS}
    assert set(LARGE) == found - {"/v1/fine_tuning/jobs/{job_id}/tool/run"}


@pytest.mark.parametrize("path", OPERATIONS)
def test_large_valid_bodies_cost_little(server: Server, path: str) -> None:
    with server.client() as client:
        attacks = Attacks(server, client)
        for number, body in enumerate(LARGE.get(f"/v1/{path}", [])):
            attacks.send(f"body {number}", "POST", f"/v1/{path}", json.dumps(body).encode())
    assert attacks.costly == []


def test_a_long_id_in_an_error_message_costs_little(server: Server) -> None:
    call = {"id": "a" * 900_000, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]
    with server.client() as client:
        attacks = Attacks(server, client)
        answer = attacks.send(
            "call id", "POST", "/v1/chat/completions", json.dumps({"model": "a", "messages": messages}).encode()
        )
    assert attacks.costly == [] and answer.status_code == 400
    assert answer.json()["error"]["message"].endswith("has no tool message with its result")


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("path", OPERATIONS)
def test_hostile_values_in_all_places_of_bodies_cost_little(server: Server, places: BodyPlaces, path: str) -> None:
    (operation,) = (one for method, found, one in places.operations() if (method, found) == ("POST", f"/v1/{path}"))
    with server.client() as client:
        attacks = Attacks(server, client)
        for name, place in places.find_places(path, operation).items():
            is_top = name.count(".") + name.count("[") <= 1
            for kind, value in (VALUES | FIELDS if is_top else INNER).items():
                body = place.body(value)
                if len(body) < 1_000_000:
                    attacks.send(f"{name}: {kind}", "POST", f"/v1/{path.replace('{job_id}', 'ftjob-a')}", body)
    assert attacks.costly == []


TEXTS = {
    "letters": "a" * 50_000,
    "wide letters": "\u00e4" * 8_000,
    "dots": "." * 50_000,
    "percent signs": "%" * 15_000,
    "digits": "9" * 50_000,
    "commas": "a," * 12_000,
    "brackets": "[" * 16_000,
    "a regex": "(a+)+" * 4_000,
}


def test_hostile_paths_queries_and_headers_cost_little(server: Server, places: BodyPlaces) -> None:
    with server.client() as client:
        attacks = Attacks(server, client)
        for method, path, operation in places.operations():
            if path.endswith("/stream"):
                continue  # it ends only with the job
            for parameter in operation.get("parameters", []):
                for name, text in TEXTS.items():
                    kind = f"{parameter['name']}: {name}"
                    if parameter["in"] == "path":
                        attacks.send(kind, method, path.replace(f"{{{parameter['name']}}}", text))
                    elif parameter["in"] == "query":
                        attacks.send(kind, method, path, params={parameter["name"]: text})
                    elif text.isascii():
                        attacks.send(kind, method, path, headers={parameter["name"]: text})
            for name, query in {"many": [("a", "b")] * 12_000, "many limits": [("limit", "9")] * 6_000}.items():
                attacks.send(name, method, path, params=query)
    assert attacks.costly == []
