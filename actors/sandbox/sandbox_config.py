"""Sandbox configuration: limits, visible files, and the command lines of launcher and worker.

bubblewrap and our launcher show the same files at the same paths.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import sys
import sysconfig
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import agent_rft
from agent_rft.actors.sandbox import seccomp
from agent_rft.actors.sandbox.untrusted_runner import unused_id

SandboxMethod = Literal["bubblewrap", "namespaces", "none"]
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
"""Properties of a sandbox that are checked before a grader runs.

All are protections, except `readable_python`: the sandbox can read Python's folders."""
SCRATCH = "/tmp"
NOBODY = 65534
CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN = 6, 7, 21
MANY_IDS, FEW_IDS = (2_000_000_000, 2_100_000_000), (30_000, 60_000)
"""Ranges of unused user ids. FEW_IDS is for containers that have only 65,536 ids."""
GRADER_PACKAGES = {
    "numpy": "numpy",
    "scipy": "scipy",
    "sympy": "sympy",
    "pandas": "pandas",
    "rapidfuzz": "rapidfuzz",
    "scikit-learn": "sklearn",
    "rouge-score": "rouge_score",
    "deepdiff": "deepdiff",
    "jsonschema": "jsonschema",
    "pydantic": "pydantic",
    "pyyaml": "yaml",
    "nltk": "nltk",
    "sqlparse": "sqlparse",
    "rdkit": "rdkit",
    "scikit-bio": "skbio",
    "ast-grep-py": "ast_grep_py",
}
"""Module of each package that code in a sandbox may import, if the package is installed.

These are the packages that OpenAI documents for python graders. The sandbox also contains their dependencies."""
PACKAGES = "/.packages"
"""Folder of a sandbox that contains the importable packages."""
PACKAGE = Path(agent_rft.__path__[0])
HERE = PACKAGE / "actors" / "sandbox"
FIRST_PROCESS_FILES = ("pid1.py",)
"""Files of this folder that the first process of every sandbox imports."""
PACKAGE_FILES = ("__init__.py", "untrusted.py")
"""Files in the top folder of the package. Every sandbox contains these files."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """The limits of one sandbox, which runs one grade at a time.

    `memory_bytes` limits the address space of each process. It also limits the memory of all processes together, which
    includes the files of the scratch folder and the socket buffers.
    """

    memory_bytes: int = 2 << 30
    scratch_bytes: int = 256 << 20
    num_processes: int = 64
    num_open_files: int = 256
    num_cores: int = 2


RUN_LIMITS = SandboxLimits(scratch_bytes=64 << 20, num_processes=32)
"""Limits for a run of untrusted code. Only the fields `scratch_bytes` and `num_processes` are used.

For the other limits, a run has the same values as the grader."""


def python_path() -> str:
    """Return the path of the interpreter, with all links and virtual environments resolved."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@cache
def find_packages() -> dict[str, str]:
    """Return the files and folders of GRADER_PACKAGES and their dependencies: path by name, as in site-packages."""
    found: dict[str, str] = {}
    left, seen = list(GRADER_PACKAGES), set[str]()
    while left:
        name = left.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        tops = {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}
        paths = {top: os.path.realpath(str(package.locate_file(top))) for top in tops if not top.endswith("-info")}
        found |= {top: path for top, path in sorted(paths.items()) if os.path.exists(path)}
        needed = [text for text in package.requires or () if "extra ==" not in text]
        left += [match[0] for text in needed if (match := re.match(r"[\w.-]+", text))]
    return found


def find_importable_modules() -> frozenset[str]:
    """Return the top-level modules of `find_packages`."""
    return frozenset(name.partition(".")[0] for name in find_packages())


def _package_folders(method: SandboxMethod) -> list[str]:
    """Return the folders from which code imports packages.

    Without a sandbox, the folders contain all installed packages.
    """
    if method != "none":
        return [PACKAGES] if find_packages() else []
    paths = sysconfig.get_paths()
    found = {os.path.realpath(paths[name]) for name in ("purelib", "platlib")}
    return sorted(path for path in found if os.path.isdir(path))


def _path_inside(path: str, method: SandboxMethod) -> str:
    """Return the path of a file inside the sandbox, given its path outside.

    In a sandbox, `/tmp` is the sandbox's own folder, so the outside file `/tmp/x` has the path `/.outside/tmp/x`. All
    other paths stay the same.
    """
    return f"/.outside{path}" if method != "none" and path.startswith(f"{SCRATCH}/") else path


def _environment(method: SandboxMethod) -> dict[str, str]:
    """Return the environment variables for a sandbox, without those of this process.

    numpy gets one thread, because grades that run at the same time use the other cores.
    """
    return {
        "PATH": f"{os.path.dirname(_path_inside(python_path(), method))}:/usr/bin:/bin",
        "HOME": SCRATCH,
        "TMPDIR": SCRATCH,
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(_package_folders(method)),  # for child processes
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }


def launch_config(method: SandboxMethod, limits: SandboxLimits, script: str) -> dict[str, Any]:
    """Return the configuration of a launcher that runs a script in a sandbox.

    `script` is the name of a file in the folder of this module.
    """
    top = str(PACKAGE.parent) if method == "none" else "/.own"
    binds, links = _binds(method)
    binds += [(str(PACKAGE / name), f"{top}/agent_rft/{name}") for name in PACKAGE_FILES]
    binds += [(str(HERE / name), f"{top}/agent_rft/actors/sandbox/{name}") for name in (script, *FIRST_PROCESS_FILES)]
    if script == "sandbox_worker.py":
        binds += [(str(HERE / "scratch.py"), f"{top}/agent_rft/actors/sandbox/scratch.py")]
    devices = ["/dev/null", "/dev/random", "/dev/urandom"]  # mappings of /dev/zero are memory that no limit counts
    return {
        "method": method,
        "user_namespace": not _becomes_other_user(),
        "launcher_uid": unused_id(*_unused_ids()) if method != "none" and _leaves_root_first() else None,
        "inside_id": NOBODY,
        "binds": binds,
        "links": links,
        "hidden": _hidden_folders(method),
        "devices": devices,
        "scratch": SCRATCH,
        "scratch_bytes": limits.scratch_bytes,
        "memory_bytes": limits.memory_bytes,
        "num_processes": limits.num_processes,
        "environment": _environment(method),
        "command": [_path_inside(python_path(), method), "-I", "-S", "-B", f"{top}/agent_rft/actors/sandbox/{script}"],
        "runs": None,
        "inherited": [],
        "bubblewrap": _bubblewrap(binds, links, devices, limits) if method == "bubblewrap" else [],
    }


def runs_config(method: SandboxMethod, limits: SandboxLimits) -> dict[str, Any] | None:
    """Return the configuration for running untrusted code, or None if `method` creates no sandbox."""
    if method == "none":
        return None
    run_limits = replace(limits, scratch_bytes=RUN_LIMITS.scratch_bytes, num_processes=RUN_LIMITS.num_processes)
    filtered = {"seccomp": seccomp.build_filter(keeps_sigchld=True).hex()}
    return {
        "launch": launch_config(method, run_limits, "untrusted_process.py"),
        "worker": worker_config(method, run_limits) | filtered,
        "protections": PROTECTIONS,
        "ids": _unused_ids(),
    }


def _binds(method: SandboxMethod) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the visible paths as pairs (source, path), and links as pairs (target, path)."""
    base = os.path.realpath(sys.base_prefix)
    visible = ["/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo"]
    visible += [f"{base}/lib", f"{base}/lib64", python_path()]
    links = [(os.readlink(path), path) for path in visible[:4] if os.path.islink(path)]
    found = [path for path in dict.fromkeys(visible) if os.path.exists(path) and not os.path.islink(path)]
    outermost = [path for path in found if not any(path.startswith(f"{other}/") for other in found)]
    packages = [(path, f"{PACKAGES}/{name}") for name, path in find_packages().items()]
    return [(path, _path_inside(path, method)) for path in outermost] + packages, links


def _hidden_folders(method: SandboxMethod) -> list[str]:
    """Return package folders, such as `site-packages`, that are inside visible folders.

    The sandbox shows the package folders as empty.
    """
    base = os.path.realpath(sys.base_prefix)
    roots = {os.path.realpath(path) for path in (f"{base}/lib", f"{base}/lib64", "/usr/lib", "/usr/lib64")}
    found = {os.path.realpath(path) for root in roots for path in Path(root).glob("python*/*-packages")}
    found |= {path for path in _package_folders("none") if any(path.startswith(f"{root}/") for root in roots)}
    return sorted(_path_inside(path, method) for path in found if os.path.isdir(path))


def _bubblewrap(
    binds: list[tuple[str, str]], links: list[tuple[str, str]], devices: list[str], limits: SandboxLimits
) -> list[str]:
    """Return bubblewrap's command line, without the command to run inside."""
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
    for folder in _hidden_folders("bubblewrap"):
        words += ["--tmpfs", folder, "--remount-ro", folder]
    words += ["--perms", "1777", "--size", str(limits.scratch_bytes), "--tmpfs", SCRATCH]
    return [*words, "--remount-ro", "/", "--chdir", SCRATCH]


def worker_config(method: SandboxMethod, limits: SandboxLimits) -> dict[str, Any]:
    """Return the configuration that a sandbox's first process gets as its first message."""
    sandboxed = method != "none"
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
    if sandboxed:  # without a sandbox, these limits would count all processes of this user
        rlimits |= {"NPROC": limits.num_processes, "SIGPENDING": limits.num_open_files}
    cores = sorted(os.sched_getaffinity(0))
    return {
        "sandboxed": sandboxed,
        "uid": unused_id(*_unused_ids()) if sandboxed and _becomes_other_user() else None,
        "packages": _package_folders(method),
        "limits": rlimits,
        "cores": random.sample(cores, min(limits.num_cores, len(cores))),
        "seccomp": seccomp.build_filter().hex() if sandboxed else "",
    }


def _becomes_other_user() -> bool:
    """Return whether the sandbox runs under an unused user id.

    This is the case if this process is root with CAP_SYS_ADMIN and has enough user ids. Otherwise, the sandbox runs in
    a user namespace.
    """
    return os.getuid() == 0 and _num_ids() > FEW_IDS[1] and _has_capability(CAP_SYS_ADMIN)


def _leaves_root_first() -> bool:
    """Return whether the launcher must switch to another user, because root cannot create namespaces here."""
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
