"""Keys of model requests that this server does not support.

A key that can change the answer is refused, unless its value leaves the answer unchanged. For example, `best_of: 2` is
refused, but `best_of: 1` is not. All other unknown keys are ignored and counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

NO_EFFECT: dict[str, Any] = {
    "add_generation_prompt": True,
    "allowed_token_ids": [],
    "background": False,
    "bad_words": [],
    "best_of": 1,
    "continue_final_message": False,
    "documents": [],
    "echo": False,
    "frequency_penalty": 0,
    "functions": [],
    "ignore_eos": False,
    "include_stop_str_in_output": False,
    "length_penalty": 1,
    "logit_bias": {},
    "logits_processors": [],
    "logprobs": False,
    "min_tokens": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "return_token_ids": False,
    "skip_special_tokens": True,
    "stop": [],
    "stop_token_ids": [],
    "top_logprobs": 0,
    "typical_p": 1,
    "use_beam_search": False,
}
"""For keys that may be refused: the value that leaves the answer unchanged. A key with this value is never refused."""
REFUSED_KEYS = frozenset(
    {
        *NO_EFFECT,
        # the conversation
        *("messages", "input", "instructions", "prompt", "previous_response_id", "conversation", "context_management"),
        *("chat_template", "chat_template_kwargs", "function_call", "mm_processor_kwargs", "truncate_prompt_tokens"),
        *("kv_transfer_params", "vllm_xargs"),
        # sampling
        *("max_tokens", "max_completion_tokens", "max_output_tokens", "repetition_detection"),
        *("reasoning", "reasoning_effort", "thinking", "thinking_budget", "thinking_token_budget", "enable_thinking"),
        # the format of the answer
        *("response_format", "text", "structured_outputs", "guided_json", "guided_regex", "guided_choice"),
        *("guided_grammar", "audio", "prompt_logprobs"),
    }
)
"""Keys of OpenAI's API and of vLLM that can change the answer. A route refuses the keys that the route does not
support."""
WEB_SEARCH_KEY = "web_search_options"
COUNTED_KEYS = frozenset(
    {
        *("access_programs", "client_metadata", "image", "include", "max_tool_calls", "modalities", "moderation"),
        *("prediction", "truncation", "verbosity", WEB_SEARCH_KEY),
        *("cache_salt", "include_reasoning", "priority", "request_id", "return_tokens_as_token_ids", "session_id"),
    }
)
"""Ignored keys that have their own metric, `api_ignored_keys/<key>`."""
UNSUPPORTED = "unsupported_key"
"""Type of the pydantic error about a refused key."""
OTHER_KEY = "other"
"""Label under which all other ignored keys are counted, so that clients cannot invent labels."""


def refuse_keys(title: str, body: Mapping[str, Any], supported: Collection[str]) -> None:
    """Refuse keys that would change the answer to the request, except the keys in `supported`.

    Raises:
        ValidationError: The body has such keys.
    """
    sent = (body.keys() & REFUSED_KEYS) - set(supported)
    refused = sorted(key for key in sent if key not in NO_EFFECT or body[key] != NO_EFFECT[key])
    if refused:
        problem = PydanticCustomError(
            UNSUPPORTED, "this server does not support this key, which would change the answer; remove the key"
        )
        raise ValidationError.from_exception_data(
            title, [InitErrorDetails(type=problem, loc=(key,), input=body[key]) for key in refused]
        )


def to_key_labels(keys: Iterable[str]) -> list[str]:
    """Return the labels under which ignored keys are counted, sorted and without duplicates."""
    return sorted({key if key in COUNTED_KEYS or key in REFUSED_KEYS else OTHER_KEY for key in keys})
