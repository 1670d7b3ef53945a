"""gpt-oss: the harmony format, in which a turn consists of several messages on channels.

The library `openai_harmony` parses the turns.
"""

from __future__ import annotations

from agent_rft.chat.model_family import CallSyntax, MessageSyntax, ModelFamily

GPT_OSS = ModelFamily(
    name="gpt_oss",
    tool_parser="openai",
    reasoning_parser="openai_gptoss",
    call_syntaxes=(
        CallSyntax(
            " to=functions.{name}<|channel|>commentary json<|message|>",
            "",
            separator=None,
            other_begins=(
                "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
                " to=functions.{name}<|channel|>commentary <|constrain|>json<|message|>",
            ),
        ),
    ),
    message_syntax=MessageSyntax(
        around_reasoning=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        excluded_texts=("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"),
        before_answer="<|channel|>final<|message|>",
    ),
    call_mark=" to=functions.",
    stop_tokens=("<|return|>", "<|call|>"),
    # In the history, a call's recipient precedes its channel, and earlier reasoning is dropped.
    renders_turns_exactly=False,
)
