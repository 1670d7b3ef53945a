"""Rendering of chat templates in separate processes with limits, because templates are untrusted programs.

Each template has its own process, with an empty environment and without access to files. CPU time, memory and output
size are limited. Wall time is not limited, so that no template fails because a node is busy.
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

RenderErrorKind = Literal["syntax", "raised", "failed", "misplaced", "too_slow", "too_large", "memory"]
EXIT_TIMEOUT_S = 5.0
_FIXES: dict[RenderErrorKind, str] = {
    "syntax": "correct the syntax; it is Jinja with trim_blocks and lstrip_blocks, as in transformers",
    "raised": "change the messages, tools or template arguments that the template rejects, or use another template",
    "failed": "make the template check that a value exists and has the right type before it uses the value",
    "misplaced": "move its text to the first system or user message, or use another template",
    "too_slow": "remove nested loops and recursion: a render should take milliseconds",
    "too_large": "render each message only once",
    "memory": "do not build large lists or strings in the template: output the parts one by one",
}
CODES = {
    "syntax": "template_syntax",
    "raised": "template_error",
    "failed": "template_error",
    "misplaced": "template_error",
    "too_slow": "template_too_costly",
    "too_large": "template_too_costly",
    "memory": "template_too_costly",
}


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """Resource limits of one chat template."""

    time_s: float = 2.0
    """Maximum CPU seconds of one render, and of compiling the template."""
    memory_bytes: int = 1 << 30
    """Maximum address space of the process. Python takes about 30 MiB."""
    text_bytes: int = 16 << 20
    template_bytes: int = MAX_TEMPLATE_BYTES
    answer_timeout_s: float = 60.0
    """Maximum seconds to wait until the process answers or exits."""


_LIBRARIES = sorted({str(Path(str(library.__file__)).parents[1]) for library in (jinja2, markupsafe)})
USER_TEMPLATE_LIMITS = TemplateLimits()
MODEL_TEMPLATE_LIMITS = TemplateLimits(template_bytes=1 << 20)
"""Limits of a template from a model's folder."""


class RenderFailed(UserError):
    """Error: a chat template could not be rendered. `message` is one line that ends with the fix.

    The kind `raised` means that the template rejected the messages with `raise_exception`. The kind `failed` means any
    other error while the template was rendered. The kind `misplaced` means that the template would omit or move a
    developer message.
    """

    @property
    def kind(self) -> RenderErrorKind:
        """Kind of the error, such as `syntax` or `too_slow`."""
        kind: RenderErrorKind = self.details["kind"]
        return kind

    @property
    def code(self) -> str:
        """Problem code for the kind of the error."""
        return CODES[self.kind]

    @property
    def line(self) -> int | None:
        """Line of the template in which the error occurred, counted from 1; None: unknown."""
        line: int | None = self.details["line"]
        return line


def make_render_error(kind: RenderErrorKind, problem: str, line: int | None = None) -> RenderFailed:
    """Return the error for a failed render; `problem` describes it in one clause."""
    message, details = f"{problem}: {_FIXES[kind]}", {"problem": problem, "fix": _FIXES[kind]}
    return RenderFailed(message, kind=kind, line=line, code=CODES[kind], **details)


class ChatTemplate:
    """Chat template with the variables and filters of `apply_chat_template` in transformers.

    The first render starts the template's process, which takes about 20 MiB and a tenth of a second. The process ends
    when `close` is called, when this object is deleted, and when the parent process ends. After a render that exceeds a
    limit, the next render starts a new process. Several threads may use a template; renders run one at a time.

    In the template, the current time is always the time at which this object was created. The tokens of a conversation
    therefore do not change at midnight.
    """

    def __init__(
        self,
        text: str,
        special_tokens: Mapping[str, str] | None = None,
        limits: TemplateLimits = USER_TEMPLATE_LIMITS,
        *,
        now: datetime | None = None,
    ) -> None:
        size = len(text.encode(errors="surrogatepass"))
        if size > limits.template_bytes:
            allowed = f"at most {limits.template_bytes:,} are allowed"
            raise make_render_error("too_large", f"the chat template has {size:,} bytes; {allowed}")
        self.text = text
        self._special_tokens = dict(special_tokens or {})
        self._limits = limits
        self._now = now or datetime.now()
        self._lock = threading.Lock()
        self._process: _RenderProcess | None = None

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], /, *, generate: bool, **arguments: Any
    ) -> str:
        """Return the text of the messages and tools. `generate` adds the start of an assistant turn.

        `arguments` are additional variables of the template, such as a switch for reasoning. They override special
        tokens of the same name. All values must be JSON values.

        Raises:
            RenderFailed: The template is invalid, rejects the messages, or exceeds its limits.
        """
        values = {"documents": None, **self._special_tokens, **arguments}
        values |= {"messages": list(messages), "tools": list(tools) or None, "add_generation_prompt": generate}
        try:
            request = json.dumps(values).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise make_render_error(
                "failed", f"a message, tool or argument for the chat template is not JSON: {error}"
            ) from None
        with self._lock:
            try:
                return self._request_text(request)
            except _ProcessLost:  # it may have been killed, for example by the kernel when memory ran out
                pass
            try:
                return self._request_text(request)
            except _ProcessLost as lost:
                raise make_render_error("failed", f"the chat template's process failed twice: {lost}") from None

    @property
    def pid(self) -> int | None:
        """Id of the template's process; None: the process is not running."""
        process = self._process
        return process.pid if process is not None and process.alive else None

    def close(self) -> None:
        """End the process. A later render starts another process."""
        with self._lock:
            if self._process is not None:
                self._process.end()

    def __enter__(self) -> ChatTemplate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request_text(self, request: bytes) -> str:
        if self._process is None or not self._process.alive:
            self._process = _RenderProcess(self._limits, self._now)
            try:
                self._process.ask(json.dumps({"template": self.text}).encode())
            except RenderFailed:
                self._process.end()
                raise
        return self._process.ask(request)


class _ProcessLost(Exception):
    """Error: the process ended, did not answer within `answer_timeout_s`, or sent an invalid answer.

    If the process exceeded its limit of CPU time or memory, RenderFailed is raised instead.
    """


class _RenderProcess:
    """A running `template_process`; the process ends when this object is deleted."""

    def __init__(self, limits: TemplateLimits, now: datetime) -> None:
        self._limits = limits
        self._max_bytes = 6 * limits.text_bytes + 10_000  # JSON of the text, or of an error
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(limits.answer_timeout_s)
        config = json.dumps({**asdict(limits), "now": now.isoformat()})
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", template_process.__file__, config, *_LIBRARIES],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,  # so that Ctrl-C in a terminal does not reach it
            )
        self.pid = self._popen.pid
        self._answers = self._channel.makefile("rb")
        self._owner = os.getpid()
        self.end = weakref.finalize(self, _end_process, self._owner, self._popen, self._channel, self._answers)

    @property
    def alive(self) -> bool:
        """Whether the process can be used: `end` was not called, and the caller is its parent process, not a fork."""
        return self.end.alive and self._owner == os.getpid()

    def ask(self, request: bytes) -> str:
        """Send a request, and return the text in the answer. End the process if it sends no valid answer.

        Raises:
            RenderFailed: The answer is an error, or the process exceeded a limit.
            _ProcessLost: The process ended for another reason.
        """
        answer: dict[str, Any] | None = None
        try:
            self._channel.sendall(len(request).to_bytes(template_process.LENGTH_BYTES, "big") + request)
            answer = json.loads(self._receive(int.from_bytes(self._receive(template_process.LENGTH_BYTES), "big")))
        except TimeoutError:
            raise _ProcessLost(f"no answer for {self._limits.answer_timeout_s:g} s") from None
        except (OSError, EOFError, ValueError):
            raise self._explain_end() from None
        finally:
            if answer is None:
                self.end()
        if "kind" in answer:
            where = "" if answer["line"] is None else f"line {answer['line']} of "
            raise make_render_error(answer["kind"], f"{where}the chat template: {answer['problem']}", answer["line"])
        return str(answer["text"])

    def _receive(self, size: int) -> bytes:
        if size > self._max_bytes or len(data := self._answers.read(size)) < size:
            raise EOFError
        return data

    def _explain_end(self) -> RenderFailed | _ProcessLost:
        try:
            status = self._popen.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return _ProcessLost("no valid answer")
        if status == -signal.SIGPROF:
            return make_render_error(
                "too_slow", f"the chat template used more than {self._limits.time_s:g} s of CPU time"
            )
        if status == template_process.MEMORY_EXIT:
            return make_render_error(
                "memory", f"the chat template needed more than {self._limits.memory_bytes >> 20} MiB of memory"
            )
        return _ProcessLost(f"exit status {status}")


def _end_process(owner: int, popen: subprocess.Popen[bytes], channel: socket.socket, answers: BinaryIO) -> None:
    answers.close()
    channel.close()
    if owner != os.getpid():
        return
    popen.kill()
    popen.wait()


class TemplateSource(Protocol):
    """Attributes of a Hugging Face tokenizer that `load_chat_template` uses."""

    @property
    def chat_template(self) -> str | dict[str, str] | None: ...

    @property
    def special_tokens_map(self) -> Mapping[str, str]: ...


def load_chat_template(tokenizer: TemplateSource, text: str | None = None) -> ChatTemplate:
    """Return the chat template `text` or, if it is None, the tokenizer's template.

    If a tokenizer has several templates, the template for tools is used even for rows without tools, so that the model
    always sees the same format. Callers with the same template share the template's process.

    Raises:
        RenderFailed: The template is too large.
        UserError: There is no template.
    """
    limits = MODEL_TEMPLATE_LIMITS if text is None else USER_TEMPLATE_LIMITS
    template = tokenizer.chat_template if text is None else text
    if isinstance(template, dict):
        template = template.get("tool_use", template.get("default"))
    if not template:
        fix = "use an instruction-tuned model, or set a chat template"
        problem = "the model's tokenizer has no chat template"
        raise UserError(f"{problem}: {fix}", code="no_chat_template", problem=problem, fix=fix)
    return _get_shared_template(template, tuple(sorted(tokenizer.special_tokens_map.items())), limits)


@lru_cache(maxsize=8)
def _get_shared_template(
    text: str, special_tokens: tuple[tuple[str, str], ...], limits: TemplateLimits
) -> ChatTemplate:
    return ChatTemplate(text, dict(special_tokens), limits)
