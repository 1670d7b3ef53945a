"""Chat completions of one model on an engine: prompts as in training, and responses from vLLM's serving layer.

Serving matches training, because the same code renders prompts, truncates tool results and constrains decoding.
Requests and responses are dictionaries with the fields of OpenAI's chat completions. The caller has already validated
the requests.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rft.actors.engine.chat.dialect_detection import find_dialect, without_tools_renderer
from agent_rft.actors.engine.chat.tokenizer import load_engine_tokenizer
from agent_rft.actors.engine.chat.turn_parsers import resolve_references
from agent_rft.actors.engine.grammar.structural_tags import (
    GrammarUnavailable,
    build_no_calls_structure,
    build_required_calls_structure,
    build_structure,
)
from agent_rft.actors.engine.vllm_internals import (
    chat_request_class,
    create_chat_serving,
    find_error,
    serve_adapter,
    to_error_fields,
)
from agent_rft.chat.dialect import DEFAULT_DIALECT
from agent_rft.chat.model_card import read_card
from agent_rft.chat.renderer import Renderer, Tokenizer
from agent_rft.chat.serve_settings import ServeSettings
from agent_rft.chat.template import RenderFailed
from agent_rft.errors import EngineFailed
from agent_rft.spec.step_plan import REASONING_TOKENS
from agent_rft.types import Message

FORWARDED_FIELDS = (
    *("frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "n", "parallel_tool_calls"),
    *("presence_penalty", "response_format", "seed", "stop", "stream", "temperature", "tool_choice", "tools"),
    *("top_logprobs", "top_p", "min_p", "top_k"),
)
"""Request fields that are passed on to vLLM. Clients may not set other fields of vLLM, such as templates and extra
arguments."""
NEAREST_EFFORT = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
"""Nearest supported reasoning effort for each unsupported reasoning effort."""
NO_TOOLS = "This model does not support tools, because no parser can read its tool calls"
VLLM_CALL_ID = "chatcmpl-tool-"
VLLM_EXTRAS = frozenset({"prompt_token_ids", "prompt_text", "metrics"})


def _load_renderer(tokenizer: Tokenizer, settings: ServeSettings, folder: Path) -> Renderer:
    """Return a renderer whose dialect comes from the settings, else from the model card, else from detection."""
    card = read_card(folder) if settings.dialect is None else None
    dialect = settings.dialect or (card.dialect if card is not None else None)
    if dialect is not None:
        return Renderer(tokenizer, dialect)
    renderer, problem = find_dialect(tokenizer, DEFAULT_DIALECT)
    return renderer if problem is None else without_tools_renderer(renderer) or renderer


@dataclass(frozen=True, slots=True)
class Refusal:
    """Error response to a request: the HTTP status, and the fields of an error in OpenAI's API."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None


class ChatModel:
    """Chat template, parsers and settings of the model in `folder`. Creating an instance takes about a second.

    `context_length` is the engine's maximum in tokens. The model's maximum in `settings` may be smaller.
    """

    def __init__(self, folder: Path, settings: ServeSettings, context_length: int) -> None:
        """Load the tokenizer.

        Raises:
            UserError: The folder has no chat template, or the model card is damaged.
            OSError: The tokenizer is missing or damaged.
            ValueError: The tokenizer is damaged.
        """
        self.settings = settings
        self._context_length = min(settings.context_length or context_length, context_length)
        self._renderer = renderer = _load_renderer(load_engine_tokenizer(folder), settings, folder)
        renderer.warm_up()
        self.reasoning_delimiters = renderer.reasoning_delimiters if renderer.reasoning_end_id is not None else None
        self._engine_delimiters: tuple[str, str] | None = None

    def connect(self, client: Any, engine_delimiters: tuple[str, str] | None) -> None:
        """Create vLLM's serving layer for this model on the AsyncLLM `client`.

        The length of reasoning can be limited only if the model's delimiters are `engine_delimiters`.
        """
        from agent_rft.actors.engine.chat import reasoning_parser

        self._client, self._engine_delimiters, family = client, engine_delimiters, self._renderer.family
        parsers = {
            "enable_auto_tools": family.tool_parser is not None,
            "tool_parser": family.tool_parser,
            "reasoning_parser": reasoning_parser.register_parser(self.reasoning_delimiters)
            if self.reasoning_delimiters is not None
            else family.reasoning_parser or "",
        }
        common = {"request_logger": None, "chat_template": None, "chat_template_content_format": "string"}
        self._serving = create_chat_serving(client, common, parsers)

    async def chat(self, body: Mapping[str, Any], lora: Any | None) -> dict[str, Any] | Refusal:
        """Return the response to a request without `stream`; `lora` is the LoRARequest if the model is an adapter.

        Raises:
            EngineFailed: The engine died.
        """
        answer = await self._create_completion(body, lora)
        if isinstance(answer, Refusal):
            return answer
        return _clean_completion(answer.model_dump(), self._renderer.stop_tokens)

    async def stream(self, body: Mapping[str, Any], lora: Any | None) -> AsyncGenerator[dict[str, Any] | Refusal]:
        """Yield the chunks of a response. If the request is refused, the last item is a Refusal.

        `lora` is the LoRARequest if the model is an adapter.

        Raises:
            EngineFailed: The engine died.
        """
        answer = await self._create_completion({**body, "stream": True}, lora)
        if isinstance(answer, Refusal):
            yield answer
            return
        async with aclosing(answer) as events:
            async for event in events:
                if (chunk := self._convert_event(event)) is None:
                    return
                yield chunk

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _create_completion(self, body: Mapping[str, Any], lora: Any | None) -> Any:
        """Return vLLM's response (a ChatCompletionResponse or a stream of events), or a Refusal."""
        from pydantic import ValidationError

        if (refusal := self._refuse_calls(body)) is not None:
            return refusal
        try:
            prompt = await self._renderer.run_in_thread(self._render_prompt, body["messages"], body.get("tools") or ())
            room = self._context_length - len(prompt)
            if room < 1:
                return _refuse_long_prompt(len(prompt), self._context_length)
            if lora is not None:
                serve_adapter(self._serving, lora)
            answer = await self._serving.create_chat_completion(self._build_request(body, prompt, room, lora))
        except RenderFailed as error:
            return Refusal(400, error.message if error.kind == "misplaced" else error.problem, "messages")
        except GrammarUnavailable as error:
            return Refusal(400, f"{error}. Remove response_format or the tools.", "response_format")
        except ValidationError as error:
            first = error.errors()[0]
            return Refusal(400, str(first["msg"]), ".".join(str(part) for part in first["loc"]))
        except Exception as error:  # vLLM raises many classes, and maps each to an error response
            refused = to_error_fields(error)
            if refused["code"] >= 500:
                if self._client.errored:
                    raise EngineFailed("the engine died") from error
                raise
            return self._convert_error(refused)
        error_fields = find_error(answer)
        return answer if error_fields is None else self._convert_error(error_fields)

    def _build_request(self, body: Mapping[str, Any], prompt: list[int], room: int, lora: Any | None) -> Any:
        settings = self.settings
        request = {name: body[name] for name in FORWARDED_FIELDS if body.get(name) is not None}
        request.setdefault("temperature", settings.temperature)
        requested = request.get("max_completion_tokens") or settings.max_completion_tokens or room
        request["max_completion_tokens"] = min(requested, room)
        if not request.get("tools"):
            request.pop("tools", None)
            request.pop("tool_choice", None)
            request.pop("parallel_tool_calls", None)
        effort = body.get("reasoning_effort")
        budget = REASONING_TOKENS.get(NEAREST_EFFORT.get(effort, effort)) if effort else settings.max_reasoning_tokens
        schema = _response_schema(request.get("response_format") or {})
        if schema is not None and request.get("tool_choice", "auto") in ("auto", "none"):
            tools = request.get("tools", ()) if request.get("tool_choice", "auto") == "auto" else ()
            del request["response_format"]
            request["structured_outputs"] = {"structural_tag": build_structure(self._renderer, tools, schema, budget)}
            budget = None  # the structure limits reasoning
        elif (structure := self._required_structure(request, budget)) is not None:
            request.pop("response_format", None)
            request |= {"tool_choice": "auto", "structured_outputs": {"structural_tag": structure}}
            budget = None
        elif (
            request.get("tool_choice") == "none"
            and (forbidden := build_no_calls_structure(self._renderer.family)) is not None
        ):
            request["structured_outputs"] = {"structural_tag": forbidden}
        if self.reasoning_delimiters is not None and self.reasoning_delimiters == self._engine_delimiters:
            request["thinking_token_budget"] = budget
        if request.get("stream"):
            request["stream_options"] = {"include_usage": True}
        else:
            request["return_token_ids"] = True  # for `_is_cut_off`
        if request.get("tools"):  # only for vLLM's parsers: prompt and grammar use the original tools
            request["tools"] = [resolve_references(tool) for tool in request["tools"]]
        return chat_request_class()(
            model=None if lora is None else lora.lora_name,
            messages=list(body["messages"]),
            stop_token_ids=list(self._renderer.stop_tokens),
            # vLLM takes the prompt from here instead of rendering `messages` itself.
            kv_transfer_params={"prompt_token_ids": prompt},
            **request,
        )

    def _required_structure(self, request: Mapping[str, Any], budget: int | None) -> str | None:
        """Return the structural tag for a request that requires tool calls.

        Returns None if the request does not require calls, or if no grammar for calls is known.
        """
        choice, tools = request.get("tool_choice", "auto"), request.get("tools", ())
        named = isinstance(choice, Mapping)
        if named:
            tools = [tool for tool in tools if tool["function"]["name"] == choice.get("function", {}).get("name")]
        if not tools or not (named or choice == "required"):
            return None
        alone = named or request.get("parallel_tool_calls") is False
        return build_required_calls_structure(self._renderer, tools, budget, one_call=alone)

    def _render_prompt(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[int]:
        """Return the tokens of the prompt, which are the same as in a rollout with these messages."""
        limit = self.settings.max_tool_output_tokens
        results = [
            self._renderer.encode_truncated_result(message["content"], limit)[0]
            for message in messages
            if message["role"] == "tool"
        ]
        return self._renderer.render_history(messages, tools, results)

    def _refuse_calls(self, body: Mapping[str, Any]) -> Refusal | None:
        """Return a Refusal if the request contains tools or calls but the model does not support tools, else None."""
        if self._renderer.family.tool_parser is not None:
            return None
        calls = any(message.get("tool_calls") or message["role"] == "tool" for message in body["messages"])
        if not body.get("tools") and not calls:
            return None
        param, what = ("tools", "the tools") if body.get("tools") else ("messages", "the tool calls and results")
        fix = f"Remove {what}, or use a model that supports tools."
        return Refusal(400, f"{NO_TOOLS}. {fix}", param, "tools_unsupported")

    # -- answers -------------------------------------------------------------------------------------------------------

    def _convert_event(self, event: str) -> dict[str, Any] | Refusal | None:
        """Convert a server-sent event of vLLM to a chunk; None at the end of the stream."""
        data = event.removeprefix("data: ").strip()
        if data == "[DONE]":
            return None
        chunk: dict[str, Any] = json.loads(data)
        if "error" in chunk:
            return self._convert_error(chunk["error"])
        for choice in chunk.get("choices", ()):
            choice.pop("token_ids", None)
            for call in choice["delta"].get("tool_calls") or ():
                if call.get("id"):
                    call["id"] = _openai_call_id(call["id"])
        cleaned = {name: value for name, value in chunk.items() if name not in VLLM_EXTRAS}
        if chunk.get("usage"):
            cleaned["usage"] = _clean_usage(chunk["usage"])
        return cleaned

    def _convert_error(self, error: Mapping[str, Any]) -> Refusal:
        """Convert an error response of vLLM to a Refusal.

        Raises:
            EngineFailed: The engine has died, so the request did not cause the error.
        """
        if self._client.errored:
            raise EngineFailed("the engine died")
        return Refusal(int(error["code"]), error["message"], error.get("param"))


def _response_schema(response_format: Mapping[str, Any]) -> dict[str, Any] | None:
    if response_format.get("type") == "json_schema":
        return dict(response_format["json_schema"].get("schema") or {})
    return {"type": "object"} if response_format.get("type") == "json_object" else None


def _refuse_long_prompt(length: int, limit: int) -> Refusal:
    message = (
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in {length} tokens."
    )
    return Refusal(400, message, "messages", "context_length_exceeded")


def _clean_completion(answer: dict[str, Any], stop_tokens: Collection[int]) -> dict[str, Any]:
    """Return vLLM's response without its extra fields, and without the calls of turns that were cut off."""
    return {
        "id": answer["id"],
        "object": "chat.completion",
        "created": answer["created"],
        "model": answer["model"],
        "choices": [_clean_choice(choice, _is_cut_off(choice, stop_tokens)) for choice in answer["choices"]],
        "usage": _clean_usage(answer["usage"]),
        "system_fingerprint": answer.get("system_fingerprint"),
        "service_tier": "default",
    }


def _is_cut_off(choice: Mapping[str, Any], stop_tokens: Collection[int]) -> bool:
    """Return whether a turn ended at the token limit."""
    if choice["finish_reason"] != "tool_calls":
        return bool(choice["finish_reason"] == "length")
    tokens = choice["token_ids"]
    return choice["stop_reason"] is None and not (tokens and tokens[-1] in stop_tokens)


def _clean_choice(choice: dict[str, Any], is_cut_off: bool) -> dict[str, Any]:
    # The last call of a turn that was cut off is incomplete, and parsers may return it with the arguments {}. In a
    # rollout, such a turn makes no calls either.
    calls = [
        {"id": _openai_call_id(call["id"]), "type": "function", "function": _function_fields(call["function"])}
        for call in (() if is_cut_off else choice["message"].get("tool_calls") or ())
    ]
    content = choice["message"].get("content")
    message: dict[str, Any] = {
        "role": "assistant",
        "content": content or (None if calls else ""),
        "refusal": None,
        "annotations": [],
    }
    if choice["message"].get("reasoning"):
        message["reasoning"] = choice["message"]["reasoning"]
    if calls:
        message["tool_calls"] = calls
    return {
        "index": choice["index"],
        "message": message,
        "logprobs": choice.get("logprobs"),
        "finish_reason": "length" if is_cut_off else choice["finish_reason"],
    }


def _function_fields(function: Mapping[str, Any]) -> dict[str, str]:
    arguments = function["arguments"].encode(errors="backslashreplace").decode()  # UTF-8 has no half surrogate pairs
    return {"name": function["name"], "arguments": arguments}


def _openai_call_id(call_id: str) -> str:
    return f"call_{call_id.removeprefix(VLLM_CALL_ID)}"


def _clean_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    prompt, completion = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage.get("completion_tokens") or 0,
        "total_tokens": usage["total_tokens"],
        "prompt_tokens_details": {"cached_tokens": prompt.get("cached_tokens") or 0},
        "completion_tokens_details": {"reasoning_tokens": completion.get("reasoning_tokens") or 0},
    }
