"""POST /responses, implemented with the model server's chat completions; nothing is stored between requests."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from agent_rft.serve.http.auth import Writer
from agent_rft.serve.http.grader_trials import TrialFactory
from agent_rft.serve.http.schemas.base import STREAMED
from agent_rft.serve.http.schemas.inference_schemas import Response as ResponseAnswer
from agent_rft.serve.http.sse import event_stream
from agent_rft.serve.inference.best_of import read_grader, select_best_sample
from agent_rft.serve.inference.model_server import ModelServer
from agent_rft.serve.stores.sealed_secrets import SecretBox
from agent_rft.wire.responses_chat import build_response, new_id, to_chat_body
from agent_rft.wire.responses_schema import ResponsesRequest
from agent_rft.wire.responses_stream import ResponseStream


def make_router(models: ModelServer, trials: TrialFactory, secrets: SecretBox) -> APIRouter:
    router = APIRouter(tags=["responses"])

    @router.post("/responses", response_model=ResponseAnswer, response_model_exclude_unset=True, responses=STREAMED)
    async def create_response(
        request: ResponsesRequest, key: Writer, http_request: Request
    ) -> ResponseAnswer | Response:
        """Create a response: the model's next turn, which is a message or tool calls."""
        http_request.state.ignored_keys = request.ignored_keys
        http_request.state.ignored_tools = request.ignored_tools
        sealer = secrets.sealer("reasoning", key.id)
        body = to_chat_body(request, sealer)
        if request.stream:
            chunks = await models.stream(body)
            stream = ResponseStream(request, sealer)
            return event_stream(stream.events(chunks), named=True, failed=stream.error_event)
        grader = None if request.grader is None else await read_grader(request.grader, trials, key)
        completion = await models.chat(body)
        if grader is not None:
            completion = await select_best_sample(completion, grader, request.item, request.wants_json)
        return ResponseAnswer.model_validate(build_response(request, completion, sealer, new_id("resp")))

    return router
