"""Starts sandboxes: our own namespaces first, else with bubblewrap if it is installed and works, else not at all.

bubblewrap is for plain users to whom the system denies user namespaces, except in programs that it knows (AppArmor on
Ubuntu 24.04 and later). A missing protection is an error, never a weaker sandbox: after giving up its privileges, the
worker checks which protections are effective, and all of PROTECTIONS must be before the grader's source is sent to it.
Without a sandbox (`unsandboxed_python`) there are only the deadline and the limits of each process. What holds in which
way is in the table of docs/security.md.
"""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import agent_rft
from agent_rft import untrusted
from agent_rft.actors.sandbox import seccomp
from agent_rft.actors.sandbox.runner import MEMORY_EXIT, unused_id
from agent_rft.errors import RftError, UserError

Way = Literal["bubblewrap", "namespaces", "none"]
PROTECTIONS = (
    "network",
    "files",
    "processes",
    "number_of_processes",
    "privileges",
    "system_calls",
    "memory",
    "readable_python",
)
"""The last one is a prerequisite: no grader can run if Python's folders are unreadable for other users."""
SCRATCH = "/tmp"
START_S = 60.0
"""Timeout for creating a sandbox and running the grader's module."""
NEEDED_LINUX = (5, 14)
"""The first version that counts processes per user namespace (mount_setattr needs 5.12)."""
NOBODY = 65534
CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN = 6, 7, 21
MANY_IDS, FEW_IDS = (2_000_000_000, 2_100_000_000), (30_000, 60_000)
"""Ranges of unused user ids: very high ones, or, in a container with only 65,536 ids, those below `nobody`."""
MAX_STDERR_CHARS = 500
PACKAGE = Path(agent_rft.__path__[0])
HERE = PACKAGE / "actors" / "sandbox"
BESIDE = ("inside.py",)
"""Files of this folder that each first process of a sandbox imports."""
SHARED = ("__init__.py", "untrusted.py")
"""Files of the package that a sandbox has as well."""
REMEDY = (
    "allow user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1; in a container, a "
    "seccomp profile that allows unshare and mount), or, where AppArmor allows them to known programs only (Ubuntu "
    "24.04 and later), install bubblewrap (apt-get install bubblewrap), or set unsandboxed_python: true in the "
    "operator's configuration, which lets graders read and send whatever this user can"
)
TRY_AGAIN = "the machine seems overloaded: try again when it has processors free"


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """The limits of one sandbox, which runs one grade at a time.

    `memory_bytes` limits both the address space of each process and the memory of all together, including the files of
    the scratch folder and the buffers of sockets.
    """

    memory_bytes: int = 2 << 30
    scratch_bytes: int = 256 << 20
    num_processes: int = 64
    num_open_files: int = 256
    num_cores: int = 2


RUN_LIMITS = SandboxLimits(scratch_bytes=64 << 20, num_processes=32)
"""The limits of a run of untrusted code, beside the grader's own; its memory is for the grader to say, up to that of
the grader."""


@dataclass(frozen=True, slots=True)
class SandboxReport:
    """How sandboxes can be created on this machine.

    `way` is None if they cannot; `holds` says which protections are effective; `missing` says why ways do not work;
    `late`, that one of these was not ready in time: it may work at the next try.
    """

    way: Way | None
    holds: dict[str, bool] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    late: bool = False


class SandboxFailed(RftError):
    """A sandbox did not start, or lacks a protection; `late` says that it was not ready in time."""

    def __init__(self, message: str, late: bool = False) -> None:
        super().__init__(message, late=late)
        self.late = late


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A sandbox whose worker waits for requests on `channel`; closing the channel kills it."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    holds: dict[str, bool]

    def end(self) -> int:
        """Kill it and wait for its end; returns the launcher's exit status."""
        self.channel.close()
        return _end(self.process)


def choose_way(report: SandboxReport, unsandboxed: bool) -> Way:
    """How graders are sandboxed; "none" only if there is no other way and the operator allows it.

    Raises:
        SandboxFailed: a sandbox was only late, so there may be a way.
        UserError: there is no way; the message says what is missing and what to do.
    """
    if report.way is not None:
        return report.way
    why = "; ".join(f"{way}: {reason}" for way, reason in report.missing.items())
    if report.late:
        raise SandboxFailed(f"no sandbox was ready in time ({why})", late=True)
    if unsandboxed:
        return "none"
    needed = "python graders need a sandbox, which cannot be created here"
    problem, public = f"{needed} ({why})", f"{needed}: {REMEDY}"
    raise UserError(f"{problem}: {REMEDY}", code="no_sandbox", problem=problem, remedy=REMEDY, public=public)


class Reports:
    """The report of this machine, kept once it has a way; a failure is not, since it may be one of the moment."""

    def __init__(self, make: Callable[[], SandboxReport]) -> None:
        self._make = make
        self._kept: SandboxReport | None = None

    def get(self) -> SandboxReport:
        if self._kept is not None:
            return self._kept
        report = self._make()
        if report.way is not None:
            self._kept = report
        return report


def sandbox_report() -> SandboxReport:
    """How sandboxes are created here; the first time, or while there is no way, by `try_ways`."""
    return _REPORTS.get()


def try_ways(start: Callable[..., Sandbox]) -> SandboxReport:
    """Try the ways in order by starting a sandbox; takes a fraction of a second."""
    missing: dict[str, str] = {}
    late = False
    ways: tuple[Way, ...] = ("namespaces", "bubblewrap")
    for way in ways:
        try:
            sandbox = start("def grade(sample, item): return 0", way, SandboxLimits(), timeout_s=START_S, cpu_s=1)
        except SandboxFailed as error:
            missing[way] = error.message
            late = late or error.late
        else:
            sandbox.end()
            return SandboxReport(way, sandbox.holds, missing)
    return SandboxReport(None, {}, missing, late)


def start(source: str, way: Way, limits: SandboxLimits, *, timeout_s: float, cpu_s: int) -> Sandbox:
    """Start a sandbox and run the module `source` in it; blocks. `cpu_s` limits each process of a grade.

    Raises:
        SandboxFailed: it was not ready within `timeout_s`, or lacks a protection.
    """
    _check_needs(way)
    process, ours = launch({**_launch_config(way, limits, "worker.py"), "runs": runs_config(way, limits)})
    try:
        deadline = time.monotonic() + timeout_s
        ours.settimeout(timeout_s)
        untrusted.send(ours, json.dumps({**_worker_config(way, limits), "cpu_s": cpu_s}).encode())
        holds = untrusted.receive(ours, deadline)["holds"]
        failed = [name for name in PROTECTIONS if way != "none" and not holds.get(name)]
        if failed:
            raise SandboxFailed(f"the sandbox lacks protections: {', '.join(failed)}")
        untrusted.send(ours, source.encode())
        untrusted.receive(ours, deadline)
    except BaseException as error:  # on any error, so that no sandbox is left behind
        ours.close()
        output = last_output(process)
        if isinstance(error, TimeoutError):
            raise SandboxFailed(f"the grader's module was not loaded within {timeout_s:g} s", late=True) from None
        if isinstance(error, (OSError, EOFError, ValueError, KeyError)):
            memory = f"perhaps out of memory ({limits.memory_bytes >> 20} MiB)"
            raise SandboxFailed(output or f"the worker ended while the grader's module was loaded, {memory}") from None
        raise
    ours.settimeout(None)
    return Sandbox(process, ours, holds)


_REPORTS = Reports(lambda: try_ways(start))


def launch(config: dict[str, Any]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the launcher; returns its process and the socket to the first process of its sandbox."""
    ours, theirs = socket.socketpair()
    command = [_python(), "-I", "-S", "-B", str(HERE / "launcher.py"), json.dumps(config)]
    with theirs:
        process = subprocess.Popen(
            command,
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={},
            cwd="/",
            start_new_session=True,
        )
    return process, ours


def _end(process: subprocess.Popen[bytes]) -> int:
    if process.stderr is not None:
        process.stderr.close()
    try:
        return process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()  # the kernel then kills its worker
        return process.wait()


def last_output(process: subprocess.Popen[bytes]) -> str:
    """The last lines that launcher, bubblewrap or Python wrote to stderr."""
    assert process.stderr is not None
    try:
        _, output = process.communicate(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        _, output = process.communicate()
    status = "it used more memory than its limit" if process.returncode == MEMORY_EXIT else ""
    lines = output.decode(errors="replace").strip().splitlines()
    return "; ".join(lines[-2:])[:MAX_STDERR_CHARS] if lines else status


# -- configuration -----------------------------------------------------------------------------------------------------


def _check_needs(way: Way) -> None:
    if sys.platform != "linux":
        raise SandboxFailed("not Linux")
    if way == "none":
        return
    if not seccomp.machine_is_known():
        raise SandboxFailed(f"no list of system calls for machine {platform.machine()}")
    if way == "bubblewrap" and shutil.which("bwrap") is None:
        raise SandboxFailed("bwrap is not installed")
    if tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2]) < NEEDED_LINUX:
        raise SandboxFailed(f"Linux {platform.release()} is older than {'.'.join(map(str, NEEDED_LINUX))}")


def _python() -> str:
    """The interpreter itself, with all links and virtual environments resolved."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def _packages() -> list[str]:
    paths = sysconfig.get_paths()
    found = {os.path.realpath(paths[name]) for name in ("purelib", "platlib")}
    return sorted(path for path in found if os.path.isdir(path))


def _inside(path: str, way: Way) -> str:
    """A path as seen inside the sandbox, where the scratch folder would hide paths below it."""
    return f"/.outside{path}" if way != "none" and path.startswith(f"{SCRATCH}/") else path


def _environment(way: Way) -> dict[str, str]:
    """A clean environment; numpy gets one thread, since other grades use the other cores."""
    return {
        "PATH": f"{os.path.dirname(_inside(_python(), way))}:/usr/bin:/bin",
        "HOME": SCRATCH,
        "TMPDIR": SCRATCH,
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(_inside(path, way) for path in _packages()),  # for child processes
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }


def _launch_config(way: Way, limits: SandboxLimits, script: str) -> dict[str, Any]:
    top = str(PACKAGE.parent) if way == "none" else "/.own"
    binds, links = _binds(way)
    binds += [(str(PACKAGE / name), f"{top}/agent_rft/{name}") for name in SHARED]
    binds += [(str(HERE / name), f"{top}/agent_rft/actors/sandbox/{name}") for name in (script, *BESIDE)]
    if script == "worker.py":
        binds += [(str(HERE / "scratch.py"), f"{top}/agent_rft/actors/sandbox/scratch.py")]
    devices = ["/dev/null", "/dev/random", "/dev/urandom"]  # mappings of /dev/zero are memory that no limit counts
    return {
        "way": way,
        "user_namespace": not _becomes_other_user(),
        "become": unused_id(*_unused_ids()) if way != "none" and _leaves_root_first() else None,
        "inside_id": NOBODY,
        "binds": binds,
        "links": links,
        "devices": devices,
        "scratch": SCRATCH,
        "scratch_bytes": limits.scratch_bytes,
        "memory_bytes": limits.memory_bytes,
        "num_processes": limits.num_processes,
        "environment": _environment(way),
        "command": [_inside(_python(), way), "-I", "-S", "-B", f"{top}/agent_rft/actors/sandbox/{script}"],
        "runs": None,
        "given": [],
        "bubblewrap": _bubblewrap(binds, links, devices, limits) if way == "bubblewrap" else [],
    }


def runs_config(way: Way, limits: SandboxLimits) -> dict[str, Any] | None:
    """How the runner runs untrusted code; None if it cannot."""
    if way == "none":
        return None
    of_run = replace(limits, scratch_bytes=RUN_LIMITS.scratch_bytes, num_processes=RUN_LIMITS.num_processes)
    filtered = {"seccomp": seccomp.program(children_count=True).hex()}
    return {
        "launch": _launch_config(way, of_run, "run_process.py"),
        "worker": _worker_config(way, of_run) | filtered,
        "protections": PROTECTIONS,
        "ids": _unused_ids(),
    }


def _binds(way: Way) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The visible paths as pairs (source, path), and links as pairs (target, path)."""
    base = os.path.realpath(sys.base_prefix)
    wanted = ["/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo"]
    wanted += [f"{base}/lib", f"{base}/lib64", _python(), *_packages()]
    links = [(os.readlink(path), path) for path in wanted[:4] if os.path.islink(path)]
    found = [path for path in dict.fromkeys(wanted) if os.path.exists(path) and not os.path.islink(path)]
    kept = [path for path in found if not any(path.startswith(f"{other}/") for other in found)]
    return [(path, _inside(path, way)) for path in kept], links


def _bubblewrap(
    binds: list[tuple[str, str]], links: list[tuple[str, str]], devices: list[str], limits: SandboxLimits
) -> list[str]:
    """The command line up to the command to run inside."""
    words = [shutil.which("bwrap") or "bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    words += ["--unshare-cgroup-try", "--as-pid-1", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    if _becomes_other_user():
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        words += ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    paths = [*(path for _, path in [*binds, *links]), *devices]
    parents = {str(parent) for path in paths for parent in Path(path).parents} - {"/"}
    for folder in sorted(parents):  # bubblewrap would create some of them for root only
        words += ["--perms", "0755", "--dir", folder]
    for source, path in binds:
        words += ["--ro-bind", source, path]
    for target, path in links:
        words += ["--symlink", target, path]
    for device in devices:
        words += ["--dev-bind", device, device]
    words += ["--perms", "1777", "--size", str(limits.scratch_bytes), "--tmpfs", SCRATCH]
    return [*words, "--remount-ro", "/", "--chdir", SCRATCH]


def _worker_config(way: Way, limits: SandboxLimits) -> dict[str, Any]:
    sandboxed = way != "none"
    rlimits = {
        "AS": limits.memory_bytes,
        "FSIZE": limits.scratch_bytes,
        "NOFILE": limits.num_open_files,
        "STACK": 8 << 20,
        "CORE": 0,
        "MEMLOCK": 0,
        "MSGQUEUE": 0,
        "RTPRIO": 0,
    }
    if sandboxed:  # otherwise they would count what all processes of this user have
        rlimits |= {"NPROC": limits.num_processes, "SIGPENDING": limits.num_open_files}
    cores = sorted(os.sched_getaffinity(0))
    return {
        "sandboxed": sandboxed,
        "uid": unused_id(*_unused_ids()) if sandboxed and _becomes_other_user() else None,
        "packages": [_inside(path, way) for path in _packages()],
        "limits": rlimits,
        "cores": random.sample(cores, min(limits.num_cores, len(cores))),
        "seccomp": seccomp.program().hex() if sandboxed else "",
    }


def _becomes_other_user() -> bool:
    """Whether the sandbox runs under an unused user id, as root's do if there are such ids (not in every container).

    Otherwise it runs in a user namespace, in which this user has no capabilities.
    """
    return os.getuid() == 0 and _num_ids() > FEW_IDS[1] and _has_capability(CAP_SYS_ADMIN)


def _leaves_root_first() -> bool:
    """Whether root cannot create namespaces, as in most containers, and becomes a plain user who perhaps can."""
    rights = _has_capability(CAP_SETUID) and _has_capability(CAP_SETGID)
    return os.getuid() == 0 and _num_ids() > FEW_IDS[1] and rights and not _becomes_other_user()


def _has_capability(number: int) -> bool:
    with open("/proc/self/status") as file:
        effective = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    return bool(effective >> number & 1)


def _unused_ids() -> tuple[int, int]:
    return MANY_IDS if _num_ids() > MANY_IDS[1] else FEW_IDS


def _num_ids() -> int:
    with open("/proc/self/uid_map") as file:
        return max(int(line.split()[0]) + int(line.split()[2]) for line in file)
