"""gpt-oss: the harmony format, in which a turn is several messages on channels. Parsed by `openai_harmony`."""

from __future__ import annotations

from agent_rft.chat.model_family import CallSyntax, MessageSyntax, ModelFamily

GPT_OSS = ModelFamily(
    name="gpt_oss",
    tool_parser="openai",
    reasoning_parser="openai_gptoss",
    calls=(
        CallSyntax(
            " to=functions.{name}<|channel|>commentary json<|message|>",
            "",
            separator=None,
            also=(
                "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
                " to=functions.{name}<|channel|>commentary <|constrain|>json<|message|>",
            ),
        ),
    ),
    messages=MessageSyntax(
        reasoning=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        excluded=("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"),
        answer="<|channel|>final<|message|>",
    ),
    call_mark=" to=functions.",
    stop_tokens=("<|return|>", "<|call|>"),
    exact=False,  # in the history, a call's recipient precedes its channel, and earlier reasoning is dropped
)
