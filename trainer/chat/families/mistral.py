"""Mistral: a list of JSON calls after `[TOOL_CALLS]`; the template wants ids of nine letters and digits."""

from __future__ import annotations

from trainer.chat.family import Family

MISTRAL = Family(name="mistral", tool_parser="mistral", call_mark="[TOOL_CALLS]", thought_marks=("[THINK]", "[/THINK]"))
