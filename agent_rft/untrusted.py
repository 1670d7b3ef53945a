"""Execution of model-written code in a new sandbox (`run_untrusted`), and the message format of sandboxes.

Graders and users' servers import this module. A `python` grader already runs in a sandbox, so `run_untrusted` asks a
runner outside that sandbox to run the code. In any other process, `run_untrusted` starts the sandbox itself. See
docs/endpoints.md, "run_untrusted".

In a grader's sandbox, this package consists only of this file, `__init__` and the files of the sandbox worker.
Therefore this file imports no other module of the package at module level.

A message begins with the length of its JSON in four bytes, followed by the JSON, which the receiver validates.
Requests to run code and their answers end with binary parts, whose sizes are in the JSON.
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
_grade_id = b""
_request_number = 0
sandbox_failure: str | None = None
"""Error message if no sandbox could run the untrusted code; None: no error."""


class UntrustedRun(NamedTuple):
    """Outcome of running untrusted code.

    The code controls `exit`, `stdout` and `stderr`. All other values are measured outside the sandbox.

    Attributes:
        exit: Exit status of the process, 0 to 255, or the negative number of the signal that ended it.
        stdout: Standard output, up to `output_bytes`.
        stderr: Standard error, up to `output_bytes`.
        wall_s: Seconds from the start of the process to its end, including the start of Python.
        cpu_s: CPU seconds of the process and its child processes.
        timed_out: Whether the run exceeded its limit `wall_s` or `cpu_s`.
        killed: Whether a signal ended the process, for example because it exceeded a limit.
        over_memory: Whether the run was killed because its processes and files together exceeded `memory_bytes`. In
            this case the output is empty and `cpu_s` is incomplete. A single process that requests more than
            `memory_bytes` is not killed, but gets a MemoryError.
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
    """Code cannot run, because no sandbox is available. A grade fails with this error even if its grader catches it."""


def run_untrusted(
    code: str,
    stdin: str | bytes = "",
    files: Mapping[str, str | bytes] | None = None,
    limits: Mapping[str, float] | None = None,
) -> UntrustedRun:
    """Run Python `code` in a new sandbox that shares nothing with this process, and wait until it ends.

    Threads may call this function concurrently. In a grader, the runs are executed one after another. In other
    processes, the runs are executed concurrently, and each run may use one CPU core and `memory_bytes`.

    Args:
        code: Program, run as `main.py` in an empty folder, with the standard library and numpy.
        stdin: Standard input of the program.
        files: Contents of additional files, by their path in that folder. For example, the program can import a file
            `solution.py`.
        limits: `wall_s` and `cpu_s` (default 10 s), `memory_bytes` (512 MiB) and `output_bytes` per stream (64 KiB).

    Raises:
        NoSandbox: No sandbox can be started here; the message names what is missing.
        ValueError: A file name or limit is invalid, the grader made too many runs for one grade, or the request is too
            large.
    """
    request = _pack_request(code, stdin, files, limits)
    if not _in_grader:
        return _unpack_outcome(import_module("agent_rft.actors.sandbox.standalone").run_standalone(request))
    try:
        return _unpack_outcome(_send_request(request))
    except NoSandbox as error:
        raise _record_failure(str(error)) from None


def _send_request(request: bytes) -> bytes:
    """Send a request to the runner, and return the runner's answer."""
    global _request_number
    with _lock:
        if _channel is None:
            raise NoSandbox(NO_SANDBOX)
        _request_number += 1
        head = _grade_id + _request_number.to_bytes(4, "big")
        try:
            for packet in split_chunks(head, request):
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
    """Return the outcome that the runner's answer contains. Raises the same errors as `run_untrusted`."""
    answer, output = unpack(message)
    if "no_sandbox" in answer:
        raise NoSandbox(f"cannot start a sandbox for untrusted code: {answer['no_sandbox']}")
    if "refused" in answer:
        raise ValueError(f"run_untrusted: {answer['refused']}")
    stdout, stderr = (text.decode(errors="replace") for text in output)
    return UntrustedRun(stdout=stdout, stderr=stderr, **answer)


def connect_grader(channel: socket.socket | None, grade_id: bytes) -> None:
    """Make `run_untrusted` send its requests over `channel`. Called in processes that run a grader.

    Args:
        channel: Socket to the runner, or None if the grader cannot run code.
        grade_id: Random id of the current grade. Each request begins with this id.
    """
    global _in_grader, _channel, _grade_id
    _in_grader, _channel, _grade_id = True, channel, grade_id


def _encode(text: str | bytes) -> bytes:
    return text.encode(errors="surrogatepass") if isinstance(text, str) else bytes(memoryview(text))


def _record_failure(why: str) -> NoSandbox:
    global sandbox_failure
    sandbox_failure = why
    return NoSandbox(why)


def _receive(channel: socket.socket, head: bytes) -> bytes:
    """Return the message whose packets begin with `head`, and ignore other packets."""
    message = b""
    while packet := channel.recv(HEAD_BYTES + 1 + CHUNK_BYTES):
        if packet.startswith(head):
            message += packet[HEAD_BYTES + 1 :]
            if packet[HEAD_BYTES]:
                return message
    raise EOFError


# -- messages ----------------------------------------------------------------------------------------------------------

MAX_MESSAGE_BYTES = 1 << 16
"""Maximum size of a message without binary parts."""
MAX_ERROR_CHARS = 4_000
GRADE_ID_BYTES = 16
"""Length of the random id of a grade. Each request to run code begins with the id of its grade."""
CHUNK_BYTES = 60_000
HEAD_BYTES = GRADE_ID_BYTES + 4
"""Length of a packet's head: the id of the grade and the number of the request.

The byte after the head is 1 in the last packet of a message, otherwise 0.
"""


def decode(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a message.

    Raises:
        ValueError: The message is not a JSON object, or is nested too deeply.
    """
    try:
        message = json.loads(body)
    except RecursionError:
        raise ValueError("the message is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("the message is not a JSON object")
    return message


def parse_length(header: bytes, max_bytes: int = MAX_MESSAGE_BYTES) -> int:
    """Return the length of a message's JSON from `header`, the first four bytes of the message.

    Raises:
        ValueError: The length exceeds `max_bytes`.
    """
    length = int.from_bytes(header, "big")
    if length > max_bytes:
        raise ValueError(f"the message is too large: {length} bytes")
    return length


def clean_error(value: object) -> str | None:
    """Return the last MAX_ERROR_CHARS characters of an error text; None if `value` is not a string.

    Lone surrogates and null characters are replaced.
    """
    if not isinstance(value, str):
        return None
    return value[-MAX_ERROR_CHARS:].encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def receive(channel: socket.socket, deadline: float) -> dict[str, Any]:
    """Receive one message before `deadline`, a value of `time.monotonic()`.

    Raises:
        TimeoutError: The message was not complete at the deadline.
        EOFError: The channel was closed before the message was complete.
        ValueError: The message is invalid.
    """
    return decode(receive_bytes(channel, deadline))


def receive_bytes(channel: socket.socket, deadline: float, max_bytes: int = MAX_MESSAGE_BYTES) -> bytes:
    """Receive the bytes of one message of up to `max_bytes` bytes. Raises the same errors as `receive`."""
    return _receive_exactly(channel, parse_length(_receive_exactly(channel, 4, deadline), max_bytes), deadline)


def send(channel: socket.socket, body: bytes) -> None:
    channel.sendall(len(body).to_bytes(4, "big") + body)


def pack(header: dict[str, Any], parts: Sequence[bytes] = ()) -> bytes:
    """Return a message with the JSON object `header`, which must be small, and binary `parts` of any size."""
    head = json.dumps({**header, "sizes": [len(part) for part in parts]}).encode()
    return b"".join([len(head).to_bytes(4, "big"), head, *parts])


def unpack(message: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return the JSON object and the binary parts of a message.

    Raises:
        ValueError: The message is invalid.
    """
    at = 4 + parse_length(message[:4])
    header = decode(message[4:at])
    sizes = header.pop("sizes", None)
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError("the message lacks the sizes of its parts")
    if at + sum(sizes) != len(message):
        raise ValueError("the size of the message does not match the sizes of its parts")
    parts = []
    for size in sizes:
        parts.append(message[at : at + size])
        at += size
    return header, parts


def split_chunks(head: bytes, message: bytes) -> Iterator[bytes]:
    """Split a message into packets that begin with `head`, for a socket that preserves packet boundaries."""
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
