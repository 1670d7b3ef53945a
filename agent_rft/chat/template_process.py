"""Program that renders one chat template in a separate process; `agent_rft.chat.template` starts the process.

The program runs without site packages and with an empty environment. It imports all modules before it receives
the template, because it cannot open files later.

Descriptor 0 is a socket. Each message is JSON text, preceded by its length. The first message is the template. Each
later message contains the variables for one rendering. The process exits when the socket is closed, or when a message
takes too much CPU time or memory.
"""

from __future__ import annotations

import codecs
import html  # noqa: F401 - Jinja and MarkupSafe import html, pprint, textwrap and constants when a template needs them
import json
import os
import pprint  # noqa: F401
import resource
import signal
import sys
import textwrap  # noqa: F401
from datetime import datetime
from typing import Any

if __name__ == "__main__":
    sys.path += sys.argv[2:]

import jinja2.constants
import jinja2.debug
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

codecs.lookup("unicode_escape")  # loads the file that Jinja's lexer needs
LENGTH_BYTES = 8
MEMORY_EXIT = 77
MAX_CHARS = 300
"""Maximum length of an error message in an answer."""


class TemplateRaised(jinja2.TemplateError):
    """Error: the template called `raise_exception`."""


class GenerationTag(Extension):
    """Jinja tag `generation`, which marks the text that the model writes. The tag does not change the text."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it like this

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return caller()


def create_environment(now: datetime) -> ImmutableSandboxedEnvironment:
    """Return a copy of transformers' Jinja environment (`utils/chat_template_utils.py`) in which the time is `now`."""

    def raise_exception(message: object) -> None:
        raise TemplateRaised(str(message))

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    jinja = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    jinja.filters["tojson"] = tojson
    jinja.globals["raise_exception"] = raise_exception
    jinja.globals["strftime_now"] = now.strftime
    return jinja


class RenderedTextTooLarge(Exception):
    """Error: the rendered text exceeds the limit."""


class TemplateWorker:
    """Renders one chat template.

    The first message contains the template, which is compiled. Each later message contains the variables for one
    rendering.
    """

    def __init__(self, now: datetime, text_bytes: int) -> None:
        self._environment = create_environment(now)
        self._text_bytes = text_bytes
        self._template: jinja2.Template | None = None

    def answer(self, message: bytes) -> bytes:
        kind = "syntax" if self._template is None else "failed"
        try:
            values = json.loads(message)
            if self._template is None:
                self._template = self._environment.from_string(values["template"])
                answer = {"text": ""}
            else:
                answer = {"text": self._render(self._template, values)}
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a template is an untrusted program
            answer = describe_failure(error, kind)
        return json.dumps(answer, ensure_ascii=False).encode(errors="replace")

    def _render(self, template: jinja2.Template, values: dict[str, Any]) -> str:
        pieces, size = [], 0
        for piece in template.generate(values):
            pieces.append(piece)
            size += len(piece.encode())
            if size > self._text_bytes:
                raise RenderedTextTooLarge(f"the rendered text has more than {self._text_bytes:,} bytes")
        return "".join(pieces)


def describe_failure(error: Exception, kind: str) -> dict[str, Any]:
    """Return the answer for an error: kind, message on one line, and line of the template if it is known."""
    text, line = str(error), find_template_line(error)
    if isinstance(error, jinja2.TemplateSyntaxError):
        text, line = str(error.message), error.lineno
    elif isinstance(error, TemplateRaised):
        kind = "raised"
    elif isinstance(error, RenderedTextTooLarge):
        kind = "too_large"
    elif isinstance(error, RecursionError):
        text = "the nesting is too deep, or the recursion is infinite"
    elif isinstance(error, (OSError, ImportError)):  # the message contains a path of this computer
        text = "the template uses a function that needs a file, such as a rare text encoding"
    else:
        text = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else text[:MAX_CHARS]}"
    return {"kind": kind, "problem": " ".join(text[:MAX_CHARS].split()), "line": line}


def find_template_line(error: Exception) -> int | None:
    """Return the line of the template in which an error occurred; None: unknown."""
    line, entry = None, error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code.co_filename == "<template>":
            line = entry.tb_lineno
        entry = entry.tb_next
    return line


def set_limit(kind: int, value: int) -> None:
    """Set a resource limit, but never above the current hard limit."""
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def main(config: dict[str, Any]) -> None:
    """Answer messages until the socket is closed.

    `config` contains the limits, and the time that the template sees as the current time.
    """
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    worker = TemplateWorker(datetime.fromisoformat(config["now"]), config["text_bytes"])
    set_limit(resource.RLIMIT_AS, config["memory_bytes"])
    with open(0, "rb", closefd=False) as requests, open(0, "wb", closefd=False) as answers:
        for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE):
            set_limit(kind, 0)
        while header := requests.read(LENGTH_BYTES):
            signal.setitimer(signal.ITIMER_PROF, config["time_s"])
            try:
                answer = worker.answer(requests.read(int.from_bytes(header, "big")))
            except MemoryError:
                os._exit(MEMORY_EXIT)
            signal.setitimer(signal.ITIMER_PROF, 0)
            answers.write(len(answer).to_bytes(LENGTH_BYTES, "big") + answer)
            answers.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
