"""What the source of a `python` grader may import from us: `run_untrusted`, which runs code of the model.

The source of a grader runs in a sandbox, and code that it runs itself could change its grade. `run_untrusted` runs the
code in another sandbox, which is made for this run, and returns what it did. See docs/graders.md, "How to grade code".
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from typing import NamedTuple

from actors.sandbox import frames

NO_SANDBOX = (
    "run_untrusted needs a sandbox, and this grader runs without one (unsandboxed_python). The machine must allow "
    "user namespaces, or have bubblewrap"
)
_lock = threading.Lock()
_channel: socket.socket | None = None
_turn = b""
_number = 0
failure: str | None = None
"""Why no code could be run in this grade, which then fails."""


class UntrustedRun(NamedTuple):
    """What a run did. The code decides on its exit status and output; the rest is measured outside.

    Attributes:
        exit: The exit status of its process, 0 to 255, or the negative number of the signal that ended it.
        stdout: What it printed, up to `output_bytes`.
        stderr: The same of its errors.
        wall_s: Seconds from the start of its process to its end, the start of Python included.
        cpu_s: Seconds of processors of the process and all that it started.
        timed_out: It took more than `wall_s` or `cpu_s` of its limits.
        killed: A signal ended it, as at each limit.
        over_memory: It was ended because all its processes and files together took more than `memory_bytes`; there is
            no output then, and `cpu_s` is only a part. A single process that asks for more gets a MemoryError.
    """

    exit: int
    stdout: str
    stderr: str
    wall_s: float
    cpu_s: float
    timed_out: bool
    killed: bool
    over_memory: bool


class NoSandbox(RuntimeError):
    """No code could be run here. The grade fails, whatever is made of this error."""


def run_untrusted(
    code: str,
    stdin: str | bytes = "",
    files: Mapping[str, str | bytes] | None = None,
    limits: Mapping[str, float] | None = None,
) -> UntrustedRun:
    """Run Python `code` in a new sandbox of its own, with nothing of this grader in it.

    Args:
        code: A program, run as `main.py` in an empty folder, with the standard library and numpy.
        stdin: Its standard input.
        files: Files of its folder by path. A `solution.py` can be imported by the code.
        limits: `wall_s` and `cpu_s` (10), `memory_bytes` (512 MiB) and `output_bytes` of each output (64 KiB).

    Raises:
        NoSandbox: there is no sandbox for it.
        ValueError: a file's name or a limit is invalid, or there are too many runs, or too much to run.
    """
    global _number
    request = packed(code, stdin, files, limits)
    with _lock:
        if _channel is None:
            raise _failed(NO_SANDBOX)
        _number += 1
        head = _turn + _number.to_bytes(4, "big")
        try:
            for packet in frames.chunks(head, request):
                _channel.send(packet)
            message = _receive(_channel, head)
        except (OSError, EOFError):
            raise _failed("the process that runs untrusted code has ended") from None
    try:
        return unpacked(message)
    except NoSandbox as error:
        raise _failed(str(error)) from None


def packed(
    code: str, stdin: str | bytes, files: Mapping[str, str | bytes] | None, limits: Mapping[str, float] | None
) -> bytes:
    """The request for a run."""
    given = {} if files is None else files
    parts = [_bytes(text) for text in (code, stdin, *given.values())]
    return frames.pack({"files": list(given), "limits": dict(limits or {})}, parts)


def unpacked(message: bytes) -> UntrustedRun:
    """What the answer to a request says.

    Raises:
        NoSandbox, ValueError: as `run_untrusted`.
    """
    answer, output = frames.unpack(message)
    if "no_sandbox" in answer:
        raise NoSandbox(f"there is no sandbox for untrusted code: {answer['no_sandbox']}")
    if "refused" in answer:
        raise ValueError(f"run_untrusted: {answer['refused']}")
    stdout, stderr = (text.decode(errors="replace") for text in output)
    return UntrustedRun(stdout=stdout, stderr=stderr, **answer)


def connect(channel: socket.socket | None, turn: bytes) -> None:
    """Let this process ask for runs; called by its worker before a grade."""
    global _channel, _turn
    _channel, _turn = channel, turn


def _bytes(text: str | bytes) -> bytes:
    return text.encode(errors="surrogatepass") if isinstance(text, str) else bytes(memoryview(text))


def _failed(why: str) -> NoSandbox:
    global failure
    failure = why
    return NoSandbox(why)


def _receive(channel: socket.socket, head: bytes) -> bytes:
    """The answer to the request with this head; those to earlier ones, which were interrupted, are dropped."""
    message = b""
    while packet := channel.recv(frames.HEAD_BYTES + 1 + frames.CHUNK_BYTES):
        if packet.startswith(head):
            message += packet[frames.HEAD_BYTES + 1 :]
            if packet[frames.HEAD_BYTES]:
                return message
    raise EOFError
