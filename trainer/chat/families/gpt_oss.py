"""gpt-oss: the harmony format, in which a turn is several messages on channels. Read by `openai_harmony`."""

from __future__ import annotations

from trainer.chat.family import Family

GPT_OSS = Family(
    name="gpt_oss",
    tool_parser="openai",
    reasoning_parser="openai_gptoss",
    call_mark=" to=functions.",
    end_tokens=("<|return|>", "<|call|>"),
    exact=False,  # in the history a call's recipient stands before its channel, and earlier thoughts are dropped
)
