"""Clients of the operator's OpenAI-compatible endpoints, for judges and embeddings.

Requests go through `EndpointClient` like all others; a failed one is a `model_grader_server_error`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from actors.endpoints.client import EndpointClient
from actors.runtime.timing import Timing
from trainer.errors import Discard, EndpointRefused, GraderFailed
from trainer.spec.operator.allowed import parse_allowed
from trainer.spec.operator.config import ModelEndpoint
from trainer.spec.operator.model_names import named

CHAT = "/chat/completions"
EMBEDDINGS = "/embeddings"
EVERYWHERE = (parse_allowed("0.0.0.0/0"), parse_allowed("::/0"))
"""The operator configures these endpoints, not a job, so they may have any address."""
SERVER_ERROR = "model_grader_server_error"


class ModelClient:
    """A client of one path of a model's endpoint; `name` is the model's name in the operator's configuration."""

    def __init__(self, name: str, endpoint: ModelEndpoint, path: str, timing: Timing) -> None:
        """Make a client; it connects at the first request.

        Raises:
            UserError: the URL or a header is invalid.
        """
        self.name = name
        self.by_logprobs = endpoint.scoring == "logprobs"
        self._model = endpoint.model or name
        self._client = EndpointClient(
            f"model {name!r}",
            model_url(endpoint, path),
            with_key(endpoint),
            GraderFailed,
            timing,
            allowed_networks=EVERYWHERE,
        )

    async def ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON object that the endpoint answers to `body` and the model's name.

        Raises:
            GraderFailed: no usable answer; its code is model_grader_server_error.
            EndpointRefused: 401 or 403.
        """
        try:
            # A new key for each request, so that an answer that could not be parsed is requested again.
            answer = await self._client.post({"model": self._model, **body}, f"judge_{secrets.token_hex(16)}")
            if not answer.ok:
                raise self._client.bad_answer(answer, "a model must answer 200")
            try:
                found = None if answer.truncated else answer.json()
            except ValueError:
                found = None
            if not isinstance(found, dict):
                raise self._client.bad_answer(answer, "the body is not a JSON object")
        except Discard as error:
            raise GraderFailed(error.message, **(error.details | {"code": SERVER_ERROR})) from None
        except EndpointRefused as error:
            remedy = f"{error.remedy}, or the api_key of models.{self.name} in the operator's configuration"
            raise EndpointRefused(f"{error.problem}: {remedy}", **(error.details | {"remedy": remedy})) from None
        return found

    def scrub(self, text: str) -> str:
        """`text` without the API key and the header values."""
        return self._client.scrub(text)

    async def close(self) -> None:
        await self._client.close()


class ModelClients:
    """The operator's models: one client per model and path, so that the graders of one pool share its limits."""

    def __init__(self, models: Mapping[str, ModelEndpoint], timing: Timing) -> None:
        self._models = models
        self._timing = timing
        self._clients: dict[tuple[str, str], ModelClient] = {}

    def client(self, name: str, path: str) -> ModelClient:
        """The client of a configured model; its dated names share its limits."""
        entry = named(name, self._models) or name
        if (entry, path) not in self._clients:
            self._clients[entry, path] = ModelClient(entry, self._models[entry], path, self._timing)
        return self._clients[entry, path]


def model_url(endpoint: ModelEndpoint, path: str) -> str:
    return endpoint.base_url.rstrip("/") + path


def with_key(endpoint: ModelEndpoint) -> ModelEndpoint:
    """The endpoint with its `api_key` as an Authorization header, as in OpenAI's API."""
    if endpoint.api_key is None:
        return endpoint
    bearer = SecretStr(f"Bearer {endpoint.api_key.get_secret_value()}")
    return endpoint.model_copy(update={"headers": {**endpoint.headers, "Authorization": bearer}})
