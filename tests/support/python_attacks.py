"""Runs `tests/support/hostile_grader.py` against one kind of sandbox and prints the outcomes as one JSON object.

    python -m tests.support.python_attacks namespaces|bubblewrap [--plain]

It is a separate process, with a secret in its environment, so that it can become another user: with `--plain`, root
becomes a user without privileges (in a new mount namespace, where this user can read the interpreter's folders).
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import resource
import socket
import stat
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, cast

from agent_rft.actors.graders.kinds.python_grader import PythonRunner
from agent_rft.actors.sandbox import sandbox_launcher, seccomp
from agent_rft.actors.sandbox.sandbox_config import SandboxLimits, SandboxMethod
from agent_rft.errors import GraderFailed
from agent_rft.spec.graders import PythonGrader
from agent_rft.spec.operator.operator_config import OperatorConfig
from tests.support.fakes_http import until
from tests.support.paths import ROOT
from tests.support.sandboxes import COST

NOBODY = 65534
LIMITS = SandboxLimits(memory_bytes=768 << 20, scratch_bytes=64 << 20)
ENDLESS = ("never_returns", "never_gives_in", "fork_bomb")
UNFILTERED = {335, 336}
"""uretprobe and uprobe of x86-64, which no filter sees, and which kill a process that calls them itself."""
ESCAPES = {
    "ptrace": (101, 117), "process_vm_writev": (311, 271), "keyctl": (250, 219), "add_key": (248, 217),
    "io_uring_setup": (425, 425), "userfaultfd": (323, 282), "unshare": (272, 97), "setns": (308, 268),
    "bpf": (321, 280), "mount": (165, 40), "fsopen": (430, 430), "open_by_handle_at": (304, 265),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "vmsplice": (278, 75),
    "sendmsg": (46, 211), "perf_event_open": (298, 241), "seccomp": (317, 277), "personality": (135, 92),
}  # fmt: skip
"""System calls known from escapes, with their numbers on x86-64 and 64-bit ARM."""
HOSTILE = Path(__file__).with_name("hostile_grader.py").read_text()
Outcome = dict[str, Any]


async def outcome(grader: PythonRunner, attack: str, item: dict[str, Any]) -> Outcome:
    try:
        grade = await grader.grade({"output_text": ""}, {**item, "attack": attack}, "trace")
    except GraderFailed as error:
        return {"message": error.message, **error.details}
    return {"value": grade.value}


async def run(method: SandboxMethod, attacks: list[str], item: dict[str, Any]) -> dict[str, Outcome]:
    """The outcome of each attack.

    `beside` holds two harmless grades: one that ran at the same time in the same pool, and one after it. Attacks that
    never end run at the same time as all others.
    """
    spec = PythonGrader(type="python", source=HOSTILE)
    hurried = PythonGrader(type="python", source=HOSTILE, timeout_s=1.0)
    found: dict[str, Outcome] = {}
    patient_pool, hurried_pool = (
        PythonRunner(one, "g", OperatorConfig(), sandbox_method=method, limits=LIMITS, num_workers=2)
        for one in (spec, hurried)
    )

    async def attack(pool: PythonRunner, name: str) -> None:
        calm = (patient_pool if pool is hurried_pool else pool, "is_honest", item)
        found[name], beside = await asyncio.gather(outcome(pool, name, item), outcome(*calm))
        after = await outcome(*calm)
        found[name]["beside"] = [beside.get("value", beside), after.get("value", after)]

    async def one_by_one(pool: PythonRunner, names: list[str]) -> None:
        for name in names:
            await attack(pool, name)

    await asyncio.gather(
        one_by_one(patient_pool, [name for name in attacks if name not in ENDLESS]),
        *(attack(hurried_pool, name) for name in attacks if name in ENDLESS),
    )
    # what was killed is there again
    num_workers = 4 if set(attacks) & set(ENDLESS) else 2
    await until(lambda: patient_pool.num_workers + hurried_pool.num_workers == num_workers, within_s=60)
    await asyncio.gather(patient_pool.close(), hurried_pool.close())
    return found


def main() -> None:
    method = cast(SandboxMethod, sys.argv[1])
    assert method != "none", "without a sandbox the attacks would harm the machine"
    if "--plain" in sys.argv and os.getuid() == 0:
        become_plain("tests.support.python_attacks")
    attacks = json.loads(os.environ["ATTACKS"])
    column = seccomp.MACHINES.index(platform.machine())
    listed = seccomp.allowed_calls(platform.machine()) | seccomp.checked_calls(platform.machine())
    with tempfile.TemporaryDirectory() as folder, socket.socket() as inet, socket.socket(socket.AF_UNIX) as unix:
        secret = Path(folder) / "secret"
        secret.write_text("secret")
        inet.bind(("127.0.0.1", 0))
        inet.listen()
        abstract = f"\0grader-{os.getpid()}"
        unix.bind(abstract)
        unix.listen()
        port = inet.getsockname()[1]
        item = {
            "secret_file": str(secret),
            "pid": os.getpid(),
            "port": port,
            "url": f"http://127.0.0.1:{port}",
            "abstract": abstract,
            "denied": sorted(set(range(seccomp.LAST_KNOWN + 1)) - set(listed.values()) - UNFILTERED),
            "numbers": listed,
            "escapes": {name: numbers[column] for name, numbers in ESCAPES.items()},
            "scratch_bytes": LIMITS.scratch_bytes,
        }
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = asyncio.run(run(method, attacks, item))
        assert secret.read_text() == "secret" and os.listdir(folder) == ["secret"]
    ours, theirs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    found[COST] = {
        "cpu_s": sum(usage.ru_utime + usage.ru_stime for usage in (ours, theirs)),
        "grown_bytes": (ours.ru_maxrss - before_kib) << 10,
    }
    print(json.dumps(found))


def become_plain(module: str) -> None:
    """Run the module as a user without privileges who can read the folders of Python, its packages and this project."""
    here = str(ROOT)
    paths = [here, sys.prefix, sys.base_prefix, sysconfig.get_paths()["purelib"]]
    sandbox_launcher.check(sandbox_launcher.libc.unshare(sandbox_launcher.CLONE_NEWNS), "unshare the mount namespace")
    sandbox_launcher.mount("none", "/", None, sandbox_launcher.MS_REC | sandbox_launcher.MS_PRIVATE)
    with tempfile.TemporaryDirectory() as folder:
        held = {path: os.path.join(folder, str(number)) for number, path in enumerate(dict.fromkeys(paths))}
        for path, place in held.items():
            os.mkdir(place)
            sandbox_launcher.mount(path, place, None, sandbox_launcher.MS_BIND | sandbox_launcher.MS_REC)
        for path, place in held.items():
            for parent in reversed(Path(path).parents):
                if not parent.stat().st_mode & stat.S_IXOTH:
                    sandbox_launcher.mount("tmpfs", str(parent), "tmpfs", 0, "mode=755")
                    break
            if not os.path.isdir(path):
                os.makedirs(path)
                sandbox_launcher.mount(place, path, None, sandbox_launcher.MS_BIND | sandbox_launcher.MS_REC)
            sandbox_launcher.check(sandbox_launcher.libc.umount2(place.encode(), sandbox_launcher.MNT_DETACH), "umount")
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.execv(sys.executable, [sys.executable, "-m", module, *(set(sys.argv[1:]) - {"--plain"})])


if __name__ == "__main__":
    main()
