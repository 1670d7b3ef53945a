"""A container as Kubernetes runs one, made of Linux namespaces: `python -m tests.e2e.pod`, a PodSpec on standard input.

It sees a read-only root (the image: system libraries, the virtual environment, what the Dockerfile copies) and its
volumes, but no other files of the machine; it has only its own environment and runs as its user without privileges. It
shares the network of its parent, which must be root (possibly of a user namespace) in its own mount and PID namespaces.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

IMAGE = Path("/opt/agent-rft")
SOURCES = ".sources"
"""The folder of this checkout, below IMAGE; in the real image it is an installed package."""
SYSTEM = ("bin", "lib", "lib32", "lib64", "sbin", "usr")
DEVICES = ("full", "null", "random", "urandom", "zero")
MS_RDONLY, MS_NOSUID, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 32, 4096, 16384, 1 << 18
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
SYS_PIVOT_ROOT, MNT_DETACH = {"x86_64": 155, "aarch64": 41}, 2
PR_SET_NO_NEW_PRIVS = 38
CLONE_NEWUSER = 0x10000000

libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume; `source` is a folder of this machine, or None for `size_bytes` of memory."""

    path: str
    source: str | None = None
    read_only: bool = False
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A container to run; `hosts` maps services to addresses, `command` is found in the PATH of `environment`."""

    command: Sequence[str]
    environment: Mapping[str, str]
    volumes: Sequence[Volume]
    user: int
    group: int
    folder: str
    hosts: Mapping[str, str]

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> PodSpec:
        values: dict[str, Any] = json.loads(text)
        return cls(**values | {"volumes": [Volume(**volume) for volume in values["volumes"]]})


def main() -> None:
    spec = PodSpec.read(sys.stdin.read())
    new = Path("/mnt")
    _check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    _mount("tmpfs", new, "tmpfs", MS_NOSUID, "mode=755")
    for name in SYSTEM:
        _show(Path("/", name), new / name)
    _etc(new / "etc", spec)
    interpreters = [path for path in (Path(sys.prefix), Path(sys.base_prefix)) if not path.is_relative_to("/usr")]
    for path in interpreters:  # scripts refer to them by these paths
        _bind(path, new / path.relative_to("/"))
    image = new / IMAGE.relative_to("/")
    _bind(ROOT / "examples", image / "examples")
    _bind(ROOT, image / SOURCES)
    _bind(Path(sys.prefix), image / ".venv")
    _bind(Path("/sys"), new / "sys")
    for volume in spec.volumes:
        (new / volume.path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    (new / "proc").mkdir()
    (new / "dev").mkdir(exist_ok=True)
    for name in DEVICES:
        (new / "dev" / name).touch()
        _mount(f"/dev/{name}", new / "dev" / name, None, MS_BIND)
    for name, target in (("fd", "/proc/self/fd"), ("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2")):
        (new / "dev" / name).symlink_to(target)
    _read_only(new)
    _mount("proc", new / "proc", "proc", MS_NOSUID)
    for volume in spec.volumes:
        _mount_volume(volume, new / volume.path.lstrip("/"), spec.group)
    for path in interpreters:
        if any(path.is_relative_to(volume.path) for volume in spec.volumes):
            _bind(path, new / path.relative_to("/"))
            _read_only(new / path.relative_to("/"))
    os.chdir(new)  # not chroot, which would forbid creating user namespaces
    _check(libc.syscall(SYS_PIVOT_ROOT[os.uname().machine], b".", b"."))
    _check(libc.umount2(b".", MNT_DETACH))
    os.chdir(spec.folder)
    _become(spec.user, spec.group)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.execvpe(spec.command[0], list(spec.command), dict(spec.environment))


def _etc(new: Path, spec: PodSpec) -> None:
    """Fills /etc with this machine's entries, except users and hosts; a volume may be mounted below it."""
    new.mkdir()
    own = {
        "hosts": "".join(f"{address} {name}\n" for name, address in {"localhost": "127.0.0.1", **spec.hosts}.items()),
        "passwd": f"agent-rft:x:{spec.user}:{spec.group}::/tmp:/bin/sh\n",
        "group": f"agent-rft:x:{spec.group}:\n",
    }
    for name, text in own.items():
        (new / name).write_text(text)
    for entry in Path("/etc").iterdir():
        if entry.name not in own and (entry.is_symlink() or os.access(entry, os.R_OK)):
            _show(entry, new / entry.name)


def _show(path: Path, new: Path) -> None:
    if path.is_symlink():
        new.symlink_to(path.readlink())
    elif path.is_dir():
        _bind(path, new)
    elif path.is_file():
        new.touch()
        _mount(str(path), new, None, MS_BIND)


def _bind(path: Path, new: Path) -> None:
    new.mkdir(parents=True, exist_ok=True)
    _mount(str(path), new, None, MS_BIND | MS_REC)


def _mount_volume(volume: Volume, new: Path, group: int) -> None:
    if volume.source is None:
        _mount("tmpfs", new, "tmpfs", MS_NOSUID, f"mode=1777,size={volume.size_bytes}")
        return
    if not volume.read_only and os.stat(volume.source).st_gid != group and _has_ids():
        os.chown(volume.source, 0, group)  # as the pod's fsGroup does
        os.chmod(volume.source, 0o2775)
    _bind(Path(volume.source), new)
    if volume.read_only:
        _read_only(new)


def _read_only(path: Path) -> None:
    """Makes a mount read-only, with all mounts below it."""
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    arguments = (AT_FDCWD, os.fsencode(path), AT_RECURSIVE, attributes, ctypes.sizeof(attributes))
    _check(libc.syscall(SYS_MOUNT_SETATTR, *arguments))


def _become(user: int, group: int) -> None:
    """Switches to this user, without privileges and without a way to gain any."""
    if _has_ids():
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)
    else:  # root of a user namespace with a single user: map that user to the wanted ids
        own_user, own_group = os.getuid(), os.getgid()
        _check(libc.unshare(CLONE_NEWUSER))
        Path("/proc/self/uid_map").write_text(f"{user} {own_user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {own_group} 1")
        os.setgid(group)
        os.setuid(user)
    _check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def _has_ids() -> bool:
    return int(Path("/proc/self/uid_map").read_text().split()[2]) > 1


def _mount(source: str, target: Path, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    _check(libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]), str(target))


def _check(result: int, where: str = "") -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), where)


if __name__ == "__main__":
    main()
