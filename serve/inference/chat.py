"""POST /chat/completions: validates requests and forwards them to the model server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from agent_rft.serve.http.auth import Writer
from agent_rft.serve.http.grader_trials import TrialFactory
from agent_rft.serve.http.schemas.base import STREAMED
from agent_rft.serve.http.schemas.inference_schemas import ChatCompletionBody
from agent_rft.serve.http.sse import event_stream
from agent_rft.serve.inference.best_of import read_grader, select_best_sample
from agent_rft.serve.inference.model_server import ModelServer
from agent_rft.wire.api_errors import ApiError
from agent_rft.wire.chat_schema import ChatRequest


def make_router(models: ModelServer, trials: TrialFactory) -> APIRouter:
    router = APIRouter(tags=["chat"])

    @router.post(
        "/chat/completions", response_model=ChatCompletionBody, response_model_exclude_unset=True, responses=STREAMED
    )
    async def create_chat_completion(
        request: ChatRequest, key: Writer, http_request: Request
    ) -> ChatCompletionBody | Response:
        """Create a chat completion: the model's next message, as one response or as a stream."""
        http_request.state.ignored_keys = request.ignored_keys
        http_request.state.ignored_tools = request.ignored_tools
        if request.stream:
            chunks = await models.stream(request.to_chat_body())
            wants_usage = request.stream_options is not None and request.stream_options.include_usage
            return event_stream(chunks if wants_usage else _drop_usage(chunks), end="[DONE]")
        grader = None if request.grader is None else await read_grader(request.grader, trials, key)
        completion = await models.chat(request.to_chat_body())
        if grader is not None:
            wants_json = request.response_format is not None and request.response_format.type != "text"
            completion = await select_best_sample(completion, grader, request.item, wants_json)
        return ChatCompletionBody.model_validate(completion)

    @router.post("/embeddings")
    async def create_embeddings(body: dict[str, Any], key: Writer) -> Response:
        """Return an error, since this server does not support embedding models."""
        raise ApiError(400, "This server does not serve embedding models.", param="model", code="unsupported_endpoint")

    return router


async def _drop_usage(chunks: AsyncIterator[Mapping[str, Any]]) -> AsyncIterator[Mapping[str, Any]]:
    """Yield all chunks except the final usage chunk, for clients that did not request it."""
    async for chunk in chunks:
        if chunk.get("choices"):
            yield chunk
