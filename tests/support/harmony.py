"""A tiny gpt-oss: its real architecture, vocabulary and chat template, with random weights.

vLLM reads the turns of this architecture from token ids, by the vocabulary of `openai_harmony`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from openai_harmony import HarmonyEncodingName, HarmonyError, load_harmony_encoding  # type: ignore[import-untyped]
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from tests.support.architectures import ARCHITECTURES
from tests.support.templates import template


def harmony_tokenizer() -> PreTrainedTokenizerFast:
    """Harmony's tokens with their ids. Texts are encoded byte by byte, since its merges are not at hand."""
    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    special = {text: encoding.encode(text, allowed_special="all")[0] for text in encoding.special_tokens_set}
    letters = bytes_to_unicode()
    vocabulary = {letter: token for token, letter in enumerate(letters.values())}  # the first 256 tokens
    for token in range(len(vocabulary), min(special.values())):
        try:
            text = "".join(letters[byte] for byte in encoding.decode_utf8([token]).encode())
        except HarmonyError:  # a part of a character, which harmony does not decode alone
            text = f"<part {token}>"
        vocabulary[text] = token
    tokenizer = Tokenizer(models.BPE(vocabulary | special, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|endoftext|>", eos_token="<|return|>", chat_template=template("gptoss")
    )


def write_gpt_oss(folder: Path) -> Path:
    """Write the model's folder, of some 100 MB."""
    tokenizer = harmony_tokenizer()
    tokenizer.save_pretrained(folder)
    config = ARCHITECTURES["gpt_oss"](
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder
