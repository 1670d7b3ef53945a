"""Functions of a sandbox's first process: drop its privileges, exchange messages with its owner, kill other processes.

This file runs inside sandboxes, so it imports only the standard library and `agent_rft.untrusted`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import resource
import signal
import socket
from collections.abc import Callable
from typing import Any

from agent_rft import untrusted

CPU_S = 600
"""Maximum CPU seconds of the first process. The limit stops threads that a grader's module has left running."""
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 1, 22, 38, 2
CAPABILITY_VERSION_3 = 0x20080522
LIBRARY = os.path.dirname(os.__file__)
Pid1Config = dict[str, Any]

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
    libc.capset(header, nothing)  # bubblewrap leaves inheritable capabilities


def set_limit(name: str, value: int) -> None:
    """Set a resource limit, but never above the current hard limit."""
    kind = getattr(resource, f"RLIMIT_{name}")
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def install_seccomp_filter(program: bytes) -> None:
    class Program(ctypes.Structure):
        _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    code = Program(len(program) // 8, program)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(code), 0, 0)


def drop_privileges(config: Pid1Config) -> dict[str, bool]:
    """Drop all privileges of this process and its future children; return which protections are effective."""
    sandboxed = config["sandboxed"]
    network = not sandboxed or [name for _, name in socket.if_nameindex()] in ([], ["lo"])
    if config["uid"] is not None:
        drop_user(config["uid"])
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # without a handler, the first process of a namespace ignores signals
    os.umask(0o077)
    os.sched_setaffinity(0, config["cores"])
    limits = config["limits"]
    for name in limits:
        set_limit(name, limits[name])
    set_limit("CPU", CPU_S)
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if sandboxed:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # last, because a change of user resets it
        install_seccomp_filter(bytes.fromhex(config["seccomp"]))
    return {
        "network": sandboxed and network and not succeeds(lambda: socket.socket(socket.AF_INET)),
        "files": sandboxed and not succeeds(lambda: os.mkdir("/x")) and not os.path.exists("/proc/self"),
        "processes": sandboxed and os.getpid() == 1,
        "privileges": os.getuid() != 0 and has_no_capabilities() and not succeeds(lambda: os.setuid(0)),
        "system_calls": sandboxed
        and not succeeds(lambda: os.chroot("/"))
        and not succeeds(try_ptrace)
        and not succeeds(try_shared_memory),
        "number_of_processes": sandboxed and has_process_limit(),
        "memory": resource.getrlimit(resource.RLIMIT_AS)[1] != resource.RLIM_INFINITY,
        "readable_python": all(os.access(path, os.R_OK | os.X_OK) for path in [LIBRARY, *config["packages"]]),
    }


def succeeds(action: Callable[[], object]) -> bool:
    try:
        action()
    except OSError:
        return False
    return True


def has_process_limit() -> bool:
    """Return whether the process limit applies. It does not if this user is root outside the namespace."""
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


def try_ptrace() -> None:
    if libc.ptrace(0, 0, None, None) < 0:
        raise OSError


def try_shared_memory() -> None:
    mmap.mmap(-1, mmap.PAGESIZE).close()


def has_no_capabilities() -> bool:
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()
    return libc.capget(header, sets) == 0 and not any(sets)


def confine(channel: socket.socket, config: Pid1Config) -> None:
    """Drop all privileges, replace the standard descriptors with /dev/null, and report the effective protections."""
    null = os.open("/dev/null", os.O_RDWR)
    protections = drop_privileges(config)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    send(channel, {"protections": protections})


# -- messages and processes --------------------------------------------------------------------------------------------


def receive(channel: socket.socket) -> bytes | None:
    """Receive one message; return None if the owner is gone."""
    header = channel.recv(4, socket.MSG_WAITALL)
    if len(header) < 4:
        return None
    return channel.recv(int.from_bytes(header, "big"), socket.MSG_WAITALL)


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    untrusted.send(channel, json.dumps(message).encode())


def reap(pid: int) -> int:
    """Kill and reap all other processes of the sandbox; return the exit status of `pid`."""
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
    """Kill all other processes of the PID namespace; without a PID namespace, kill all descendants."""
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
