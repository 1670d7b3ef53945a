"""Chat template for models whose own template does not support tools: it writes tools, calls and results as text."""

from __future__ import annotations

from pathlib import Path

from agent_rft.chat.template import ChatTemplate, RenderFailed
from agent_rft.errors import UserError
from agent_rft.types import Message

_PRELUDE = Path(__file__).with_suffix(".jinja")
_SYSTEM, _QUESTION = "the system says", "the user asks"


def add_tools_prelude(template: ChatTemplate) -> str:
    """Return the template's text with the prelude before it. The parser hermes parses its calls.

    If the template rejects or drops a system message, its text moves to the first user message.

    Raises:
        UserError: The template cannot render even a question and an answer.
    """
    role = "system" if _shows_system(template) else "user"
    text = f"{{%- set system_role = '{role}' -%}}\n{_PRELUDE.read_text(encoding='utf-8')}{template.text}"
    ChatTemplate(text)  # checks the size
    return text


def _shows_system(template: ChatTemplate) -> bool:
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
