"""`run_untrusted`, which runs model-written code in a dedicated sandbox, and the messages that it exchanges.

Graders and users' servers import it. A `python` grader already runs in a sandbox, so it asks a runner outside that
sandbox to run the code. Any other process starts the sandbox itself. A grader's sandbox contains only this file,
`__init__` and the worker's files of this package, so this file imports no other module of the package at its top. See
docs/graders.md, "How to grade code".

A message is its length (four bytes) followed by JSON, and the receiver validates it. A request to run code and its
answer are larger messages: a JSON object and the binary parts that it describes.
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
    "run_untrusted needs a sandbox, but this grader runs without one (unsandboxed_python). Allow user namespaces on "
    "the node, or install bubblewrap"
)
_lock = threading.Lock()
_in_grader = False
_channel: socket.socket | None = None
_turn = b""
_number = 0
failure: str | None = None
"""Reason why no code could run in the current grade, which then fails; None: no failure."""


class UntrustedRun(NamedTuple):
    """Outcome of a run. The code controls its exit status and output; all other values are measured outside.

    Attributes:
        exit: Exit status of the process, 0 to 255, or the negative number of the signal that ended it.
        stdout: Standard output, up to `output_bytes`.
        stderr: Standard error, up to `output_bytes`.
        wall_s: Seconds from the start of the process to its end, including the start of Python.
        cpu_s: CPU seconds of the process and its child processes.
        timed_out: Whether the run exceeded its limit `wall_s` or `cpu_s`.
        killed: Whether a signal ended the process, as when it exceeds a limit.
        over_memory: Whether the run was killed because its processes and files together exceeded `memory_bytes`. The
            output is then empty and `cpu_s` incomplete. A single process that requests more gets a MemoryError.
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
    """Error that code cannot be run here. In a grader, the grade fails even if the grader catches this error."""


def run_untrusted(
    code: str,
    stdin: str | bytes = "",
    files: Mapping[str, str | bytes] | None = None,
    limits: Mapping[str, float] | None = None,
) -> UntrustedRun:
    """Run Python `code` in a new sandbox that shares nothing with this process, and wait until it ends.

    Threads may call this function concurrently. In a grader the runs execute one after another; elsewhere they execute
    concurrently, each with one CPU core and its `memory_bytes`.

    Args:
        code: Program, run as `main.py` in an empty folder, with the standard library and numpy.
        stdin: Standard input of the program.
        files: Contents of further files in that folder, by path. The code can import a `solution.py`, for example.
        limits: `wall_s` and `cpu_s` (10 s), `memory_bytes` (512 MiB) and `output_bytes` per stream (64 KiB).

    Raises:
        NoSandbox: No sandbox can be started here; the message names what is missing.
        ValueError: A file name or limit is invalid, the grade made too many runs, or the request is too large.
    """
    request = _pack_request(code, stdin, files, limits)
    if not _in_grader:
        return _unpack_outcome(import_module("agent_rft.actors.sandbox.standalone").run_alone(request))
    try:
        return _unpack_outcome(_send_request(request))
    except NoSandbox as error:
        raise _record_failure(str(error)) from None


def _send_request(request: bytes) -> bytes:
    """Return the runner's answer to a request."""
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
            raise NoSandbox("the process that runs untrusted code has ended unexpectedly") from None


def _pack_request(
    code: str, stdin: str | bytes, files: Mapping[str, str | bytes] | None, limits: Mapping[str, float] | None
) -> bytes:
    """Return the request for a run as one message."""
    contents = {} if files is None else files
    parts = [_encode(text) for text in (code, stdin, *contents.values())]
    return pack({"files": list(contents), "limits": dict(limits or {})}, parts)


def _unpack_outcome(message: bytes) -> UntrustedRun:
    """Return the outcome in an answer. Raises the same errors as `run_untrusted`."""
    answer, output = unpack(message)
    if "no_sandbox" in answer:
        raise NoSandbox(f"cannot start a sandbox for untrusted code: {answer['no_sandbox']}")
    if "refused" in answer:
        raise ValueError(f"run_untrusted: {answer['refused']}")
    stdout, stderr = (text.decode(errors="replace") for text in output)
    return UntrustedRun(stdout=stdout, stderr=stderr, **answer)


def connect(channel: socket.socket | None, turn: bytes) -> None:
    """Let `run_untrusted` send its requests over `channel`, because this process belongs to a grader.

    Args:
        channel: Socket to the runner; None: the grader cannot run code.
        turn: Random id of the current grade, with which each request begins.
    """
    global _in_grader, _channel, _turn
    _in_grader, _channel, _turn = True, channel, turn


def _encode(text: str | bytes) -> bytes:
    return text.encode(errors="surrogatepass") if isinstance(text, str) else bytes(memoryview(text))


def _record_failure(why: str) -> NoSandbox:
    global failure
    failure = why
    return NoSandbox(why)


def _receive(channel: socket.socket, head: bytes) -> bytes:
    """Return the answer to the request with this head. Drops answers to earlier requests that were interrupted."""
    message = b""
    while packet := channel.recv(HEAD_BYTES + 1 + CHUNK_BYTES):
        if packet.startswith(head):
            message += packet[HEAD_BYTES + 1 :]
            if packet[HEAD_BYTES]:
                return message
    raise EOFError


# -- messages ----------------------------------------------------------------------------------------------------------

MAX_FRAME_BYTES = 1 << 16
"""More than a worker ever sends: error details of 4,000 characters with up to twelve bytes each."""
MAX_TEXT_CHARS = 4_000
TURN_BYTES = 16
"""Length of a grade's random id, with which its requests to run code begin."""
CHUNK_BYTES = 60_000
HEAD_BYTES = TURN_BYTES + 4
"""Length of a chunk's head: the grade's id and the number of its message. The next byte is 1 in the last chunk."""


def decode(frame: bytes) -> dict[str, Any]:
    """Return the object in a frame.

    Raises:
        ValueError: The frame is not a JSON object, or is nested too deeply.
    """
    try:
        message = json.loads(frame)
    except RecursionError:
        raise ValueError("the message is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("the message is not a JSON object")
    return message


def checked_length(header: bytes, max_bytes: int = MAX_FRAME_BYTES) -> int:
    """Return the length in a frame's header.

    Raises:
        ValueError: The length exceeds `max_bytes`.
    """
    length = int.from_bytes(header, "big")
    if length > max_bytes:
        raise ValueError(f"the message is too large: {length} bytes")
    return length


def clean_text(value: object) -> str | None:
    """Return the last MAX_TEXT_CHARS of a string, without lone surrogates and null characters; None for other types."""
    if not isinstance(value, str):
        return None
    return value[-MAX_TEXT_CHARS:].encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def receive(channel: socket.socket, deadline: float) -> dict[str, Any]:
    """Receive one message before `deadline` (`time.monotonic()`).

    Raises:
        TimeoutError: The message was not complete at the deadline.
        EOFError: The channel was closed before the message was complete.
        ValueError: The message is invalid.
    """
    return decode(receive_bytes(channel, deadline))


def receive_bytes(channel: socket.socket, deadline: float, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Receive the bytes of one message of up to `max_bytes` bytes. Raises the same errors as `receive`."""
    return _receive_exactly(channel, checked_length(_receive_exactly(channel, 4, deadline), max_bytes), deadline)


def send(channel: socket.socket, body: bytes) -> None:
    channel.sendall(len(body).to_bytes(4, "big") + body)


def pack(header: dict[str, Any], parts: Sequence[bytes] = ()) -> bytes:
    """Return one message with a small JSON object and large binary parts."""
    head = json.dumps({**header, "sizes": [len(part) for part in parts]}).encode()
    return b"".join([len(head).to_bytes(4, "big"), head, *parts])


def unpack(message: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return the object and the parts of a message.

    Raises:
        ValueError: The message is invalid.
    """
    at = 4 + checked_length(message[:4])
    header = decode(message[4:at])
    sizes = header.pop("sizes", None)
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError("the message lacks the sizes of its parts")
    if at + sum(sizes) != len(message):
        raise ValueError("the message does not have the size in its header")
    parts = []
    for size in sizes:
        parts.append(message[at : at + size])
        at += size
    return header, parts


def chunks(head: bytes, message: bytes) -> Iterator[bytes]:
    """Yield a message as packets for a socket that preserves packet boundaries."""
    for at in range(0, len(message), CHUNK_BYTES):
        yield head + bytes([at + CHUNK_BYTES >= len(message)]) + message[at : at + CHUNK_BYTES]


def _receive_exactly(channel: socket.socket, size: int, deadline: float) -> bytes:
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
