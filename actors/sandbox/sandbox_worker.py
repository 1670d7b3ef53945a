"""Inner process of one sandbox: drops its privileges, runs the grader's module once, and forks for each grade.

Each grade runs in a separate fork, with the module as its body left it. The fork and all its descendants are killed
before the next grade starts. The fork writes its answer to a separate pipe, after a random word that no other grade
receives.

The worker is the first process of its namespace, so no process inside can kill or stop it. It is run by path, as
`python -I -S worker.py`, next to the few of our files that the sandbox contains. It exchanges messages over the socket
on descriptor 0. A message is its length (four bytes) and JSON. The first message is the configuration (`worker_config`
in `agent_rft.actors.sandbox.sandbox_config`), and the worker answers with the effective protections. Only then does the
owner send the grader's source, so no untrusted code runs if a protection is missing.

If there is a runner (`agent_rft.actors.sandbox.untrusted_runner`), the arguments are the descriptors of two more
sockets. Grades request runs on the first one. On the second one, the worker signals that the turn of a grade begins.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import json
import linecache
import math
import os
import select
import signal
import socket
import sys
import traceback
from typing import Any

sys.path.append(os.path.abspath(f"{__file__}/../../../.."))

from agent_rft import untrusted
from agent_rft.actors.sandbox import pid1, scratch

sys.path.pop()

FILE = "grader.py"
MAX_ANSWER_BYTES = 64_000
MAX_DETAILS_CHARS = 4_000
MAX_FRAMES = 20
NOTHING = "the grader's process ended without a grade: "
WorkerMessage = dict[str, Any]


# -- the grader --------------------------------------------------------------------------------------------------------


def load(source: str, packages: list[str]) -> tuple[Any, str | None]:
    """Run the grader's module; return its function `grade`, or the module's error as text."""
    sys.path += packages
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    module = type(sys)("grader")
    module.__file__ = FILE
    sys.modules["grader"] = module
    try:
        code = compile(source, FILE, "exec", dont_inherit=True)
        import_ahead(source)
        exec(code, module.__dict__)
        return module.grade, None
    except BaseException as error:  # noqa: BLE001 - any error of the grader is its answer
        return None, describe(error)


def import_ahead(source: str) -> None:
    """Import the modules that functions import, so that each grade does not import them again."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def describe(error: BaseException) -> str:
    """Return the error's traceback from the grader's code on. A long traceback is truncated at its start."""
    try:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != FILE:
            trace = trace.tb_next
        text = "".join(traceback.format_exception(type(error), error, trace, limit=-MAX_FRAMES))
    except BaseException:  # noqa: BLE001 - formatting the error failed, or memory ran out
        text = type(error).__name__
    return text.strip()[-MAX_DETAILS_CHARS:]


def number_of(value: Any) -> WorkerMessage:
    """Return the message for the value that a grader returned."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.floating, numpy.integer)):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        what = "None" if value is None else f"a value of type {type(value).__name__:.100}"
        return {"error": f"grade returned {what}, but must return a number"}
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        return {"error": f"grade returned {number}, but must return a finite number"}
    return {"value": number}


def run(grade: Any, request: bytes) -> WorkerMessage:
    """Run one grade; return its message."""
    try:
        body = json.loads(request)
        answer = number_of(grade(body["sample"], body["item"]))
    except BaseException as error:  # noqa: BLE001 - as in `load`
        answer = {"error": describe(error)}
    if untrusted.failure is not None:  # even if the grader caught the error
        return {"lost": "no_sandbox", "error": untrusted.failure}
    return answer


# -- runs of untrusted code --------------------------------------------------------------------------------------------


class Runs:
    """Sockets to the runner, given by their descriptors. Without them, grades cannot run untrusted code."""

    def __init__(self, descriptors: list[int]) -> None:
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self._sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        self._turn = b""

    def begin_turn(self) -> None:
        """Let the runner kill the last grade's runs, and serve only the next grade."""
        self._turn = os.urandom(untrusted.TURN_BYTES)
        for begins in self._sockets[1:]:
            begins.send(self._turn)

    def use(self) -> None:
        """Let this process, which runs a grade, request runs. Closes the other socket, which only the worker uses."""
        for begins in self._sockets[1:]:
            begins.close()
        untrusted.connect(self._sockets[0] if self._sockets else None, self._turn)


# -- a grade in a fork -------------------------------------------------------------------------------------------------


def fork_grade(
    grade: Any, request: bytes, word: bytes, channel: socket.socket, runs: Runs, cpu_s: int
) -> WorkerMessage:
    """Run one grade in a fork; return its message after the fork and all its descendants have ended."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            channel.close()
            os.close(read)
            runs.use()
            pid1.limit("CPU", cpu_s)
            os.write(write, word + json.dumps(run(grade, request)).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(write)
    output, status = listen(read, pid)
    os.close(read)
    if output.startswith(word) and output.endswith(b"\n"):
        with contextlib.suppress(ValueError, RecursionError):
            answer = json.loads(output[len(word) :])
            if isinstance(answer, dict):  # the owner checks its values
                return {key: answer[key] for key in ("value", "error", "lost") if key in answer}
    if output:
        return {"error": "the grader's process wrote something other than the grade"}
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            return {"lost": "killed", "error": NOTHING + "it was killed by its CPU time limit or for lack of memory"}
        return {"error": NOTHING + f"it was ended by signal {signal.Signals(number).name}"}
    return {"error": NOTHING + f"it ended with exit status {os.WEXITSTATUS(status)}"}


def listen(read: int, pid: int) -> tuple[bytes, int]:
    """Read the fork's output up to a line break or its end; return the output and the fork's exit status.

    Kills the remaining processes of the grade.
    """
    os.set_blocking(read, False)
    ended = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(read, select.POLLIN)
    poll.register(ended, select.POLLIN)
    output = b""
    while len(output) < MAX_ANSWER_BYTES:
        ready = dict(poll.poll())
        chunk = b""
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(read, MAX_ANSWER_BYTES) if read in ready else b""
        output += chunk
        if output.endswith(b"\n") or (ended in ready and not chunk):
            break
        if read in ready and not chunk:
            poll.unregister(read)  # the pipe is closed: wait until the process ends or the owner kills it
    status = pid1.reap(pid)
    os.close(ended)
    return output, status


def main() -> None:
    channel = socket.socket(fileno=os.dup(0))
    runs = Runs([int(text) for text in sys.argv[1:]])
    untrusted.connect(None, b"")  # the grader's module, loaded next, cannot run untrusted code
    config = json.loads(pid1.receive(channel) or b"null")
    folder, known = scratch.scratch_folder()
    pid1.start(channel, config)
    source = pid1.receive(channel)
    if source is None:
        return
    me = os.getpid()
    grade, error = load(source.decode(), config["packages"])
    if os.getpid() != me:  # the module forked, and this is the fork
        os._exit(1)
    pid1.reap(0)
    runs.begin_turn()
    gc.collect()
    gc.freeze()
    pid1.send(channel, {"ready": True})
    while (word := pid1.receive(channel)) and (request := pid1.receive(channel)):
        answer: WorkerMessage = {"error": error}
        if error is None:
            answer = fork_grade(grade, request, word, channel, runs, config["cpu_s"])
        runs.begin_turn()
        answer |= {"last": True} if "lost" in answer else {}  # the runner may be gone
        try:
            scratch.empty(folder, known)
        except OSError:
            answer["last"] = True  # the owner then replaces this worker and its folder
        pid1.send(channel, {**answer, "word": word.decode()})
        del request


if __name__ == "__main__":
    main()
