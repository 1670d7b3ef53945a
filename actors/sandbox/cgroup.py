"""cgroup v2 limits of one sandbox. They are set only if the system has delegated a cgroup to this user.

The memory limit includes every kind of memory. Without a cgroup, only the launcher limits memory.

A cgroup with processes cannot have limited child cgroups, so the sandbox's cgroup must be a sibling of its owner's
cgroup. A systemd service needs `Delegate=memory pids` and `DelegateSubgroup=`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PREFIX = "agent-rft-grader-"
CONTROLLERS = {"memory", "pids"}


class SandboxCgroup(NamedTuple):
    """Cgroup of one sandbox. `procs_fd` is a descriptor of the file `cgroup.procs` in `folder`."""

    folder: Path
    procs_fd: int

    def join(self) -> None:
        """Move this process into the cgroup, if permitted."""
        with suppress(OSError):
            os.write(self.procs_fd, b"0")

    def has_run_out_of_memory(self) -> bool:
        """Return whether the kernel killed a process because the cgroup exceeded its memory limit."""
        with suppress(OSError):
            events = dict(line.split() for line in (self.folder / "memory.events").read_text().splitlines())
            return int(events.get("oom_kill", 0)) > 0
        return False

    def kill(self) -> None:
        """Kill all processes in the cgroup. Does nothing before Linux 5.14."""
        with suppress(OSError):
            (self.folder / "cgroup.kill").write_text("1")

    def remove(self) -> None:
        """Remove the cgroup; all its processes must have ended."""
        os.close(self.procs_fd)
        with suppress(OSError):
            self.folder.rmdir()


def create_cgroup(memory_bytes: int, num_processes: int, parents: list[Path] | None = None) -> SandboxCgroup | None:
    """Create and return a cgroup in the first of `parents` that permits this; return None if no parent permits it.

    `parents` defaults to `find_delegated_cgroups()`.
    """
    for parent in find_delegated_cgroups() if parents is None else parents:
        folder = parent / f"{PREFIX}{os.getpid()}"
        try:
            _enable(parent)
            _sweep(parent)
            folder.mkdir(exist_ok=True)
            (folder / "memory.max").write_text(str(memory_bytes))
            (folder / "pids.max").write_text(str(num_processes))
            for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):  # not on every kernel
                with suppress(OSError):
                    (folder / name).write_text(value)
            return SandboxCgroup(folder, os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC))
        except OSError:
            with suppress(OSError):
                folder.rmdir()
    return None


def find_delegated_cgroups() -> list[Path]:
    """Return candidates for a delegated cgroup: the cgroup of this process and its parent.

    For root, a candidate must have systemd's delegation mark, or be the top of a cgroup namespace.
    """
    try:
        path = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    except (OSError, StopIteration):
        return []
    tops = [Path(mount[4]) for mount in mounts if mount[mount.index("-") + 1] == "cgroup2" and mount[3] == "/"]
    if not tops or "/.." in path:
        return []
    own = tops[0] / path.lstrip("/")
    found = [own] if own == tops[0] else [own, own.parent]
    return [folder for folder in found if os.getuid() != 0 or folder == tops[0] or _is_marked(folder)]


def _is_marked(folder: Path) -> bool:
    for name in ("user.delegate", "trusted.delegate"):
        with suppress(OSError):
            return os.getxattr(folder, name) == b"1"
    return False


def _enable(parent: Path) -> None:
    """Enable limits for the child cgroups of `parent`.

    Raises:
        OSError: `parent` lacks the controllers, contains processes, or is not writable.
    """
    if not set((parent / "cgroup.controllers").read_text().split()) >= CONTROLLERS:
        raise OSError(f"{parent} does not have the cgroup controllers `memory` and `pids`")
    control = parent / "cgroup.subtree_control"
    if not set(control.read_text().split()) >= CONTROLLERS:
        control.write_text("+memory +pids")


def _sweep(parent: Path) -> None:
    """Remove the cgroups in `parent` whose launcher process no longer exists."""
    for folder in parent.glob(f"{PREFIX}*"):
        if not Path(f"/proc/{folder.name.removeprefix(PREFIX)}").exists():
            with suppress(OSError):
                folder.rmdir()
