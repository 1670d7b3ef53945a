"""`run_untrusted` runs code of the model in a sandbox of its own; graders and users' servers import it.

In a `python` grader, which is in a sandbox itself, the grade's process asks the runner outside for a run. Any other
process starts the sandbox itself. Of the package, a grader's sandbox has this file and `__init__` besides the worker's
own files, so this file imports nothing of ours at its top. See docs/graders.md, "How to grade code".

The messages between these processes are a length (four bytes) and JSON, of which nothing is taken on trust. A run is
asked for, and answered, by a larger message: an object and the parts that it describes.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

NO_SANDBOX = (
    "run_untrusted needs a sandbox, and this grader runs without one (unsandboxed_python). The machine must allow "
    "user namespaces, or have bubblewrap"
)
_lock = threading.Lock()
_in_grader = False
_channel: socket.socket | None = None
_turn = b""
_number = 0
failure: str | None = None
"""Why no code could be run in this grade, which then fails."""


class UntrustedRun(NamedTuple):
    """The outcome of a run. The code decides on its exit status and output; the rest is measured outside.

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
    """Run Python `code` in a new sandbox of its own, with nothing of this process in it, and wait for its end.

    Threads may call it at the same time. In a grader one run follows another; elsewhere each takes a core and its
    `memory_bytes`.

    Args:
        code: A program, run as `main.py` in an empty folder, with the standard library and numpy.
        stdin: Its standard input.
        files: Files of its folder by path. A `solution.py` can be imported by the code.
        limits: `wall_s` and `cpu_s` (10), `memory_bytes` (512 MiB) and `output_bytes` of each output (64 KiB).

    Raises:
        NoSandbox: This machine has no sandbox for it; the message names what it needs.
        ValueError: A file's name or a limit is invalid, or there are too many runs, or too much to run.
    """
    request = _request(code, stdin, files, limits)
    if not _in_grader:
        return _outcome(import_module("agent_rft.actors.sandbox.alone").run_alone(request))
    try:
        return _outcome(_ask(request))
    except NoSandbox as error:
        raise _failed(str(error)) from None


def _ask(request: bytes) -> bytes:
    """The runner's answer to a request."""
    global _number
    with _lock:
        if _channel is None:
            raise NoSandbox(NO_SANDBOX)
        _number += 1
        head = _turn + _number.to_bytes(4, "big")
        try:
            for packet in chunks(head, request):
                _channel.send(packet)
            return _receive(_channel, head)
        except (OSError, EOFError):
            raise NoSandbox("the process that runs untrusted code has ended") from None


def _request(
    code: str, stdin: str | bytes, files: Mapping[str, str | bytes] | None, limits: Mapping[str, float] | None
) -> bytes:
    """The request for a run."""
    given = {} if files is None else files
    parts = [_bytes(text) for text in (code, stdin, *given.values())]
    return pack({"files": list(given), "limits": dict(limits or {})}, parts)


def _outcome(message: bytes) -> UntrustedRun:
    """The outcome in an answer; raises as `run_untrusted`."""
    answer, output = unpack(message)
    if "no_sandbox" in answer:
        raise NoSandbox(f"there is no sandbox for untrusted code: {answer['no_sandbox']}")
    if "refused" in answer:
        raise ValueError(f"run_untrusted: {answer['refused']}")
    stdout, stderr = (text.decode(errors="replace") for text in output)
    return UntrustedRun(stdout=stdout, stderr=stderr, **answer)


def connect(channel: socket.socket | None, turn: bytes) -> None:
    """Let this process, which is a grader's, ask over `channel` for runs; None: it cannot run any."""
    global _in_grader, _channel, _turn
    _in_grader, _channel, _turn = True, channel, turn


def _bytes(text: str | bytes) -> bytes:
    return text.encode(errors="surrogatepass") if isinstance(text, str) else bytes(memoryview(text))


def _failed(why: str) -> NoSandbox:
    global failure
    failure = why
    return NoSandbox(why)


def _receive(channel: socket.socket, head: bytes) -> bytes:
    """The answer to the request with this head; those to earlier ones, which were interrupted, are dropped."""
    message = b""
    while packet := channel.recv(HEAD_BYTES + 1 + CHUNK_BYTES):
        if packet.startswith(head):
            message += packet[HEAD_BYTES + 1 :]
            if packet[HEAD_BYTES]:
                return message
    raise EOFError


# -- messages ----------------------------------------------------------------------------------------------------------

MAX_FRAME_BYTES = 1 << 16
"""More than a worker ever sends: an error's details of 4,000 characters, each with up to twelve bytes."""
MAX_TEXT_CHARS = 4_000
TURN_BYTES = 16
"""The random name of a grade's turn, with which its requests to run code begin."""
CHUNK_BYTES = 60_000
HEAD_BYTES = TURN_BYTES + 4
"""The head of a chunk: its turn and the number of the message in that. A byte follows: whether it is the last chunk."""


def decode(frame: bytes) -> dict[str, Any]:
    """The object in a frame.

    Raises:
        ValueError: the frame is not a JSON object, or nested too deeply.
    """
    try:
        message = json.loads(frame)
    except RecursionError:
        raise ValueError("a message that is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("a message that is not an object")
    return message


def checked_length(header: bytes, most: int = MAX_FRAME_BYTES) -> int:
    """The length in a frame's header.

    Raises:
        ValueError: it is too large.
    """
    length = int.from_bytes(header, "big")
    if length > most:
        raise ValueError(f"a message of {length} bytes")
    return length


def clean_text(value: object) -> str | None:
    """A text that can be stored everywhere (no lone surrogates, no null characters), and not a long one; else None."""
    if not isinstance(value, str):
        return None
    return value[-MAX_TEXT_CHARS:].encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def receive(channel: socket.socket, deadline: float) -> dict[str, Any]:
    """One message, completely received before `deadline` (`time.monotonic()`).

    Raises:
        TimeoutError: it was not.
        EOFError: the channel was closed before.
        ValueError: the message is invalid.
    """
    return decode(receive_bytes(channel, deadline))


def receive_bytes(channel: socket.socket, deadline: float, most: int = MAX_FRAME_BYTES) -> bytes:
    """The bytes of one message; raises as `receive`."""
    return _exactly(channel, checked_length(_exactly(channel, 4, deadline), most), deadline)


def send(channel: socket.socket, body: bytes) -> None:
    channel.sendall(len(body).to_bytes(4, "big") + body)


def pack(header: dict[str, Any], parts: Sequence[bytes] = ()) -> bytes:
    """One message of a small object and large parts."""
    head = json.dumps({**header, "sizes": [len(part) for part in parts]}).encode()
    return b"".join([len(head).to_bytes(4, "big"), head, *parts])


def unpack(message: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """The object and the parts of a message.

    Raises:
        ValueError: the message is invalid.
    """
    at = 4 + checked_length(message[:4])
    header = decode(message[4:at])
    sizes = header.pop("sizes", None)
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError("a message without the sizes of its parts")
    if at + sum(sizes) != len(message):
        raise ValueError("a message of another size than it says")
    parts = []
    for size in sizes:
        parts.append(message[at : at + size])
        at += size
    return header, parts


def chunks(head: bytes, message: bytes) -> Iterator[bytes]:
    """The packets for a socket that keeps packets whole."""
    for at in range(0, len(message), CHUNK_BYTES):
        yield head + bytes([at + CHUNK_BYTES >= len(message)]) + message[at : at + CHUNK_BYTES]


def _exactly(channel: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        channel.settimeout(left_s)
        chunk = channel.recv(size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data
