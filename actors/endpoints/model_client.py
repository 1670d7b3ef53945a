"""Clients of the operator's OpenAI-compatible endpoints, for judges and embeddings.

Requests go through `EndpointClient`. The error of a failed request has the code `model_grader_server_error`.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from pydantic import SecretStr

from agent_rft.actors.endpoints.client import EndpointClient
from agent_rft.actors.endpoints.http_response import HttpResponse
from agent_rft.actors.endpoints.network.proxies import find_proxy
from agent_rft.actors.runtime.timing import Timing
from agent_rft.errors import DiscardError, GraderFailed
from agent_rft.spec.operator.allowed_networks import parse_allowed
from agent_rft.spec.operator.model_names import match_model_name
from agent_rft.spec.operator.operator_config import AnswerFormat, ModelEndpoint

CHAT = "/chat/completions"
EMBEDDINGS = "/embeddings"
EVERYWHERE = (parse_allowed("0.0.0.0/0"), parse_allowed("::/0"))
"""All IP networks. Model endpoints may have any address, because they are set by the operator, not by a job."""
MODEL_SERVER_ERROR = "model_grader_server_error"
FALLBACK: AnswerFormat = "json_object"
LOG = logging.getLogger(__name__)


class SchemasUnsupported(NamedTuple):
    """Warning about a model endpoint that does not support JSON schemas."""

    model: str

    @property
    def message(self) -> str:
        return f"models.{self.model} does not support the response format json_schema, so json_object is used"

    @property
    def fix(self) -> str:
        return f"set response_format: {FALLBACK} in models.{self.model} of the operator's configuration"


OnNoSchemas = Callable[[SchemasUnsupported], None]


@cache
def warn_once(found: SchemasUnsupported) -> None:
    """Log that a model falls back to the response format FALLBACK, once per process and model."""
    LOG.warning("%s; %s", found.message, found.fix)


class ModelClient:
    """Client of one path of a model's endpoint, such as /embeddings.

    `name` is the model's name in the operator's configuration.
    """

    def __init__(
        self,
        name: str,
        endpoint: ModelEndpoint,
        path: str,
        timing: Timing,
        on_no_schemas: OnNoSchemas = warn_once,
        *,
        has_answered: bool = False,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Create a client that connects at the first request, through the proxy that `environment` names, if any.

        `on_no_schemas` is called once if the endpoint does not support JSON schemas. `has_answered`: see
        EndpointClient.

        Raises:
            UserError: The URL, a header or the proxy is invalid.
        """
        self.name = name
        self.uses_logprobs = endpoint.scoring == "logprobs"
        self._model = endpoint.model or name
        self._format: AnswerFormat = endpoint.response_format or "json_schema"
        self._may_fall_back = endpoint.response_format is None
        self._on_no_schemas = on_no_schemas
        url = join_model_url(endpoint, path)
        self._client = EndpointClient(
            f"model {name!r}",
            url,
            add_key_header(endpoint),
            GraderFailed,
            timing,
            allowed_networks=EVERYWHERE,
            keys_setting=f"`headers` or `api_key` of models.{name} in the operator's configuration",
            has_answered=has_answered,
            proxy=find_proxy(url, environment),
        )

    async def ask(self, body: Mapping[str, Any], schema: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send `body` with the model's name, and return the JSON object in the endpoint's answer.

        With `schema`, the request asks for a chat completion whose text is JSON that matches the schema. The caller
        must check the text, because not every endpoint enforces the schema.

        Raises:
            GraderFailed: The endpoint gave no usable answer; the code is model_grader_server_error.
            EndpointRefused: The endpoint refuses the key.
        """
        try:
            answer = await self._ask_with_fallback(body, schema)
            if not answer.ok:
                fix = ""
                if schema is not None and _refuses_format(answer):
                    fix = f"set response_format: none in models.{self.name} of the operator's configuration"
                why = "a model's endpoint must respond with status 200"
                raise self._client.make_bad_answer_error(answer, why, fix)
            if (found := answer.json_object) is None:
                raise self._client.make_bad_answer_error(answer, f"the body is not a JSON object{answer.json_problem}")
        except DiscardError as error:
            raise GraderFailed(error.message, **(error.details | {"code": MODEL_SERVER_ERROR})) from None
        return found

    async def _ask_with_fallback(self, body: Mapping[str, Any], schema: Mapping[str, Any] | None) -> HttpResponse:
        """Return the answer. If the endpoint does not support JSON schemas, retry with the response format FALLBACK."""
        if schema is None:
            return await self._post(body)
        tried = self._format
        answer = await self._post(make_json_request_body(body, schema, tried))
        if tried != "json_schema" or not self._may_fall_back or not _refuses_format(answer):
            return answer
        if self._format == tried:
            self._format = FALLBACK
            self._on_no_schemas(SchemasUnsupported(self.name))
        return await self._post(make_json_request_body(body, schema, self._format))

    async def _post(self, body: Mapping[str, Any]) -> HttpResponse:
        # A new idempotency key per request, so that the endpoint does not repeat an answer that cannot be parsed.
        return await self._client.post({"model": self._model, **body}, f"judge_{secrets.token_hex(16)}")

    def excerpt(self, text: str) -> str:
        """Return the start of a text from the model, for messages; see CallErrors.excerpt."""
        return self._client.excerpt(text)

    async def close(self) -> None:
        await self._client.close()


class ModelClients:
    """Clients of the operator's models.

    There is one client for each pair of model and path, so that all graders of a pool share the limits of a model's
    endpoint.
    """

    def __init__(
        self,
        models: Mapping[str, ModelEndpoint],
        timing: Timing,
        on_no_schemas: OnNoSchemas = warn_once,
        *,
        has_answered: bool = False,
    ) -> None:
        self._models = models
        self._timing = timing
        self._on_no_schemas = on_no_schemas
        self._has_answered = has_answered
        self._clients: dict[tuple[str, str], ModelClient] = {}

    def get_model_client(self, name: str, path: str) -> ModelClient:
        """Return the client of a configured model; `name` may have an additional date suffix."""
        entry = match_model_name(name, self._models) or name
        if (entry, path) not in self._clients:
            self._clients[entry, path] = ModelClient(
                entry, self._models[entry], path, self._timing, self._on_no_schemas, has_answered=self._has_answered
            )
        return self._clients[entry, path]


def join_model_url(endpoint: ModelEndpoint, path: str) -> str:
    return endpoint.base_url.rstrip("/") + path


def make_json_request_body(
    body: Mapping[str, Any], schema: Mapping[str, Any], answer_format: AnswerFormat
) -> dict[str, Any]:
    """Return a copy of `body` that asks for JSON matching `schema`, with the response format `answer_format`.

    For formats other than json_schema, the schema is added to the system message. The message includes the word
    JSON, because some endpoints otherwise reject the format json_object.
    """
    if answer_format == "json_schema":
        strict = {"name": "grade", "strict": True, "schema": schema}
        return {**body, "response_format": {"type": answer_format, "json_schema": strict}}
    first, *rest = body["messages"]
    text = f"Answer with one JSON object and nothing else. It must fit this JSON schema:\n{json.dumps(schema)}"
    if first["role"] == "system" and isinstance(first["content"], str):
        text = f"{first['content']}\n\n{text}"
    else:
        rest = [first, *rest]
    asked = {**body, "messages": [{"role": "system", "content": text}, *rest]}
    return asked if answer_format == "none" else {**asked, "response_format": {"type": answer_format}}


def _refuses_format(answer: HttpResponse) -> bool:
    """Return whether the endpoint rejects the response format, with a 400 or 422 that names the field."""
    if answer.status not in (400, 422):
        return False
    named = answer.error.param or answer.text
    return "response_format" in named or "json_schema" in named


def add_key_header(endpoint: ModelEndpoint) -> ModelEndpoint:
    """Return the endpoint with its `api_key`, if set, in the header `Authorization: Bearer ...`, as in OpenAI's API."""
    if endpoint.api_key is None:
        return endpoint
    bearer = SecretStr(f"Bearer {endpoint.api_key.get_secret_value()}")
    return endpoint.model_copy(update={"headers": {**endpoint.headers, "Authorization": bearer}})
