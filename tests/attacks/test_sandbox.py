"""Replays of attacks by python graders: on memory that no limit counted, on the filter, on the pool, on other folders.

The sandbox's other tests are in tests/integration/actors/sandbox.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from agent_rft.actors.sandbox import cgroup
from agent_rft.actors.sandbox.sandbox_config import GRADER_PACKAGES, SandboxLimits, find_importable_modules
from tests.support.budget import budget
from tests.support.graders import RUNTIME, SERVER, Make, failure, python_graders
from tests.support.sandboxes import BUBBLEWRAP, COST, SANDBOXES, attacked


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    async with python_graders(timeout_s=20.0) as made:
        yield made


# -- memory, descriptors, processes, system calls ----------------------------------------------------------------------

ATTACKS = {
    "shares_memory": None,
    "enlarges_buffers": None,
    "fills_socket_buffers": "768 MiB of memory",
    "adds_files_to_memory": "768 MiB of memory",
    "fills_pipes": None,
    "locks_without_end": None,
    "opens_descriptors": None,
    "forks_without_end": None,
    "calls_by_name": None,
}
"""What a grade that failed says; None: the attack was blocked, and the grader noticed it."""
CPU_S, GROWN_BYTES = 25.0, 64 << 20
"""What all attacks on one sandbox may cost: processor time, and memory of the process that has the pool."""


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_what_got_past_a_limit_is_blocked_or_killed(sandbox: str, attack: str) -> None:
    outcome = attacked(tuple(ATTACKS))[sandbox].result()[attack]
    if (message := ATTACKS[attack]) is None:
        assert outcome.get("value") == 1.0, outcome
    else:
        assert outcome["code"] == RUNTIME and message in outcome["message"]
    assert outcome["beside"] == [0.25, 0.25]


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_all_attacks_together_stay_within_their_budget(sandbox: str) -> None:
    cost = attacked(tuple(ATTACKS))[sandbox].result()[COST]
    assert cost["cpu_s"] < CPU_S and cost["grown_bytes"] < GROWN_BYTES, cost


PACKAGE_FOLDERS = [
    *(os.path.realpath(path) for path in sys.path if path.endswith("-packages")),
    *map(str, Path(sys.base_prefix).glob("lib/python*/*-packages")),
]


@pytest.mark.parametrize("method", ["namespaces", *BUBBLEWRAP])
async def test_a_sandbox_contains_only_the_listed_packages(make: Make, method: str) -> None:
    """Neither an import nor a path leads to another package of this machine, such as those with the server's code."""
    other = set(metadata.packages_distributions()) - find_importable_modules() - sys.stdlib_module_names - {"agent_rft"}
    assert {"ray", "torch", "aiohttp"} < other and PACKAGE_FOLDERS
    grader = make(
        "import importlib, importlib.util, os, sys\ndef grade(sample, item):\n"
        "    found = [name for name in item['other'] if importlib.util.find_spec(name)]\n"
        "    sys.path += item['folders']\n    importlib.invalidate_caches()\n"
        "    found += [name for name in item['other'] if importlib.util.find_spec(name)]\n"
        "    found += [path for path in item['folders'] if os.path.exists(path) and os.listdir(path)]\n"
        "    found += [path for path in ('/.packages/x', *item['folders']) if make(path)]\n"
        "    if found:\n        raise ValueError(found[:20])\n"
        "    for name in item['listed']:\n        importlib.import_module(name)\n    return len(item['listed'])\n"
        "def make(path):\n    try:\n        os.makedirs(path + '/new')\n    except OSError:\n        return False\n"
        "    return True\n",
        timeout_s=60,
        sandbox_method=method,
    )
    listed = [name for name in GRADER_PACKAGES.values() if name in find_importable_modules()]
    item = {"other": sorted(other), "folders": PACKAGE_FOLDERS, "listed": listed}
    assert (await grader.grade({}, item, "trace_1")).value == len(listed) > 5


async def test_files_of_the_scratch_folder_count_as_memory(make: Make) -> None:
    source = (
        "import time\ndef grade(sample, item):\n    with open('file', 'wb') as file:\n"
        "        for _ in range(item['mib']): file.write(bytes(1 << 20))\n    time.sleep(item['s'])\n    return 1"
    )
    grader = make(source, limits=SandboxLimits(memory_bytes=300 << 20, scratch_bytes=400 << 20))
    assert (await grader.grade({}, {"mib": 100, "s": 0}, "trace_1")).value == 1
    assert "300 MiB of memory" in (await failure(grader, {"mib": 350, "s": 100})).message


# -- cgroup v2 ---------------------------------------------------------------------------------------------------------


def test_a_delegated_cgroup_gets_limits_of_memory_and_processes(tmp_path: Path) -> None:
    other = tmp_path / "other"
    for parent, controllers in ((other, "cpu io"), (tmp_path, "cpu memory pids")):
        parent.mkdir(exist_ok=True)
        (parent / "cgroup.controllers").write_text(controllers)
        (parent / "cgroup.subtree_control").write_text("")
    (tmp_path / f"{cgroup.PREFIX}{1 << 30}").mkdir()  # of a launcher that was killed
    group = cgroup.create_cgroup(1 << 30, 66, [tmp_path / "missing", other, tmp_path])
    assert group is not None and group.folder.parent == tmp_path
    assert [path.name for path in tmp_path.glob(f"{cgroup.PREFIX}*")] == [group.folder.name]
    group.join()
    wanted = {"memory.max": str(1 << 30), "pids.max": "66", "memory.swap.max": "0", "memory.oom.group": "1",
              "cgroup.procs": "0"}  # fmt: skip
    assert {path.name: path.read_text() for path in group.folder.iterdir()} == wanted
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert not group.has_run_out_of_memory()
    (group.folder / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert group.has_run_out_of_memory()


def test_without_a_delegated_cgroup_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu")
    assert cgroup.create_cgroup(1 << 30, 66, [tmp_path]) is None and cgroup.create_cgroup(1 << 30, 66, []) is None


async def test_memory_is_limited_with_and_without_a_cgroup(make: Make, record_property: Callable[..., None]) -> None:
    """Which of both limited it here is in the test's properties."""
    group = cgroup.create_cgroup(1 << 30, 66)
    record_property("cgroup v2", "real" if group else "none is delegated on this machine: the launcher's sum")
    if group is not None:
        group.remove()
    source = (
        "import os, time\ndef grade(sample, item):\n    for _ in range(8):\n        if os.fork() == 0:\n"
        "            held = b'x' * (1 << 26)\n            time.sleep(1000)\n    time.sleep(1000)"
    )
    grader = make(source, limits=SandboxLimits(memory_bytes=300 << 20))
    assert "300 MiB of memory" in (await failure(grader)).message


# -- frames ------------------------------------------------------------------------------------------------------------

TAKEN_OVER = """
import json, os, socket, stat

def is_socket(descriptor):
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False

channel = socket.socket(fileno=next(filter(is_socket, range(256))))

def receive():
    length = int.from_bytes(channel.recv(4, socket.MSG_WAITALL), "big")
    return channel.recv(length, socket.MSG_WAITALL).decode()

def send(body, length=None):
    channel.sendall((len(body) if length is None else length).to_bytes(4, "big") + body)
"""
"""The start of a module that has taken over its worker: it speaks to the pool itself."""
ANSWERS = (
    TAKEN_OVER
    + """
send(b'{"ready": true}')
while True:
    nonce, item = receive(), json.loads(receive())["item"]
    send(item["body"].replace("NONCE", nonce).encode("latin-1") * item["times"], item["length"])
    if item["length"] is not None:
        os._exit(0)

def grade(sample, item): pass
"""
)
BODIES: dict[str, dict[str, Any]] = {
    "garbage": {"body": "\xff\x00\x80garbage"},
    "nothing": {"body": ""},
    "a_list": {"body": "[1]"},
    "a_number": {"body": "7"},
    "a_huge_length": {"body": "x", "length": 0xFFFFFFFF},
    "a_truncated_answer": {"body": '{"nonce": "NONCE", "value"', "length": 60_000},
    "half_a_header": {"body": "", "length": 1 << 24},
    "more_than_allowed": {"body": "[],", "times": 40_000},
    "deep_lists": {"body": "[", "times": 60_000},
    "deep_objects": {"body": '{"a":', "times": 12_000},
    "another_nonce": {"body": '{"nonce": "0", "value": 1.0}'},
    "no_nonce": {"body": '{"value": 1.0}'},
    "not_a_number": {"body": '{"nonce": "NONCE", "value": NaN}'},
    "infinity": {"body": '{"nonce": "NONCE", "value": 1e999}'},
    "many_digits": {"body": '{"nonce": "NONCE", "value": ' + "9" * 50_000 + "}"},
    "true": {"body": '{"nonce": "NONCE", "value": true}'},
    "a_text": {"body": '{"nonce": "NONCE", "value": "1"}'},
    "an_error_of_another_type": {"body": '{"nonce": "NONCE", "error": [[[{}]]]}'},
    "half_of_a_character": {"body": '{"nonce": "NONCE", "error": "\\ud800 and \\u0000"}'},
    "a_long_error": {"body": '{"nonce": "NONCE", "error": "' + "x" * 60_000 + '"}'},
}


async def test_a_malformed_answer_is_a_failed_grade_and_takes_no_memory(make: Make) -> None:
    grader = make(ANSWERS)
    good = {"body": '{"nonce": "NONCE", "value": 0.5}', "times": 1, "length": None}
    assert (await grader.grade({}, good, "trace_1")).value == 0.5
    with budget(cpu_s=15.0, mib=16.0):  # most of it starts new workers
        for name, body in BODIES.items():
            error = await failure(grader, {"times": 1, "length": None, **body})
            assert error.details["code"] in (RUNTIME, SERVER), name
            assert len(json.dumps(error.details, ensure_ascii=False).encode()) < 10_000, name  # and UTF-8 can hold it
            assert "\0" not in str(error.details), name
    assert (await grader.grade({}, good, "trace_1")).value == 0.5


async def test_what_a_worker_sends_unasked_is_not_collected(make: Make) -> None:
    grader = make(TAKEN_OVER + "send(b'{}')\nwhile True: channel.sendall(bytes(1 << 16))\ndef grade(s, i): pass")
    with budget(cpu_s=5.0, mib=16.0):
        assert (await failure(grader)).details["python_grader_server_error_type"] == "worker_lost"


@pytest.mark.parametrize("ready", ["b'['*60_000", "b'[]'", "b'x'", "b'x', 1 << 31", "b'\"ready\"'", "b'', 5"])
async def test_a_malformed_first_message_is_a_failed_grade(make: Make, ready: str) -> None:
    grader = make(TAKEN_OVER + f"send({ready})\nos._exit(0)\ndef grade(s, i): pass")
    assert (await failure(grader)).details["python_grader_server_error_type"] == "no_worker"


# -- folders of others -------------------------------------------------------------------------------------------------

MOVES = {
    "changes_its_folder": "os.chdir(target)",
    "changes_its_folder_and_closes_all": "os.chdir(target); os.closerange(5, 256); [os.open('.', 0) for _ in range(9)]",
    "links_the_folder": "os.rename(mine, mine + '-moved'); os.symlink(target, mine)",
    "replaces_the_folder": "os.rename(mine, mine + '-moved'); os.rename(target, mine)",
    "links_inside": "os.symlink(target, 'link'); os.makedirs('a/b'); os.symlink(target, 'a/b/link')",
}


@pytest.mark.parametrize("move", MOVES)
async def test_nothing_outside_of_the_scratch_folder_is_deleted_without_a_sandbox(
    make: Make, tmp_path: Path, move: str
) -> None:
    """A module that changed to another folder had that one emptied."""
    target = tmp_path / "target"
    (target / "inside").mkdir(parents=True)
    (target / "inside" / "file").write_text("kept")
    told = tmp_path / "told"
    source = (
        f"import os\nmine, target = os.getcwd(), {str(target)!r}\n"
        f"open({str(told)!r}, 'a').write(mine + '\\n')\n{MOVES[move]}\n"
        "def grade(sample, item):\n    open(os.path.join(mine, 'left'), 'w').close()\n    return 1"
    )
    grader = make(source, sandbox_method="none")
    for _ in range(2):
        assert (await grader.grade({}, {}, "trace_1")).value == 1
        if move == "replaces_the_folder":  # a second worker could not repeat it
            break
    await grader.close()
    assert kept([Path(line) for line in told.read_text().splitlines()], target, move) == "kept"


def kept(folders: list[Path], target: Path, move: str) -> str:
    """What is in the file that no grader owns; removes what the attack has left of the workers' scratch folders."""
    found = folders[0] if move == "replaces_the_folder" else target
    text = (found / "inside" / "file").read_text()
    for folder in [*folders, *(Path(f"{folder}-moved") for folder in folders)]:
        if folder.is_symlink():
            folder.unlink()
        elif move.endswith("the_folder"):
            shutil.rmtree(folder, ignore_errors=True)
        assert not folder.exists()
    return text
