"""Replays of attacks by code under test on its grader, by graders on the process that runs such code, and on times.

A grader that runs the model's code itself gives it its grade. `tests/support/untrusted_code.py` has the attacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psutil
import pytest

from tests.support.budget import budget
from tests.support.fakes_http import until
from tests.support.graders import RUNTIME, SERVER, Make, failure, python_graders
from tests.support.sandboxes import CODE, COST, SANDBOXES, attacked

SOLVED, NOT_SOLVED, TIMED_OUT, OVER_MEMORY, KILLED = 1.0, 0.0, -1.0, -2.0, -3.0
ATTACKS = {
    "is_honest": SOLVED,
    "reads_the_grader": SOLVED,
    "traces_others": SOLVED,
    "signals_others": SOLVED,
    "writes_outside": SOLVED,
    "uses_the_network": SOLVED,
    "changes_clocks_and_limits": SOLVED,
    "hides_its_children": SOLVED,
    "leaves_files": SOLVED,
    "shares_memory": SOLVED,
    "fills_its_folder": SOLVED,
    "starts_many": SOLVED,
    "leaves_a_daemon": SOLVED,
    "prints_a_result": NOT_SOLVED,
    "writes_to_descriptors": NOT_SOLVED,
    "exits_early": NOT_SOLVED,
    "closes_everything": NOT_SOLVED,
    "spins": TIMED_OUT,
    "sleeps": TIMED_OUT,
    "forks_for_ever": TIMED_OUT,
    "burns_in_children": TIMED_OUT,
    "takes_memory": OVER_MEMORY,
    "fills_socket_buffers": OVER_MEMORY,
    "floods": KILLED,
    "crashes": KILLED,
}
"""The grade of each: what its answer deserves where it was blocked, nothing where it forged, and how it was ended."""
CPU_S, GROWN_BYTES = 20.0, 32 << 20
"""What all attacks on one sandbox may cost: processor time, and memory of the process that has the pool."""


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    async with python_graders(timeout_s=60.0) as made:
        yield made


# -- code under test ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_code_under_test_gets_the_grade_that_it_deserves_and_leaves_nothing(sandbox: str, attack: str) -> None:
    outcome = attacked(tuple(ATTACKS), CODE)[sandbox].result()[attack]
    assert outcome.get("value") == ATTACKS[attack], outcome
    assert outcome["left"] == 0, outcome


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_all_attacks_together_stay_within_their_budget(sandbox: str) -> None:
    cost = attacked(tuple(ATTACKS), CODE)[sandbox].result()[COST]
    assert cost["cpu_s"] < CPU_S and cost["grown_bytes"] < GROWN_BYTES, cost


async def test_processor_time_counts_all_processes_and_not_those_of_the_grader(make: Make) -> None:
    source = (
        "import time\nfrom agent_rft import run_untrusted\n"
        "CODE = '''import os, time\nfor _ in range(2):\n    if os.fork() == 0:\n"
        "        while time.process_time() < 0.3: pass\n        os._exit(0)\n"
        "for _ in range(2): os.wait()'''\n"
        "def grade(sample, item):\n    while time.process_time() < 0.5: pass\n    return run_untrusted(CODE).cpu_s"
    )
    spent = (await make(source).grade({}, {}, "trace_1")).value
    assert 0.6 <= spent < 0.6 + 0.3, spent  # 0.3 s for the start of Python, on a busy machine too


# -- nothing is left ---------------------------------------------------------------------------------------------------

USES = "from agent_rft import run_untrusted\n"
SLEEPS = USES + "def grade(sample, item): return run_untrusted('import time; time.sleep(99)').exit"


async def test_a_cancelled_grade_ends_its_run(make: Make) -> None:
    task = asyncio.create_task(make(SLEEPS).grade({}, {}, "trace_1"))
    await until(lambda: len(running := sandboxes()) == 7 and runs_code(running[-1]), within_s=30)
    family = sandboxes()
    task.cancel()
    await until(lambda: not any(process.is_running() for process in family), within_s=30)


async def test_a_late_grade_ends_its_run(make: Make) -> None:
    grader = make(SLEEPS, timeout_s=1.0)
    assert (await failure(grader)).details["python_grader_server_error_type"] == "timeout"
    await grader.close()
    assert not sandboxes()


async def test_a_run_that_its_grade_does_not_wait_for_ends_with_it(make: Make) -> None:
    source = (
        "import os, threading, time\nfrom agent_rft import run_untrusted\n"
        "def run(code): run_untrusted(code, files={'x': b'x' * 1_000_000})\n"
        "def grade(sample, item):\n"
        "    if item['leave']:\n"
        "        for _ in range(3): threading.Thread(target=run, args=['import time; time.sleep(99)']).start()\n"
        "        time.sleep(item['leave'])\n        return 2\n"
        "    return run_untrusted('print(3)').stdout == '3\\n' and 3"
    )
    grader = make(source)
    for leave_s in (0.01, 0.1, 0.5):
        assert (await grader.grade({}, {"leave": leave_s}, "trace_1")).value == 2
        assert (await grader.grade({}, {"leave": 0}, "trace_1")).value == 3
    assert len(sandboxes()) == 3


def sandboxes() -> list[psutil.Process]:
    """All processes of the sandboxes that this process has started; other tests may have left other children."""
    launchers = [child for child in psutil.Process().children() if "sandbox_launcher.py" in " ".join(cmdline(child))]
    return [process for launcher in launchers for process in (launcher, *launcher.children(recursive=True))]


def runs_code(process: psutil.Process) -> bool:
    return "main.py" in cmdline(process)


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


# -- hostile graders ---------------------------------------------------------------------------------------------------

SPEAKS = """
import json, os
from agent_rft import untrusted as ours

def ask(*packets):
    for packet in packets:
        ours._channel.send(packet)

def grade(sample, item):
    head = ours._grade_id + bytes(4)
    ask(*eval(item["packets"]))
    if item["refused"]:
        answer, _ = ours.unpack(ours._receive(ours._channel, head))
        assert item["refused"] in answer["refused"], answer
    assert ours.run_untrusted("print(3)").stdout == "3\\n"
    return 3
"""
"""A grader that speaks to the runner itself; a usual run follows in the same grade."""
PACKETS = {
    "b'', b'x', bytes(60_000)": "",
    "bytes(21), ours._grade_id, head": "",
    "head + b'\\0' + bytes(9), bytes(21)": "",
    "head + b'\\1',": "Expecting value",
    "head + b'\\1' + bytes(60_000),": "Expecting value",
    "head + b'\\1' + b'\\xff' * 60_000,": "too large: 4294967295 bytes",
    "head + b'\\1' + ours.pack({}),": "the request is malformed",
    "head + b'\\1' + ours.pack({'files': [], 'limits': {}}, [b'1']),": "the request is malformed",
    "head + b'\\1' + ours.pack({'files': ['x'], 'limits': {}}, [b'1', b'']),": "the request is malformed",
    "head + b'\\1' + ours.pack({'files': [], 'limits': []}, [b'1', b'']),": "the request is malformed",
    "head + b'\\1' + ours.pack({'files': ['../x'], 'limits': {}}, [b'1', b'', b'']),": "a path below the folder",
    "head + b'\\1' + ours.pack({'files': [['x']], 'limits': {}}, [b'1', b'', b'']),": "must be a string",
    "head + b'\\1' + ours.pack({'files': ['\\ud800'], 'limits': {}}, [b'1', b'', b'']),": "surrogates",
    "head + b'\\1' + ours.pack({'files': ['a', 'a/b'], 'limits': {}}, [b''] * 4),": "files: ",
    "head + b'\\1' + (59_000).to_bytes(4, 'big') + b'[' * 59_000,": "nested too deeply",
    "head + b'\\1' + (59_000).to_bytes(4, 'big') + b'9' * 59_000,": "digits",
    "head + b'\\1' + ours.pack({'method': 'none', 'files': [], 'limits': {'uid': 0}}, [b'', b'']),": "unknown",
    "[head + b'\\0' + bytes(60_000)] * 300 + [head + b'\\1']": "more than 16,777,216 bytes",
}


async def test_a_grader_can_only_ask_for_runs(make: Make) -> None:
    grader = make(SPEAKS)
    with budget(cpu_s=30.0, mib=16.0):
        for packets, refused in PACKETS.items():
            item = {"packets": packets if packets.startswith("[") else f"({packets})", "refused": refused}
            assert (await grader.grade({}, item, "trace_1")).value == 3, packets


async def test_the_runs_of_a_grade_are_bounded(make: Make) -> None:
    source = (
        "from agent_rft import run_untrusted\n"
        "def grade(sample, item):\n    for number in range(300):\n        try: run_untrusted('1', limits={'x': 1})\n"
        "        except ValueError as error:\n            if '256 times' in str(error): return number"
    )
    grader = make(source)
    for _ in range(2):
        assert (await grader.grade({}, {}, "trace_1")).value == 256


async def test_without_a_sandbox_the_grade_fails_whatever_the_grader_makes_of_it(make: Make) -> None:
    source = (
        "from agent_rft import run_untrusted\n"
        "def grade(sample, item):\n    try: return run_untrusted('1').exit\n    except BaseException: return 0"
    )
    error = await failure(make(source, sandbox_method="none"))
    assert error.details["code"] == SERVER and error.details["python_grader_server_error_type"] == "no_sandbox"
    assert "unsandboxed_python" in error.message


async def test_a_mistake_in_a_call_is_the_grader_s_failure(make: Make) -> None:
    source = USES + "def grade(sample, item): return run_untrusted('1', limits=item).exit"
    for limits, says in (
        ({"wall_s": 1000}, "wall_s must be a number from 0.1 to 120"),
        ({"memory_bytes": True}, "memory_bytes must be"),
        ({"cpu": 1}, "'cpu' is unknown; use wall_s, cpu_s"),
    ):
        error = await failure(make(source), limits)
        assert error.details["code"] == RUNTIME and says in error.message
