"""The inner process of one sandbox: gives up what it may do, runs the grader's module once, and forks for each grade.

A grade runs in a fork of its own, which gets the module as its body left it, and ends with everything that it started
before the next one begins. What it says comes over a pipe made for it, after a word that only this grade was told.

This process is the first one of its namespace, so that nothing in there can end or stop it. It imports nothing of ours:
it is run by its path, as `python -I -S worker.py`, and speaks over the socket on descriptor 0: a message is its length
(four bytes) and JSON. The first one is the configuration (`actors.sandbox.start`), answered with what was seen to hold.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import gc
import importlib
import json
import linecache
import math
import os
import resource
import select
import signal
import socket
import stat
import sys
import traceback
from collections.abc import Callable
from typing import Any

FILE = "grader.py"
MAX_ANSWER_BYTES = 64_000
MAX_DETAILS_CHARS = 4_000
MAX_FRAMES = 20
CPU_OF_WORKER_S = 600
"""Far more than a worker's own share of all its grades; what a module left running does not burn a core for ever."""
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 1, 22, 38, 2
CAPABILITY_VERSION_3 = 0x20080522
LIBRARY = os.path.dirname(os.__file__)
NOTHING = "the process of the grader ended without a grade: "
LaunchConfig = dict[str, Any]
WorkerMessage = dict[str, Any]

libc = ctypes.CDLL(None, use_errno=True)


# -- giving up ---------------------------------------------------------------------------------------------------------


def prctl(*values: Any) -> None:
    if libc.prctl(*values) < 0:
        raise OSError(ctypes.get_errno(), f"prctl {values[0]}: {os.strerror(ctypes.get_errno())}")


def drop_user(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    header, nothing = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    libc.capset(header, nothing)  # bubblewrap leaves inheritable ones


def limit(name: str, value: int) -> None:
    """Never above what is allowed already."""
    kind = getattr(resource, f"RLIMIT_{name}")
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def filter_calls(program: bytes) -> None:
    class Program(ctypes.Structure):
        _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    code = Program(len(program) // 8, program)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(code), 0, 0)


def give_up(config: LaunchConfig) -> dict[str, bool]:
    """From here on, this process and its children can do no more than a grader may. What was seen to hold."""
    sandboxed = config["sandboxed"]
    network = not sandboxed or [name for _, name in socket.if_nameindex()] in ([], ["lo"])
    if config["uid"] is not None:
        drop_user(config["uid"])
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the first process of a namespace gets no signal without a handler
    os.umask(0o077)
    os.sched_setaffinity(0, config["cores"])
    limits = config["limits"]
    for name in limits:
        limit(name, limits[name])
    limit("CPU", CPU_OF_WORKER_S)
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if sandboxed:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # last of all: a change of user takes it back
        filter_calls(bytes.fromhex(config["seccomp"]))
    return {
        "network": sandboxed and network and not can(lambda: socket.socket(socket.AF_INET)),
        "files": sandboxed and not can(lambda: os.mkdir("/x")) and not os.path.exists("/proc/self"),
        "processes": sandboxed and os.getpid() == 1,
        "privileges": os.getuid() != 0 and no_capabilities() and not can(lambda: os.setuid(0)),
        "system_calls": sandboxed and not can(lambda: os.chroot("/")) and not can(ptrace_me),
        "number_of_processes": sandboxed and processes_are_counted(),
        "memory": resource.getrlimit(resource.RLIMIT_AS)[1] != resource.RLIM_INFINITY,
        "readable_python": all(os.access(path, os.R_OK | os.X_OK) for path in [LIBRARY, *config["packages"]]),
    }


def can(what: Callable[[], object]) -> bool:
    try:
        what()
    except OSError:
        return False
    return True


def processes_are_counted() -> bool:
    """Whether the limit stops this user; not where it is root outside, whatever it is called in here."""
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
    try:
        pid = os.fork()
    except OSError:
        return True
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return False


def ptrace_me() -> None:
    if libc.ptrace(0, 0, None, None) < 0:
        raise OSError


def no_capabilities() -> bool:
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()
    return libc.capget(header, sets) == 0 and not any(sets)


# -- messages ----------------------------------------------------------------------------------------------------------


def receive(channel: socket.socket) -> bytes | None:
    """One message; None where the owner is gone."""
    header = channel.recv(4, socket.MSG_WAITALL)
    if len(header) < 4:
        return None
    return channel.recv(int.from_bytes(header, "big"), socket.MSG_WAITALL)


def send(channel: socket.socket, message: WorkerMessage) -> None:
    body = json.dumps(message).encode()
    channel.sendall(len(body).to_bytes(4, "big") + body)


# -- the grader --------------------------------------------------------------------------------------------------------


def load(source: str, packages: list[str]) -> tuple[Any, str | None]:
    """`grade` of the source, or the text of the error that its module raised."""
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
    except BaseException as error:  # noqa: BLE001 - whatever the grader raises is its answer
        return None, describe(error)


def import_ahead(source: str) -> None:
    """Modules that only functions import, so that not each grade pays for it."""
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
    """The end of the traceback, from the grader's own first line on."""
    try:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != FILE:
            trace = trace.tb_next
        text = "".join(traceback.format_exception(type(error), error, trace, limit=-MAX_FRAMES))
    except BaseException:  # noqa: BLE001 - an error of the error itself, or no memory
        text = type(error).__name__
    return text.strip()[-MAX_DETAILS_CHARS:]


def number_of(value: Any) -> WorkerMessage:
    """What a grader returned, as the message of its grade."""
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
    """The message of one grade."""
    try:
        body = json.loads(request)
        return number_of(grade(body["sample"], body["item"]))
    except BaseException as error:  # noqa: BLE001 - as in `load`
        return {"error": describe(error)}


# -- a grade in a fork -------------------------------------------------------------------------------------------------


def fork_grade(grade: Any, request: bytes, word: bytes, channel: socket.socket, cpu_s: int) -> WorkerMessage:
    """The message of a grade that ran in a process of its own; all that it started has ended."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            channel.close()
            os.close(read)
            limit("CPU", cpu_s)
            os.write(write, word + json.dumps(run(grade, request)).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(write)
    said, status = listen(read, pid)
    os.close(read)
    if said.startswith(word) and said.endswith(b"\n"):
        with contextlib.suppress(ValueError):
            answer: WorkerMessage = json.loads(said[len(word) :])
            return answer
    if said:
        return {"error": "something else than the grade came out of the process of the grader"}
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            return {"lost": "killed", "error": NOTHING + "it was killed, by its limit of CPU time or for memory"}
        return {"error": NOTHING + f"by signal {signal.Signals(number).name}"}
    return {"error": NOTHING + f"with exit status {os.WEXITSTATUS(status)}"}


def listen(read: int, pid: int) -> tuple[bytes, int]:
    """What the fork wrote until its line or itself came to an end, and how it ended. Nothing is left of it."""
    os.set_blocking(read, False)
    ended = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(read, select.POLLIN)
    poll.register(ended, select.POLLIN)
    said = b""
    while len(said) < MAX_ANSWER_BYTES:
        ready = dict(poll.poll())
        chunk = b""
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(read, MAX_ANSWER_BYTES) if read in ready else b""
        said += chunk
        if said.endswith(b"\n") or (ended in ready and not chunk):
            break
        if read in ready and not chunk:
            poll.unregister(read)  # closed: now its end will come, or the deadline
    status = reap(pid)
    os.close(ended)
    return said, status


def reap(pid: int) -> int:
    """End the grade and all that it started; the status of `pid`."""
    status = 0
    while True:
        kill_all()
        try:
            child, how = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        if child == pid:
            status = how


def kill_all() -> None:
    """Everything but this process: in its namespace, or below it where it has none of its own."""
    if os.getpid() == 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        return
    pids = [os.getpid()]
    for parent in pids:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{thread}/children") as file:
                    pids += map(int, file.read().split())
    for pid in pids[1:]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def empty(folder: str) -> None:
    """Remove what is in the scratch folder, following no link; however deep it is."""
    left = [folder]
    while left:
        here = left[-1]
        if here != folder:
            os.chmod(here, stat.S_IRWXU)
        below = []
        for entry in os.scandir(here):
            if entry.is_dir(follow_symlinks=False):
                below.append(entry.path)
            else:
                os.unlink(entry.path)
        left += below
        if not below:
            left.pop()
            if here != folder:
                os.rmdir(here)


def main() -> None:
    channel = socket.socket(fileno=os.dup(0))
    config = json.loads(receive(channel) or b"null")
    null = os.open("/dev/null", os.O_RDWR)
    holds = give_up(config)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    me = os.getpid()
    grade, error = load(config["source"], config["packages"])
    if os.getpid() != me:  # the module forked, and this is the fork
        os._exit(1)
    reap(0)
    gc.collect()
    gc.freeze()
    send(channel, {"ready": True, "holds": holds})
    while (word := receive(channel)) and (request := receive(channel)):
        answer: WorkerMessage = {"error": error}
        if error is None:
            answer = fork_grade(grade, request, word, channel, config["cpu_s"])
        try:
            empty(os.getcwd())
        except OSError:
            answer["last"] = True  # with this worker goes the folder
        send(channel, {**answer, "word": word.decode()})
        del request


if __name__ == "__main__":
    main()
