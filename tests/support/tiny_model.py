"""A small random model that takes any text: bytes as tokens, Qwen3's architecture, a chat template with tools."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL = ("<pad>", "<|im_start|>", "<|im_end|>")
TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\n<tools>' }}{%- for t in tools %}{{ '\\n' + (t | tojson) }}{%- endfor %}\
{{ '\\n</tools><|im_end|>\\n' }}{%- endif %}\
{%- for m in messages %}{%- if m.role == 'tool' %}\
{{ '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}\
{%- else %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') }}{%- for c in m.tool_calls or [] %}\
{{ ('' if loop.first else '\\n') + '<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' }}\
{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}{{ '}\\n</tool_call>' }}\
{%- endfor %}{{ '<|im_end|>\\n' }}{%- endif %}{%- endfor %}\
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"""

WITHOUT_TOOLS = """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}\
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"""
"""A chat template that renders neither tools nor calls, as SmolLM2's."""


def write_tiny_model(
    folder: Path,
    context: int = 32_768,
    template: str = TEMPLATE,
    special: Sequence[str] = SPECIAL,
    end: str = SPECIAL[2],
    hidden_size: int = 64,
) -> Path:
    """Write a Hugging Face folder of some 200 kB, and return it. `end` is the one of the special tokens that ends."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=SPECIAL[0], eos_token=end)
    fast.chat_template = template
    fast.save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=len(fast),
        hidden_size=hidden_size,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        pad_token_id=fast.pad_token_id,
        eos_token_id=fast.eos_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def add_to_hub_cache(cache: Path, names: list[str], model: Path) -> None:
    """Make `model` what Hugging Face's `names` mean in a local cache (the folder of HF_HUB_CACHE)."""
    for name in names:
        repo = cache / f"models--{name.replace('/', '--')}"
        (repo / "refs").mkdir(parents=True)
        (repo / "refs" / "main").write_text("0" * 40)
        (repo / "snapshots").mkdir()
        (repo / "snapshots" / ("0" * 40)).symlink_to(model)
