"""The known model families, and the order in which they are tried."""

from __future__ import annotations

from dataclasses import replace

from agent_rft.chat.families.deepseek_v3 import DEEPSEEK_V3, DEEPSEEK_V31
from agent_rft.chat.families.gemma4 import GEMMA4
from agent_rft.chat.families.glm4 import GLM4
from agent_rft.chat.families.gpt_oss import GPT_OSS
from agent_rft.chat.families.hermes import HERMES
from agent_rft.chat.families.kimi_k2 import KIMI_K2
from agent_rft.chat.families.lfm2 import LFM2
from agent_rft.chat.families.llama3 import LLAMA3
from agent_rft.chat.families.mistral import MISTRAL
from agent_rft.chat.families.muse_glimmer import MUSE_GLIMMER
from agent_rft.chat.families.qwen3_coder import QWEN3_CODER
from agent_rft.chat.model_family import ModelFamily

FAMILIES = (
    HERMES,
    QWEN3_CODER,
    LLAMA3,
    GPT_OSS,
    GEMMA4,
    GLM4,
    MISTRAL,
    DEEPSEEK_V31,
    DEEPSEEK_V3,
    KIMI_K2,
    LFM2,
    MUSE_GLIMMER,
)


def find_family(tool_parser: str) -> ModelFamily:
    """Return the model family of a vLLM tool parser; for an unknown parser, a family without any known syntax."""
    return next(
        (known for known in FAMILIES if known.tool_parser == tool_parser), ModelFamily(tool_parser, tool_parser)
    )


def find_family_without_calls(name: str) -> ModelFamily:
    """Return the family `name` without its call syntax, for a model that makes no calls."""
    family = next((known for known in FAMILIES if known.name == name), ModelFamily(name, None))
    return replace(family, tool_parser=None, call_syntaxes=(), call_mark=None, write_calls=None)
