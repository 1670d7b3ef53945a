"""Open-weights models to take in place of OpenAI's: the table, and which one is proposed.

`docs/models.md` shows the same table; a test compares them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model with open weights."""

    name: str
    """Its name at Hugging Face."""
    billions: float
    """Parameters in billions."""
    context: int
    """Most tokens of a conversation: `max_position_embeddings` of its `config.json`."""
    tool_parser: str | None
    """The format in which it writes tool calls, by the name of vLLM's parser; None: it calls no tools."""
    licence: str
    """The licence of its weights."""


OPEN_MODELS = (
    OpenModel("Qwen/Qwen3-0.6B", 0.6, 40_960, "hermes", "Apache-2.0"),
    OpenModel("Qwen/Qwen3-1.7B", 1.7, 40_960, "hermes", "Apache-2.0"),
    OpenModel("Qwen/Qwen3-4B", 4.0, 40_960, "hermes", "Apache-2.0"),
    OpenModel("Qwen/Qwen3-8B", 8.2, 40_960, "hermes", "Apache-2.0"),
    OpenModel("Qwen/Qwen3-14B", 14.8, 40_960, "hermes", "Apache-2.0"),
    OpenModel("Qwen/Qwen3-32B", 32.8, 40_960, "hermes", "Apache-2.0"),
)
"""From small to large."""
LEAST_BILLIONS = {"nano": 1.0, "mini": 4.0}
"""Parameters to propose for an OpenAI model whose name has this word. OpenAI publishes no sizes, so this is a guess."""
LEAST_BILLIONS_ELSE = 8.0


def propose(model: str, context: int, *, tools: bool) -> OpenModel:
    """The smallest model of the size proposed for OpenAI's `model` that has room for `context` tokens and the `tools`.

    If none has all of it, the one with the longest context.
    """
    words = re.split(r"[^a-z0-9]+", model.lower())
    least = next((size for word, size in LEAST_BILLIONS.items() if word in words), LEAST_BILLIONS_ELSE)
    able = [found for found in OPEN_MODELS if found.tool_parser is not None or not tools]
    fitting = [found for found in able if found.billions >= least and found.context >= context]
    return fitting[0] if fitting else max(able, key=lambda found: (found.context, -abs(found.billions - least)))
