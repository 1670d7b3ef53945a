"""Tokenizer of `base/` with its chat template, built from the vocabulary."""

from collections.abc import Callable
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from examples.ledger.vocabulary import PAD, PATTERN, TOKEN_OF, TURN_END, TURN_START

# Turns in the format of Qwen models. All tool results of one turn are in one user turn. Tool schemas are left out:
# every question comes with the same three tools, which the model knows.
CHAT_TEMPLATE: Final = (
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}"
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{%- endif %}"
    "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{%- endif %}"
    "{%- elif m.role == 'assistant' %}"
    "{{ '<|im_start|>assistant\n' + (m.content or '') }}"
    "{%- for c in m.tool_calls or [] %}"
    "{%- if not loop.first %}{{ '\n' }}{%- endif %}"
    '{{ \'<tool_call>\n{"name": "\' + c.function.name + \'", "arguments": \''
    " + (c.function.arguments if c.function.arguments is string else c.function.arguments | tojson)"
    " + '}\n</tool_call>' }}"
    "{%- endfor %}"
    "{{ '<|im_end|>\n' }}"
    "{%- else %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with the vocabulary's pieces, the padding and end-of-turn tokens and the chat template."""
    core = Tokenizer(models.WordLevel(TOKEN_OF, unk_token=PAD))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    core.decoder = decoders.Fuse()
    core.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in (PAD, TURN_START, TURN_END)])
    make: Callable[..., PreTrainedTokenizerFast] = PreTrainedTokenizerFast  # its constructor is untyped
    tokenizer = make(tokenizer_object=core, eos_token=TURN_END, pad_token=PAD)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
