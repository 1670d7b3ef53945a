"""Model folders with config.json and the headers of safetensors files only: the weights are holes in the files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BITS = {"U8": 8, "I32": 32, "I64": 64, "BF16": 16, "F16": 16, "F32": 32, "F8_E4M3": 8}

Header = tuple[str, Sequence[int]]
"""The dtype and shape of a tensor."""


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Header]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    content = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)
        file.truncate(8 + len(content) + end)
    return folder


GPT_OSS_20B = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_hidden_layers": 24,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201_088,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "max_position_embeddings": 131_072,
}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}


def gpt_oss_20b(folder: Path, *, quantized: bool) -> Path:
    """The folder of gpt-oss-20b, as it is downloaded or as it is written in bfloat16."""
    hidden, queries, keys, experts, vocabulary = 2880, 4096, 512, 32, 201_088
    tensors: dict[str, Header] = {
        "model.embed_tokens.weight": ("BF16", (vocabulary, hidden)),
        "lm_head.weight": ("BF16", (vocabulary, hidden)),
        "model.norm.weight": ("BF16", (hidden,)),
    }
    for number in range(24):
        layer, attention = f"model.layers.{number}.mlp", f"model.layers.{number}.self_attn"
        for name, rows in (("gate_up_proj", 2 * hidden), ("down_proj", hidden)):
            if quantized:
                tensors[f"{layer}.experts.{name}_blocks"] = ("U8", (experts, rows, hidden // 32, 16))
                tensors[f"{layer}.experts.{name}_scales"] = ("U8", (experts, rows, hidden // 32))
            else:
                tensors[f"{layer}.experts.{name}"] = ("BF16", (experts, hidden, rows))
            tensors[f"{layer}.experts.{name}_bias"] = ("BF16", (experts, rows))
        tensors[f"{layer}.router.weight"] = ("BF16", (experts, hidden))
        for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            tensors[f"{attention}.{name}.weight"] = ("BF16", (rows, hidden))
        tensors[f"{attention}.o_proj.weight"] = ("BF16", (hidden, queries))
    return write_folder(folder, GPT_OSS_20B | ({"quantization_config": MXFP4} if quantized else {}), tensors)
