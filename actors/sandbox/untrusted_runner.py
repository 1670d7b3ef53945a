"""Runner of untrusted code for one grading worker: one run at a time, each in a separate sandbox.

The launcher forks the runner before it creates the worker's namespaces. The runner is therefore outside the worker's
sandbox and has no seccomp filter.

The process that computes a grade sends run requests to the runner. The runner sends the outcomes back over the same
socket, which keeps message boundaries. The runner accepts no other kind of request and does not trust any part of a
message.

On a second socket, the worker sends the id of each new grade. The runner then kills the run of the previous grade. The
runner also kills the run if the worker exits.
"""

from __future__ import annotations

import json
import math
import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from agent_rft import untrusted

MEMORY_EXIT = 77
"""Exit status of the process that ran a sandbox, if the sandbox exceeded its memory limit."""
MAX_RUNS = 256
"""Maximum runs of untrusted code per grade."""
MAX_REQUEST_BYTES = 16 << 20
MAX_FILES = 100
MAX_NAME_BYTES = 200
START_S, GRACE_S = 60.0, 30.0
"""Maximum seconds for the sandbox to start, and to report the outcome after the run."""
MAIN = "main.py"
DEFAULTS: dict[str, float] = {"wall_s": 10.0, "cpu_s": 10.0, "memory_bytes": 512 << 20, "output_bytes": 64 << 10}
MIN_LIMITS: dict[str, float] = {"wall_s": 0.1, "cpu_s": 0.1, "memory_bytes": 64 << 20, "output_bytes": 0}
MAX_LIMITS: dict[str, float] = {"wall_s": 120.0, "cpu_s": 240.0, "memory_bytes": 2 << 30, "output_bytes": 1 << 20}
MAX_OUTCOME_BYTES = 2 * int(MAX_LIMITS["output_bytes"]) + untrusted.MAX_MESSAGE_BYTES
RunnerConfig = dict[str, Any]
Hold = Callable[[RunnerConfig], bool]


class GradeEnded(Exception):
    """The worker has started the next grade or has exited."""


class NotStarted(Exception):
    """The sandbox of a run could not be created, or lacks a protection."""


def fork_runner(config: RunnerConfig, hold: Hold) -> list[int]:
    """Fork the runner; return the descriptors of the worker's two sockets, which the worker's program inherits."""
    requests, worker_requests = socket.socketpair(type=socket.SOCK_SEQPACKET)
    grade_ids, worker_grade_ids = socket.socketpair(type=socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        try:
            worker_requests.close()
            worker_grade_ids.close()
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):  # the owner waits until these are closed
                os.dup2(null, descriptor)
            UntrustedRunner(config, hold, requests, grade_ids).serve()
        finally:
            os._exit(0)
    inherited = [worker_requests.detach(), worker_grade_ids.detach()]
    for descriptor in inherited:
        os.set_inheritable(descriptor, True)
    return inherited


class UntrustedRunner:
    """Server that runs untrusted code for one grading worker. `hold` keeps the sandbox of one run alive."""

    def __init__(self, config: RunnerConfig, hold: Hold, requests: socket.socket, grade_ids: socket.socket) -> None:
        self._config = config
        self._hold = hold
        self._requests = requests
        self._grade_ids = grade_ids

    def serve(self) -> None:
        """Serve until the worker has ended."""
        while grade_id := self._grade_ids.recv(untrusted.GRADE_ID_BYTES):
            with suppress(GradeEnded):
                for _ in range(MAX_RUNS):
                    self._serve(grade_id, self._run)
                while True:
                    self._serve(grade_id, refuse_run)

    def _serve(self, grade_id: bytes, run: Callable[[bytes], bytes]) -> None:
        head, request = self._receive(grade_id)
        for packet in untrusted.split_chunks(head, run(request)):
            self._wait(self._requests, select.POLLOUT, math.inf)
            self._requests.send(packet)

    def _receive(self, grade_id: bytes) -> tuple[bytes, bytes]:
        """Return the head and body of this grade's next complete request; drop unfinished requests."""
        head, request = b"", bytearray()
        while True:
            self._wait(self._requests, select.POLLIN, math.inf)
            packet = self._requests.recv(untrusted.HEAD_BYTES + 1 + untrusted.CHUNK_BYTES)
            if not packet.startswith(grade_id) or len(packet) <= untrusted.HEAD_BYTES:
                continue
            if packet[: untrusted.HEAD_BYTES] != head:
                head, request = packet[: untrusted.HEAD_BYTES], bytearray()
            if len(request) <= MAX_REQUEST_BYTES:  # longer requests are refused later
                request += packet[untrusted.HEAD_BYTES + 1 :]
            if packet[untrusted.HEAD_BYTES]:
                return head, bytes(request)

    def _run(self, request: bytes) -> bytes:
        """Run the code in `request` in a new sandbox, and return the packed outcome or error."""
        try:
            limits = check_request(request, self._config["launch"]["memory_bytes"])
        except ValueError as error:
            return untrusted.pack({"refused": str(error)})
        launch, worker = make_run_configs(self._config, limits)
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            hold_in_this_process(self._hold, launch, theirs)
        theirs.close()
        message = None
        try:
            self._start(ours, worker)
            began = time.monotonic()
            message = self._outcome(ours, request, limits["wall_s"])
        except NotStarted as error:
            return untrusted.pack({"no_sandbox": str(error)})
        finally:
            ours.close()  # kills the sandbox
            _, status, usage = os.wait4(pid, 0)
        return build_answer(message, os.waitstatus_to_exitcode(status) == MEMORY_EXIT, limits, usage, began)

    def _start(self, channel: socket.socket, worker: RunnerConfig) -> None:
        """Make the sandbox drop its privileges, then check the protections that the sandbox reports."""
        deadline = time.monotonic() + START_S
        try:
            untrusted.send(channel, json.dumps(worker).encode())
            report = untrusted.decode(self._receive_frame(channel, deadline))
        except (OSError, EOFError, ValueError):
            raise NotStarted("the sandbox ended before the code was run") from None
        check_protections(self._config, report)

    def _outcome(self, channel: socket.socket, request: bytes, wall_s: float) -> bytes | None:
        """Send the request to the sandbox and return the outcome of the run; None if the sandbox was killed."""
        with suppress(OSError, EOFError, ValueError):
            untrusted.send(channel, request)
            return self._receive_frame(channel, time.monotonic() + wall_s + GRACE_S)
        return None

    def _receive_frame(self, channel: socket.socket, deadline: float) -> bytes:
        length = int.from_bytes(self._receive_exactly(channel, 4, deadline), "big")
        if length > MAX_OUTCOME_BYTES:
            raise ValueError(f"the message has {length} bytes, more than {MAX_OUTCOME_BYTES}")
        return self._receive_exactly(channel, length, deadline)

    def _receive_exactly(self, channel: socket.socket, size: int, deadline: float) -> bytes:
        data = b""
        while len(data) < size:
            self._wait(channel, select.POLLIN, deadline)
            chunk = channel.recv(size - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return data

    def _wait(self, channel: socket.socket, event: int, deadline: float) -> None:
        """Wait until a channel is ready.

        Raises:
            GradeEnded: The worker started the next grade or exited before the channel was ready.
            TimeoutError: The channel was not ready by the deadline.
        """
        poll = select.poll()
        poll.register(self._grade_ids, select.POLLIN)
        poll.register(channel, event)
        left_s = deadline - time.monotonic()
        ready = dict(poll.poll(None if left_s == math.inf else max(left_s, 0) * 1000))
        if self._grade_ids.fileno() in ready:
            raise GradeEnded
        if not ready:
            raise TimeoutError


def hold_in_this_process(hold: Hold, launch: RunnerConfig, channel: socket.socket) -> NoReturn:
    """Run `hold`, which starts the sandbox of one run and waits until the sandbox ends; then exit this process.

    The sandbox's first process has `channel` as descriptor 0.
    """
    status = 1
    try:
        os.dup2(channel.fileno(), 0)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        try:
            status = MEMORY_EXIT if hold(launch) else 0
        except OSError as error:
            untrusted.send(socket.socket(fileno=0), json.dumps({"error": str(error)}).encode())
    finally:
        os._exit(status)


def make_run_configs(config: RunnerConfig, limits: dict[str, float]) -> tuple[RunnerConfig, RunnerConfig]:
    """Return two configurations for one run: one to launch the sandbox, and one for the sandbox's first process."""
    launch = {**config["launch"], "memory_bytes": limits["memory_bytes"]}
    worker = {**config["worker"], "run": limits, "main": MAIN}
    worker["limits"] = {**worker["limits"], "AS": limits["memory_bytes"]}
    for target, name in ((launch, "launcher_uid"), (worker, "uid")):
        if target[name] is not None:
            target[name] = unused_id(*config["ids"])
    return launch, worker


def check_protections(config: RunnerConfig, report: dict[str, Any]) -> None:
    """Check the protections that the first process of a sandbox reports.

    Raises:
        NotStarted: A protection is missing.
    """
    failed = [name for name in config["protections"] if not report.get("protections", {}).get(name)]
    if failed:
        raise NotStarted(report.get("error") or f"the sandbox lacks protections: {', '.join(failed)}")


def unused_id(first: int, last: int) -> int:
    """Return a random user id for one sandbox. Sandboxes need different ids, since Linux counts processes by user."""
    return first + int.from_bytes(os.urandom(8), "big") % (last - first)


# -- requests and answers ----------------------------------------------------------------------------------------------


def refuse_run(request: bytes) -> bytes:
    return untrusted.pack({"refused": f"a grade may run untrusted code at most {MAX_RUNS} times"})


def check_request(request: bytes, max_memory_bytes: int) -> dict[str, float]:
    """Check a request and return its limits, including defaults.

    Raises:
        ValueError: The request is invalid; the message is written for the grader's author.
    """
    if len(request) > MAX_REQUEST_BYTES:
        raise ValueError(f"code, stdin and files have more than {MAX_REQUEST_BYTES:,} bytes in total")
    header, parts = untrusted.unpack(request)
    names, limits = header.get("files"), header.get("limits")
    if not isinstance(names, list) or len(parts) != 2 + len(names) or not isinstance(limits, dict):
        raise ValueError("the request is malformed")
    if len(names) > MAX_FILES:
        raise ValueError(f"files: there are more than {MAX_FILES}")
    for name in names:
        check_file_name(name)
    if unknown := sorted(set(limits) - set(DEFAULTS)):
        raise ValueError(f"limits: {unknown[0]!r:.100} is unknown; use {', '.join(DEFAULTS)}")
    limits = {**DEFAULTS, **limits}
    for name, value in limits.items():
        upper = min(MAX_LIMITS[name], max_memory_bytes) if name == "memory_bytes" else MAX_LIMITS[name]
        if type(value) not in (int, float) or not MIN_LIMITS[name] <= value <= upper:
            raise ValueError(f"limits: {name} must be a number from {MIN_LIMITS[name]:,} to {upper:,}")
    return {name: value if name.endswith("_s") else int(value) for name, value in limits.items()}


def check_file_name(name: object) -> None:
    """Check that `name` is the path of a file below the scratch folder.

    Raises:
        ValueError: The name is not such a path, or it is reserved for the code.
    """
    if not isinstance(name, str) or not 0 < len(name.encode()) <= MAX_NAME_BYTES or "\0" in name:
        raise ValueError(f"files: a name must be a string of 1 to {MAX_NAME_BYTES} bytes")
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"files: {name!r} must be a path below the folder of the run, such as 'data.csv' or 'a/b.py'")
    if name == MAIN:
        raise ValueError(f"files: the name {MAIN} is reserved for the code")


def build_answer(message: bytes | None, over_memory: bool, limits: dict[str, float], usage: Any, began: float) -> bytes:
    """Build the answer for a run from the sandbox's report.

    If there is no report, the answer contains the times that were measured outside the sandbox.
    """
    wall_s, cpu_s = time.monotonic() - began, usage.ru_utime + usage.ru_stime
    outcome = {"exit": -9, "timed_out": wall_s >= limits["wall_s"], "wall_s": wall_s, "cpu_s": cpu_s}
    output: list[bytes] = []
    if message is not None:
        with suppress(ValueError):
            report, output = untrusted.unpack(message)
            if "refused" in report:
                return untrusted.pack({"refused": report["refused"]})
            outcome = {name: report[name] for name in outcome if name in report}
    return untrusted.pack({**outcome, "killed": outcome["exit"] < 0, "over_memory": over_memory}, output or [b"", b""])
