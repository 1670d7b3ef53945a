"""Chat templates are programs of their authors: each one renders in a process of its own, under bounds.

That process has no variables of its owner and opens no files. It may take some time of a processor, memory and size of
the text: not time of a clock, so that no template fails because its machine is busy with other work.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import jinja2
import markupsafe

from agent_rft.chat import template_process
from agent_rft.errors import UserError
from agent_rft.spec.model_options import MAX_TEMPLATE_BYTES
from agent_rft.types import Message, ToolSchema

Kind = Literal["syntax", "raised", "failed", "too_slow", "too_large", "memory"]
ENDS_S = 5.0
_REMEDIES: dict[Kind, str] = {
    "syntax": "correct the template there; it is Jinja as transformers has it, with trim_blocks and lstrip_blocks",
    "raised": "change the messages, tools or template arguments as it says, or give another template",
    "failed": "let the template test whether a value is there, and of which type, before it uses it",
    "too_slow": "remove nested loops and recursion: a render should take milliseconds",
    "too_large": "render each message once, and repeat nothing",
    "memory": "do not build large lists or texts in the template: write the parts out one by one",
}
CODES = {
    "syntax": "template_syntax",
    "raised": "template_fails",
    "failed": "template_fails",
    "too_slow": "template_too_costly",
    "too_large": "template_too_costly",
    "memory": "template_too_costly",
}


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """What one template may cost."""

    time_s: float = 2.0
    """Processor time of one render, and of compiling the template."""
    memory_bytes: int = 1 << 30
    """Address space of the process, of which Python takes about 30 MiB."""
    text_bytes: int = 16 << 20
    template_bytes: int = MAX_TEMPLATE_BYTES
    silent_s: float = 60.0
    """Longest wait for a process that neither answers nor ends, such as one that was stopped."""


_LIBRARIES = sorted({str(Path(str(library.__file__)).parents[1]) for library in (jinja2, markupsafe)})
USERS_LIMITS = TemplateLimits()
FOLDERS_LIMITS = TemplateLimits(template_bytes=1 << 20)
"""Limits of a template that came with its model."""


class RenderFailed(UserError):
    """A chat template could not render. `message` is one line that ends with the remedy for this `kind`.

    `raised`: the template refused the messages by `raise_exception`. `failed`: any other error while it rendered.
    `line` is that of the template, if known.
    """

    @property
    def kind(self) -> Kind:
        """What went wrong."""
        kind: Kind = self.details["kind"]
        return kind

    @property
    def code(self) -> str:
        """The problem code of this kind."""
        return CODES[self.kind]

    @property
    def line(self) -> int | None:
        """The template's line, counted from 1."""
        line: int | None = self.details["line"]
        return line


def _failed(kind: Kind, problem: str, line: int | None = None) -> RenderFailed:
    message, details = f"{problem}: {_REMEDIES[kind]}", {"problem": problem, "remedy": _REMEDIES[kind]}
    return RenderFailed(message, kind=kind, line=line, code=CODES[kind], **details)


class ChatTemplate:
    """One chat template with the variables and filters that `apply_chat_template` of transformers gives it.

    Its process, of some 20 MiB, starts with the first render, in a tenth of a second. It ends with `close`, with this
    object and with this process. One that a render has used up is replaced at the next. Threads may share a template;
    their renders take turns.

    `strftime_now` tells the time at which this object was made: the tokens of a history must not change at midnight.
    """

    def __init__(
        self,
        text: str,
        special_tokens: Mapping[str, str] | None = None,
        limits: TemplateLimits = USERS_LIMITS,
        *,
        now: datetime | None = None,
    ) -> None:
        size = len(text.encode(errors="surrogatepass"))
        if size > limits.template_bytes:
            allowed = f"at most {limits.template_bytes:,} are allowed"
            raise _failed("too_large", f"the chat template has {size:,} bytes, {allowed}")
        self.text = text
        self._special_tokens = dict(special_tokens or {})
        self._limits = limits
        self._now = now or datetime.now()
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], /, *, generate: bool, **arguments: Any
    ) -> str:
        """The text of the messages and tools; with `generate`, the start of an assistant turn follows.

        `arguments` are further variables, such as a switch for thinking. One with the name of a special token replaces
        that. Values must be those of JSON.

        Raises:
            RenderFailed: The template is wrong, refuses the messages, or costs too much.
        """
        values = {"documents": None, **self._special_tokens, **arguments}
        values |= {"messages": list(messages), "tools": list(tools) or None, "add_generation_prompt": generate}
        try:
            request = json.dumps(values).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise _failed("failed", f"a message, tool or argument for the chat template is not JSON: {error}") from None
        with self._lock:
            try:
                return self._answer(request)
            except _Lost:  # perhaps somebody ended it, or the kernel did when others took all memory
                pass
            try:
                return self._answer(request)
            except _Lost as lost:
                raise _failed("failed", f"the process of the chat template was lost two times, {lost}") from None

    @property
    def pid(self) -> int | None:
        """The id of its process, if it has one now."""
        process = self._process
        return process.pid if process is not None and process.alive else None

    def close(self) -> None:
        """End the process. A later render starts another."""
        with self._lock:
            if self._process is not None:
                self._process.end()

    def __enter__(self) -> ChatTemplate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, request: bytes) -> str:
        if self._process is None or not self._process.alive:
            self._process = _Process(self._limits, self._now)
            try:
                self._process.ask(json.dumps({"template": self.text}).encode())
            except RenderFailed:
                self._process.end()
                raise
        return self._process.ask(request)


class _Lost(Exception):
    """The process ended, was silent or answered nonsense, and no limit says why."""


class _Process:
    """`template_process`, from its start to its end; it ends when this object does."""

    def __init__(self, limits: TemplateLimits, now: datetime) -> None:
        self._limits = limits
        self._most_bytes = 6 * limits.text_bytes + 10_000  # JSON of a text, or of an error
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(limits.silent_s)
        config = json.dumps({**asdict(limits), "now": now.isoformat()})
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", template_process.__file__, config, *_LIBRARIES],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,  # no Ctrl-C of a terminal
            )
        self.pid = self._popen.pid
        self._answers = self._channel.makefile("rb")
        self._owner = os.getpid()
        self.end = weakref.finalize(self, _end, self._owner, self._popen, self._channel, self._answers)

    @property
    def alive(self) -> bool:
        """Whether it was not ended by its owner; a process that was forked from the owner starts its own."""
        return self.end.alive and self._owner == os.getpid()

    def ask(self, request: bytes) -> str:
        """The text for a request. Without an answer, for whatever reason, the process is ended.

        Raises:
            RenderFailed: The answer is an error, or the process has used up what it may.
            _Lost: It ended for another reason.
        """
        answer: dict[str, Any] | None = None
        try:
            self._channel.sendall(len(request).to_bytes(template_process.LENGTH_BYTES, "big") + request)
            answer = json.loads(self._receive(int.from_bytes(self._receive(template_process.LENGTH_BYTES), "big")))
        except TimeoutError:
            raise _Lost(f"silent for {self._limits.silent_s:g} s") from None
        except (OSError, EOFError, ValueError):
            raise self._why_ended() from None
        finally:
            if answer is None:
                self.end()
        if "kind" in answer:
            where = "" if answer["line"] is None else f"line {answer['line']} of "
            raise _failed(answer["kind"], f"{where}the chat template: {answer['problem']}", answer["line"])
        return str(answer["text"])

    def _receive(self, size: int) -> bytes:
        if size > self._most_bytes or len(data := self._answers.read(size)) < size:
            raise EOFError
        return data

    def _why_ended(self) -> RenderFailed | _Lost:
        try:
            status = self._popen.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            return _Lost("without a valid answer")
        if status == -signal.SIGPROF:
            return _failed("too_slow", f"the chat template took more than {self._limits.time_s:g} s of a processor")
        if status == template_process.MEMORY_EXIT:
            return _failed("memory", f"the chat template needed more than {self._limits.memory_bytes >> 20} MiB")
        return _Lost(f"with the exit status {status}")


def _end(owner: int, popen: subprocess.Popen[bytes], channel: socket.socket, answers: BinaryIO) -> None:
    answers.close()
    channel.close()
    if owner != os.getpid():
        return
    popen.kill()
    popen.wait()


class HasTemplate(Protocol):
    """The part of a Hugging Face tokenizer that has its chat template."""

    @property
    def chat_template(self) -> str | dict[str, str] | None: ...

    @property
    def special_tokens_map(self) -> Mapping[str, str]: ...


def template_of(tokenizer: HasTemplate, text: str | None = None) -> ChatTemplate:
    """The chat template `text` of a user, or else that of the tokenizer, with the tokenizer's special tokens.

    Of a tokenizer with several templates it is the one for tools, also for rows without: a model should see one
    format. Callers with the same template share its process.

    Raises:
        RenderFailed: It is too large.
        UserError: There is no template.
    """
    limits = FOLDERS_LIMITS if text is None else USERS_LIMITS
    template = tokenizer.chat_template if text is None else text
    if isinstance(template, dict):
        template = template.get("tool_use", template.get("default"))
    if not template:
        remedy = "use an instruction-tuned model, or give a chat template"
        problem = "the model's tokenizer has no chat template"
        raise UserError(f"{problem}: {remedy}", code="no_chat_template", problem=problem, remedy=remedy)
    return _shared(template, tuple(sorted(tokenizer.special_tokens_map.items())), limits)


@lru_cache(maxsize=8)
def _shared(text: str, special_tokens: tuple[tuple[str, str], ...], limits: TemplateLimits) -> ChatTemplate:
    return ChatTemplate(text, dict(special_tokens), limits)
