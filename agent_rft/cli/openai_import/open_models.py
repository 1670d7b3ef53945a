"""Open-weights models that can replace OpenAI's: the table, and the choice of a model.

`docs/models.md` shows the same table; a test compares them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model with open weights."""

    name: str
    """Name at Hugging Face."""
    billions: float
    """Parameters in billions."""
    context: int
    """Maximum tokens of a conversation: `max_position_embeddings` in its `config.json`."""
    tool_parser: str | None
    """Name of vLLM's parser for its tool calls; None: the model does not support tools."""
    license: str
    """License of its weights."""


OPEN_MODELS = (
    OpenModel("Qwen/Qwen3-0.6B", 0.6, 40_960, "hermes", "Apache-2.0"),
    OpenModel("Qwen/Qwen3-1.7B", 1.7, 40_960, "hermes", "Apache-2.0"),
    OpenModel("Qwen/Qwen3-4B", 4.0, 40_960, "hermes", "Apache-2.0"),
    OpenModel("Qwen/Qwen3-8B", 8.2, 40_960, "hermes", "Apache-2.0"),
    OpenModel("Qwen/Qwen3-14B", 14.8, 40_960, "hermes", "Apache-2.0"),
    OpenModel("Qwen/Qwen3-32B", 32.8, 40_960, "hermes", "Apache-2.0"),
)
"""Models to choose from, smallest first."""
MIN_BILLIONS = {"nano": 1.0, "mini": 4.0}
"""Minimum size to propose for an OpenAI model whose name has this word: a guess, since OpenAI publishes no sizes."""
DEFAULT_MIN_BILLIONS = 8.0


def propose_model(model: str, context: int, *, tools: bool) -> OpenModel:
    """Return the smallest model of the size proposed for OpenAI's `model`, with a context of at least `context` tokens.

    If `tools` is true, the model must support tools. If no model fits, return the one with the longest context.
    """
    words = re.split(r"[^a-z0-9]+", model.lower())
    min_billions = next((size for word, size in MIN_BILLIONS.items() if word in words), DEFAULT_MIN_BILLIONS)
    able = [found for found in OPEN_MODELS if found.tool_parser is not None or not tools]
    fitting = [found for found in able if found.billions >= min_billions and found.context >= context]
    return fitting[0] if fitting else max(able, key=lambda found: (found.context, -abs(found.billions - min_billions)))
