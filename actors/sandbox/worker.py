"""The inner process of one sandbox: drops its privileges, runs the grader's module once, and forks for each grade.

Each grade runs in its own fork, with the module as its body left it; the fork and all its descendants are killed before
the next grade starts. Its answer comes over a separate pipe, after a random word that only this grade knows.

This process is the first one of its namespace, so no process inside can kill or stop it. It imports nothing of ours:
it is run by path, as `python -I -S worker.py`, and talks over the socket on descriptor 0. A message is its length (four
bytes) and JSON. The first one is the configuration (`actors.sandbox.start`), answered with the effective protections.
Only then does the owner send the grader's source, so no foreign code runs where a protection is missing.
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
import mmap
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
"""Far more than the worker itself needs for all its grades; bounds what a module leaves running, such as a thread."""
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 1, 22, 38, 2
CAPABILITY_VERSION_3 = 0x20080522
LIBRARY = os.path.dirname(os.__file__)
NOTHING = "the process of the grader ended without a grade: "
LaunchConfig = dict[str, Any]
WorkerMessage = dict[str, Any]

libc = ctypes.CDLL(None, use_errno=True)


# -- privileges --------------------------------------------------------------------------------------------------------


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
    """Set a resource limit, but never above the current hard limit."""
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
    """Drop all privileges of this process and its future children; returns which protections are effective."""
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
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # last, because a change of user resets it
        filter_calls(bytes.fromhex(config["seccomp"]))
    return {
        "network": sandboxed and network and not can(lambda: socket.socket(socket.AF_INET)),
        "files": sandboxed and not can(lambda: os.mkdir("/x")) and not os.path.exists("/proc/self"),
        "processes": sandboxed and os.getpid() == 1,
        "privileges": os.getuid() != 0 and no_capabilities() and not can(lambda: os.setuid(0)),
        "system_calls": sandboxed and not can(lambda: os.chroot("/")) and not can(ptrace_me) and not can(share_memory),
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
    """Whether the limit of processes applies to this user; it does not if the user is root outside the namespace."""
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


def share_memory() -> None:
    mmap.mmap(-1, mmap.PAGESIZE).close()


def no_capabilities() -> bool:
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()
    return libc.capget(header, sets) == 0 and not any(sets)


# -- messages ----------------------------------------------------------------------------------------------------------


def receive(channel: socket.socket) -> bytes | None:
    """One message; None if the owner is gone."""
    header = channel.recv(4, socket.MSG_WAITALL)
    if len(header) < 4:
        return None
    return channel.recv(int.from_bytes(header, "big"), socket.MSG_WAITALL)


def send(channel: socket.socket, message: WorkerMessage) -> None:
    body = json.dumps(message).encode()
    channel.sendall(len(body).to_bytes(4, "big") + body)


# -- the grader --------------------------------------------------------------------------------------------------------


def load(source: str, packages: list[str]) -> tuple[Any, str | None]:
    """The function `grade` of the source, or the error that the module raised, as text."""
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
    """Import the modules that functions import, so that not every grade has to."""
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
    """The traceback from the grader's own code on, truncated at its start."""
    try:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != FILE:
            trace = trace.tb_next
        text = "".join(traceback.format_exception(type(error), error, trace, limit=-MAX_FRAMES))
    except BaseException:  # noqa: BLE001 - an error of the error itself, or no memory
        text = type(error).__name__
    return text.strip()[-MAX_DETAILS_CHARS:]


def number_of(value: Any) -> WorkerMessage:
    """The message for the value that a grader returned."""
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
    """Run one grade; returns its message."""
    try:
        body = json.loads(request)
        return number_of(grade(body["sample"], body["item"]))
    except BaseException as error:  # noqa: BLE001 - as in `load`
        return {"error": describe(error)}


# -- a grade in a fork -------------------------------------------------------------------------------------------------


def fork_grade(grade: Any, request: bytes, word: bytes, channel: socket.socket, cpu_s: int) -> WorkerMessage:
    """Run one grade in a fork; returns its message after the fork and all its descendants have ended."""
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
    output, status = listen(read, pid)
    os.close(read)
    if output.startswith(word) and output.endswith(b"\n"):
        with contextlib.suppress(ValueError, RecursionError):
            answer = json.loads(output[len(word) :])
            if isinstance(answer, dict):  # the owner looks at its values
                return {key: answer[key] for key in ("value", "error") if key in answer}
    if output:
        return {"error": "the process of the grader wrote something other than the grade"}
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            return {"lost": "killed", "error": NOTHING + "it was killed by its CPU time limit or for lack of memory"}
        return {"error": NOTHING + f"by signal {signal.Signals(number).name}"}
    return {"error": NOTHING + f"with exit status {os.WEXITSTATUS(status)}"}


def listen(read: int, pid: int) -> tuple[bytes, int]:
    """The fork's output up to the end of its line or of itself, and its exit status; kills what is left of it."""
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
            poll.unregister(read)  # the pipe is closed: wait for the process's end, or the deadline
    status = reap(pid)
    os.close(ended)
    return output, status


def reap(pid: int) -> int:
    """Kill the grade and all its descendants; returns the exit status of `pid`."""
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
    """Kill all other processes of the namespace, or all descendants if there is no PID namespace."""
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


def empty(folder: str, known: tuple[int, int]) -> None:
    """Empty the scratch folder, to any depth, without following links and without leaving its file system.

    Raises:
        OSError: it cannot be emptied, or is no longer the folder with this device and inode.
    """
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if identity(top) != known:
            raise OSError(f"{folder} is another folder now")
        while names := remove_files(top):
            for name in names:
                empty_into(top, name)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def empty_into(top: int, name: str) -> None:
    """Remove the files of the folder `name` in `top`, and move its folders to `top`, so that no path gets long."""
    os.chmod(name, stat.S_IRWXU, dir_fd=top)
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    try:
        if os.fstat(inner).st_dev != os.fstat(top).st_dev:
            raise OSError(f"{name} is a mount")
        for below in remove_files(inner):
            os.chmod(below, stat.S_IRWXU, dir_fd=inner)
            os.rename(below, os.urandom(12).hex(), src_dir_fd=inner, dst_dir_fd=top)
    finally:
        os.close(inner)


def remove_files(folder: int) -> list[str]:
    """Remove all but the folders; returns their names."""
    folders = []
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=folder)
    return folders


def identity(folder: int) -> tuple[int, int]:
    status = os.fstat(folder)
    return status.st_dev, status.st_ino


def scratch_folder() -> tuple[str, tuple[int, int]]:
    """Path and identity of this folder, remembered before foreign code can change to another one."""
    folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        return os.getcwd(), identity(folder)
    finally:
        os.close(folder)


def main() -> None:
    channel = socket.socket(fileno=os.dup(0))
    config = json.loads(receive(channel) or b"null")
    scratch, known = scratch_folder()
    null = os.open("/dev/null", os.O_RDWR)
    holds = give_up(config)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    send(channel, {"holds": holds})
    source = receive(channel)
    if source is None:
        return
    me = os.getpid()
    grade, error = load(source.decode(), config["packages"])
    if os.getpid() != me:  # the module forked, and this is the fork
        os._exit(1)
    reap(0)
    gc.collect()
    gc.freeze()
    send(channel, {"ready": True})
    while (word := receive(channel)) and (request := receive(channel)):
        answer: WorkerMessage = {"error": error}
        if error is None:
            answer = fork_grade(grade, request, word, channel, config["cpu_s"])
        try:
            empty(scratch, known)
        except OSError:
            answer["last"] = True  # the owner then replaces this worker and its folder
        send(channel, {**answer, "word": word.decode()})
        del request


if __name__ == "__main__":
    main()
