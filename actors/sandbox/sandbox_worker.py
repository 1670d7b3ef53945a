"""Inner process of one sandbox: drops its privileges, runs the grader's module once, and forks for each grade.

Each grade runs in a separate fork, which starts with the freshly imported module. The fork and all its descendants are
killed before the next grade starts. The fork writes a nonce and its answer to a separate pipe. No other grade receives
this nonce.

The worker is the first process of its namespace, so no process inside can kill or stop it. It is run by path, as
`python -I -S sandbox_worker.py`. It exchanges messages over the socket on descriptor 0. Each message starts with its
length in four bytes. The first message is the configuration (`worker_config` in
`agent_rft.actors.sandbox.sandbox_config`), and the worker answers with the effective protections. Only then does the
owner send the grader's source, so no untrusted code runs if a protection is missing.

If there is a runner (`agent_rft.actors.sandbox.untrusted_runner`), the worker's command-line arguments are the
descriptors of two more sockets. The first socket carries the grades' requests to run code. The second socket carries
the id of each new grade.
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
NO_GRADE = "the grader's process ended without a grade: "
OPTIONAL_KEY = "output_json"
"""The only key that a sample may lack."""
ANSWER_KEYS = ("value", "train", "error", "missing", "lost")
WorkerMessage = dict[str, Any]


# -- the grader --------------------------------------------------------------------------------------------------------


def load_grader(source: str, packages: list[str]) -> tuple[Any, str | None]:
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
        return None, format_error(error)


def import_ahead(source: str) -> None:
    """Import every module that `source` imports, even inside functions, so that no grade has to load a module."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def format_error(error: BaseException) -> str:
    """Return the error's traceback, starting at the grader's code. A long traceback is truncated at its start."""
    try:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != FILE:
            trace = trace.tb_next
        text = "".join(traceback.format_exception(type(error), error, trace, limit=-MAX_FRAMES))
    except BaseException:  # noqa: BLE001 - formatting the error failed, or memory ran out
        text = type(error).__name__
    return text.strip()[-MAX_DETAILS_CHARS:]


class MissingKey(KeyError):
    """The sample lacks a key that the grader reads."""

    def __str__(self) -> str:
        why = ": the answer is not JSON, or the job has no response_format" if self.args == (OPTIONAL_KEY,) else ""
        return f"the sample has no {self.args[0]!r}{why}. Read it with sample.get({self.args[0]!r})"


class Sample(dict[str, Any]):
    """Sample that a grader receives.

    `sample[key]` raises MissingKey if the key is missing. A copy is a plain dict.
    """

    def __missing__(self, key: object) -> Any:
        raise MissingKey(key)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def make_answer(value: Any) -> WorkerMessage:
    """Return the message for a grader's value: a number, or a dict with `score` and possibly `train`.

    Any other value results in an error message.
    """
    if not isinstance(value, dict):
        return make_value_message(value)
    if unknown := [key for key in value if key not in ("score", "train")]:
        return {
            "error": f"grade returned a dict with the key {unknown[0]!r:.100}, but only score and train are allowed"
        }
    if "score" not in value:
        return {"error": "grade returned a dict without score"}
    train = value.get("train", True)
    numpy = sys.modules.get("numpy")
    if not isinstance(train, bool) and not (numpy is not None and isinstance(train, numpy.bool_)):
        return {"error": f"grade returned a dict in which `train` is {_describe(train)}, but must be True or False"}
    return make_value_message(value["score"]) | {"train": bool(train)}


def _describe(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__:.100}"


def make_value_message(value: Any) -> WorkerMessage:
    """Return the message for a grader's value, or an error message if the value is not a finite number."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.floating, numpy.integer)):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return {"error": f"grade returned {_describe(value)}, but must return a number"}
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        return {"error": f"grade returned {number}, but must return a finite number"}
    return {"value": number}


def run_grade(grade: Any, request: bytes) -> WorkerMessage:
    """Run one grade; return its message."""
    try:
        body = json.loads(request)
        answer = make_answer(grade(Sample(body["sample"]), body["item"]))
    except MissingKey as error:
        answer = {"error": format_error(error), "missing": error.args[0] == OPTIONAL_KEY}
    except BaseException as error:  # noqa: BLE001 - as in `load_grader`
        answer = {"error": format_error(error)}
    if untrusted.sandbox_failure is not None:  # even if the grader caught the error
        return {"lost": "no_sandbox", "error": untrusted.sandbox_failure}
    return answer


# -- runs of untrusted code --------------------------------------------------------------------------------------------


class RunnerSockets:
    """Sockets to the runner of untrusted code.

    `descriptors` are file descriptors of the sockets. If `descriptors` is empty, the grader cannot run untrusted code.
    """

    def __init__(self, descriptors: list[int]) -> None:
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self._sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        self._grade_id = b""

    def begin_grade(self) -> None:
        """Begin a new grade. The runner ends all runs of the previous grade."""
        self._grade_id = os.urandom(untrusted.GRADE_ID_BYTES)
        for grade_ids in self._sockets[1:]:
            grade_ids.send(self._grade_id)

    def connect(self) -> None:
        """Connect this fork to the runner of untrusted code, and close the socket for grade ids."""
        for grade_ids in self._sockets[1:]:
            grade_ids.close()
        untrusted.connect_grader(self._sockets[0] if self._sockets else None, self._grade_id)


# -- a grade in a fork -------------------------------------------------------------------------------------------------


def fork_grade(
    grade: Any, request: bytes, nonce: bytes, channel: socket.socket, runner: RunnerSockets, cpu_s: int
) -> WorkerMessage:
    """Grade a request in a forked process, and return the message with the grade or the error.

    Returns only after the process and all its descendants have ended.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            channel.close()
            os.close(read)
            runner.connect()
            pid1.set_limit("CPU", cpu_s)
            os.write(write, nonce + json.dumps(run_grade(grade, request)).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(write)
    output, status = read_grade(read, pid)
    os.close(read)
    if output.startswith(nonce) and output.endswith(b"\n"):
        with contextlib.suppress(ValueError, RecursionError):
            answer = json.loads(output[len(nonce) :])
            if isinstance(answer, dict):  # the owner checks its values
                return {key: answer[key] for key in ANSWER_KEYS if key in answer}
    if output:
        return {"error": "the grader's process wrote something other than the grade"}
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            return {"lost": "killed", "error": NO_GRADE + "it was killed by its CPU time limit or for lack of memory"}
        return {"error": NO_GRADE + f"it was ended by signal {signal.Signals(number).name}"}
    return {"error": NO_GRADE + f"it ended with exit status {os.WEXITSTATUS(status)}"}


def read_grade(read: int, pid: int) -> tuple[bytes, int]:
    """Return the fork's output and exit status.

    Reads until the output ends with a line break or the fork ends. Then kills the remaining processes of the grade.
    """
    os.set_blocking(read, False)
    pidfd = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(read, select.POLLIN)
    poll.register(pidfd, select.POLLIN)
    output = b""
    while len(output) < MAX_ANSWER_BYTES:
        ready = dict(poll.poll())
        chunk = b""
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(read, MAX_ANSWER_BYTES) if read in ready else b""
        output += chunk
        if output.endswith(b"\n") or (pidfd in ready and not chunk):
            break
        if read in ready and not chunk:
            poll.unregister(read)  # the pipe is closed: wait until the process ends or the owner kills it
    status = pid1.reap(pid)
    os.close(pidfd)
    return output, status


def main() -> None:
    channel = socket.socket(fileno=os.dup(0))
    runner = RunnerSockets([int(text) for text in sys.argv[1:]])
    untrusted.connect_grader(None, b"")  # the grader's module, loaded next, cannot run untrusted code
    config = json.loads(pid1.receive(channel) or b"null")
    folder, identity = scratch.scratch_folder()
    pid1.confine(channel, config)
    source = pid1.receive(channel)
    if source is None:
        return
    me = os.getpid()
    grade, error = load_grader(source.decode(), config["packages"])
    if os.getpid() != me:  # the module forked, and this is the fork
        os._exit(1)
    pid1.reap(0)
    runner.begin_grade()
    gc.collect()
    gc.freeze()
    pid1.send(channel, {"ready": True})
    while (nonce := pid1.receive(channel)) and (request := pid1.receive(channel)):
        answer: WorkerMessage = {"error": error}
        if error is None:
            answer = fork_grade(grade, request, nonce, channel, runner, config["cpu_s"])
        runner.begin_grade()
        answer |= {"last": True} if "lost" in answer else {}  # the runner may be gone
        try:
            scratch.empty_folder(folder, identity)
        except OSError:
            answer["last"] = True  # the owner then replaces this worker and its folder
        pid1.send(channel, {**answer, "nonce": nonce.decode()})
        del request


if __name__ == "__main__":
    main()
