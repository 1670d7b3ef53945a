"""First process of a sandbox for one run: drops its privileges, runs the code in a fork, and measures the fork's time.

The first process does not execute the code itself, and no process in the sandbox can signal, trace or stop it. Wall
time is measured with the monotonic clock, from the start of the fork to its end. CPU time is the kernel's sum for the
fork and all its descendants. The descendants are killed and reaped when the fork ends. The seccomp filter prevents the
code from ignoring SIGCHLD, so every child is counted. Output is truncated while it is read.
"""

from __future__ import annotations

import json
import math
import os
import resource
import select
import socket
import sys
import time
from typing import Any

sys.path.append(os.path.abspath(f"{__file__}/../../../.."))

from agent_rft import untrusted
from agent_rft.actors.sandbox import pid1

READ_BYTES = 1 << 16


class CapturedOutput:
    """Output of the code on one descriptor. Keeps the first `limit_bytes`; reads and drops the rest."""

    def __init__(self, limit_bytes: int) -> None:
        self.read, self.write = os.pipe()
        self.data = bytearray()
        self._limit_bytes = limit_bytes

    def read_available(self) -> bool:
        """Read the available output; return whether more may come."""
        chunk = os.read(self.read, READ_BYTES)
        self.data += chunk[: self._limit_bytes - len(self.data)]
        return bool(chunk)


def write_files(names: list[str], contents: list[bytes]) -> None:
    for name, content in zip(names, contents, strict=True):
        if folder := os.path.dirname(name):
            os.makedirs(folder, exist_ok=True)
        with open(name, "xb") as file:
            file.write(content)


def run(main: str, stdin: bytes, limits: dict[str, Any]) -> bytes:
    """Run the code in the file `main`; return a message with its outcome and output."""
    stdin_file = os.open(".", os.O_TMPFILE | os.O_RDWR)
    os.write(stdin_file, stdin)
    os.lseek(stdin_file, 0, os.SEEK_SET)
    outputs = [CapturedOutput(limits["output_bytes"]) for _ in range(2)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        exec_code(main, [stdin_file, *(output.write for output in outputs)], limits["cpu_s"])
    for descriptor in (stdin_file, *(output.write for output in outputs)):
        os.close(descriptor)
    late = read_output(pid, outputs, began + limits["wall_s"])
    wall_s = time.monotonic() - began
    status = pid1.reap(pid)
    for output in outputs:
        while output.read_available():
            pass
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    header = {
        "exit": os.waitstatus_to_exitcode(status),
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "timed_out": late or cpu_s >= limits["cpu_s"],
    }
    return untrusted.pack(header, [bytes(output.data) for output in outputs])


def exec_code(main: str, descriptors: list[int], cpu_s: float) -> None:
    """Replace this process with a Python process that runs the file `main`.

    `descriptors` become its descriptors 0, 1, ...
    """
    try:
        os.setsid()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        pid1.set_limit("CPU", math.ceil(cpu_s) + 1)  # a margin: `run` compares the exact sum, the kernel counts ticks
        os.execve(sys.executable, [sys.executable, "-s", "-S", "-B", main], os.environ)
    finally:
        os._exit(127)


def read_output(pid: int, outputs: list[CapturedOutput], deadline: float) -> bool:
    """Read the code's output until its process ends or the deadline passes; return whether the deadline passed."""
    pidfd = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    for output in outputs:
        poll.register(output.read, select.POLLIN)
    while (left_s := deadline - time.monotonic()) > 0:
        ready = dict(poll.poll(left_s * 1000))
        if pidfd in ready:
            return False
        for output in outputs:
            if output.read in ready and not output.read_available():
                poll.unregister(output.read)
    return True


def main() -> None:
    channel = socket.socket(fileno=os.dup(0))
    config = json.loads(pid1.receive(channel) or b"null")
    pid1.confine(channel, config)
    request = pid1.receive(channel)
    if request is None:
        return
    header, (code, stdin, *contents) = untrusted.unpack(request)
    try:
        write_files([config["main"], *header["files"]], [code, *contents])
    except OSError as error:
        message = untrusted.pack({"refused": f"files: {error.filename}: {error.strerror}"})
    else:
        message = run(config["main"], stdin, config["run"])
    untrusted.send(channel, message)


if __name__ == "__main__":
    main()
