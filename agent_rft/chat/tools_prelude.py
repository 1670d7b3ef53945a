"""Prelude for chat templates that do not support tools. It renders tools, calls and results as text."""

from __future__ import annotations

from pathlib import Path

from agent_rft.chat.template import ChatTemplate, RenderFailed
from agent_rft.errors import UserError
from agent_rft.types import Message

_PRELUDE = Path(__file__).with_suffix(".jinja")
_SYSTEM, _QUESTION = "the system says", "the user asks"


def add_tools_prelude(template: ChatTemplate) -> str:
    """Return the text of the prelude and the template. The prelude writes calls in hermes syntax.

    If the template rejects or omits system messages, the prelude moves their text to the first user message.

    Raises:
        UserError: The template cannot render a short conversation, or omits the user's messages.
    """
    role = "system" if _renders_system(template) else "user"
    text = f"{{%- set system_role = '{role}' -%}}\n{_PRELUDE.read_text(encoding='utf-8')}{template.text}"
    ChatTemplate(text)  # checks the size
    return text


def _renders_system(template: ChatTemplate) -> bool:
    question: Message = {"role": "user", "content": _QUESTION}
    answer: Message = {"role": "assistant", "content": "the answer"}
    if _QUESTION not in template.render([question, answer, question], (), generate=True):
        problem, fix = "the template omits the user's messages", "use another template"
        raise UserError(f"{problem}: {fix}", code="message_not_in_prompt", problem=problem, fix=fix)
    try:
        text = template.render([{"role": "system", "content": _SYSTEM}, question], (), generate=True)
    except RenderFailed as error:
        if error.kind in ("raised", "failed"):
            return False
        raise
    return _SYSTEM in text and _QUESTION in text
