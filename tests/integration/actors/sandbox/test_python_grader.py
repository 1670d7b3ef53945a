"""The python grader: grades like a function call, and misbehavior costs only its own grade."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import psutil
import pytest

from agent_rft.actors.graders.kinds.python_grader import PythonRunner
from agent_rft.actors.sandbox.sandbox_config import PROTECTIONS, SandboxLimits
from agent_rft.actors.sandbox.sandbox_start import sandbox_report
from tests.support.graders import RUNTIME, SERVER, Make, failure, python_graders
from tests.support.paths import ROOT
from tests.support.python_attacks import until
from tests.support.sandboxes import SANDBOXES, attacked


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    async with python_graders(timeout_s=60.0) as made:
        yield made


async def value(
    grader: PythonRunner, sample: dict[str, Any] | None = None, item: dict[str, Any] | None = None
) -> float:
    return (await grader.grade(sample or {}, item or {}, "trace_1")).value


def running(processes: list[psutil.Process]) -> list[psutil.Process]:
    """The processes that still run; zombies are left to their parents."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                found.append(process)
    return found


# -- grades ------------------------------------------------------------------------------------------------------------


async def test_grade_gets_sample_and_item_and_returns_the_grade(make: Make) -> None:
    grader = make(
        "import re\ndef grade(sample, item):\n    return len(re.findall(item['é'], sample['output_text'])) / 4"
    )
    assert await value(grader, {"output_text": "aXbXc"}, {"é": "X"}) == 0.5


async def test_grade_must_return_a_finite_number_which_may_be_numpy_s(make: Make) -> None:
    source = "import math\ndef grade(sample, item):\n    import numpy as np\n    return eval(item['e'])"
    grader = make(source)
    for good, number in (("3", 3.0), ("np.float32(0.5)", 0.5), ("np.int64(2)", 2.0), ("np.mean([1, 2])", 1.5)):
        assert await value(grader, item={"e": good}) == number
    for bad in ("True", "np.bool_(1)", "None", "'1'", "math.nan", "-math.inf", "np.nan", "10**400", "[1]", "1j"):
        error = await failure(grader, {"e": bad})
        assert error.details["code"] == RUNTIME and "grade returned" in error.message, bad


@pytest.mark.parametrize(("train", "expected"), [(True, True), (False, False), (None, None), (0, None), ("no", None)])
async def test_grade_may_return_a_score_that_is_not_trained_on(
    make: Make, train: object, expected: bool | None
) -> None:
    grader = make("def grade(sample, item): return {'score': 0.5, 'train': item['train']}")
    if expected is None:
        error = await failure(grader, {"train": train})
        assert error.details["code"] == RUNTIME and "a dict in which `train` is" in error.message
    else:
        grade = await grader.grade({}, {"train": train}, "trace_1")
        assert (grade.value, grade.train) == (0.5, expected)


async def test_a_missing_output_json_is_reported_with_its_fix_and_path(make: Make) -> None:
    grader = make(
        "import copy, pickle\n"
        "def grade(sample, item):\n"
        "    assert sample.get('output_json') is None and type(copy.deepcopy(sample)) is dict\n"
        "    assert pickle.loads(pickle.dumps(sample)) == sample\n"
        "    return sample[item['key']]['total']"
    )
    error = await failure(grader, {"key": "output_json"})
    assert (error.details["code"], error.details["path"]) == (RUNTIME, "sample.output_json")
    assert error.message == (
        "grader 'mine' failed: MissingKey: the sample has no 'output_json': the answer is not JSON, or the job has no "
        "response_format. Read it with sample.get('output_json')"
    )
    error = await failure(grader, {"key": "output"})
    assert "path" not in error.details and "the sample has no 'output'. Read" in error.message
    source = "def grade(sample, item):\n  try:\n    return sample['output_json']\n  except KeyError:\n    return 0.25"
    assert await value(make(source)) == 0.25


async def test_a_grade_outside_of_the_range_is_a_failure_and_never_clipped(make: Make) -> None:
    grader = make("def grade(sample, item): return item['grade']", range=(0, 1))
    assert [await value(grader, item={"grade": grade}) for grade in (0, 0.5, 1)] == [0, 0.5, 1]
    for grade in (1.01, -1, 1e300):
        error = await failure(grader, {"grade": grade})
        assert error.details["code"] == RUNTIME and f"{grade:g}, outside the grader's range of 0 to 1" in error.message


async def test_the_traceback_of_the_grader_s_own_lines_is_in_the_details(make: Make) -> None:
    grader = make("def half(x):\n    return x / 0  # boom\n\ndef grade(sample, item):\n    return half(1)\n")
    error = await failure(grader)
    details = error.details["python_grader_runtime_error_details"]
    assert error.message == "grader 'mine' failed: ZeroDivisionError: division by zero"
    assert 'File "grader.py", line 2, in half' in details and "return x / 0  # boom" in details
    assert "worker" not in details


async def test_a_module_that_fails_fails_each_grade_with_its_traceback(make: Make) -> None:
    grader = make("import surely_not_installed\ndef grade(sample, item):\n    return 1")
    for _ in range(2):
        details = (await failure(grader)).details["python_grader_runtime_error_details"]
        assert "line 1" in details and "surely_not_installed" in details


async def test_a_module_that_never_ends_fails_the_grade_at_the_start_deadline(make: Make) -> None:
    error = await failure(make("while True: pass\ndef grade(s, i): return 1", start_s=1.0))
    assert error.details["code"] == SERVER and error.details["python_grader_server_error_type"] == "timeout"


async def test_processes_that_a_module_started_are_killed_before_the_first_grade(make: Make) -> None:
    source = (
        "import os, subprocess, sys\nos.fork()\nif os.fork() == 0:\n    while True: pass\n"
        "def grade(sample, item):\n    os.kill(-1, 0)\n    return 1"
    )
    assert "ProcessLookupError" in (await failure(make(source))).message


async def test_each_grade_gets_the_module_as_its_body_left_it(make: Make) -> None:
    grader = make("seen = []\ndef grade(sample, item):\n    seen.append(1)\n    return len(seen)")
    assert [await value(grader) for _ in range(3)] == [1, 1, 1]


async def test_large_and_concurrent_grades_get_their_own_answers(make: Make) -> None:
    grader = make("def grade(sample, item): return len(sample['t']) + item['n']", num_workers=2)
    text = "x" * 3_000_000
    values = await asyncio.gather(*(value(grader, {"t": text if n == 7 else ""}, {"n": n}) for n in range(40)))
    assert values == [n + (3_000_000 if n == 7 else 0) for n in range(40)]


# -- lost workers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["launcher", "worker"])
async def test_a_killed_worker_costs_its_grade_and_is_replaced(make: Make, victim: str) -> None:
    grader = make("import time\ndef grade(sample, item):\n    time.sleep(item['s'])\n    return 1")
    before = set(psutil.Process().children())
    assert await value(grader, item={"s": 0}) == 1
    (launcher,) = set(psutil.Process().children()) - before
    runner, worker = launcher.children()
    slow = asyncio.create_task(failure(grader, {"s": 1000}))
    await until(lambda: bool(worker.children()))
    family = [launcher, runner, worker, *worker.children()]
    (launcher if victim == "launcher" else worker).kill()
    assert (await slow).details["python_grader_server_error_type"] == "worker_lost"
    await until(lambda: grader.num_workers == 1)
    assert await value(grader, item={"s": 0}) == 1
    await until(lambda: not running(family))


async def test_workers_that_die_between_grades_cost_none_and_are_replaced_at_the_next_one(make: Make) -> None:
    grader = make("def grade(sample, item):\n    return 1", num_workers=2)
    before = set(psutil.Process().children())
    assert [await value(grader) for _ in range(2)] == [1, 1]
    await until(lambda: grader.num_workers == 2)
    for launcher in set(psutil.Process().children()) - before:
        launcher.kill()
    await until(lambda: grader.num_workers == 0)
    assert await value(grader) == 1
    await until(lambda: grader.num_workers == 2)


async def test_a_cancelled_grade_kills_its_worker_which_is_replaced(make: Make) -> None:
    grader = make("import time\ndef grade(sample, item):\n    time.sleep(item['s'])\n    return 1")
    assert await value(grader, item={"s": 0}) == 1
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await value(grader, item={"s": 1000})
    await until(lambda: grader.num_workers == 1)
    assert await value(grader, item={"s": 0}) == 1


async def test_no_process_outlives_a_killed_owner() -> None:
    script = (
        "import asyncio\nfrom agent_rft.actors.graders.kinds.python_grader import *\n"
        "spec = PythonGrader(type='python', source='def grade(s, i):\\n    while True: pass')\n"
        "grader = PythonRunner(spec, 'g', OperatorConfig(), sandbox_method='namespaces', num_workers=1)\n"
        "asyncio.run(grader.grade({}, {}, 't'))"
    )
    owner = psutil.Popen([sys.executable, "-c", script], cwd=ROOT)
    try:
        await until(lambda: len(owner.children(recursive=True)) == 4)  # launcher, runner, worker, fork
        family = owner.children(recursive=True)
    finally:
        owner.kill()
        owner.wait()
    await until(lambda: not running(family))


# -- hostile graders ---------------------------------------------------------------------------------------------------

HARMLESS: dict[str, Any] = {"value": 1.0}
"""The attack was blocked, or does nothing harmful."""
ATTACKS: dict[str, dict[str, str] | dict[str, float]] = {
    "uses_what_it_may": HARMLESS,
    "reads_secrets": HARMLESS,
    "writes_outside": HARMLESS,
    "opens_sockets": HARMLESS,
    "calls_the_kernel": HARMLESS,
    "changes_limits": HARMLESS,
    "imports_our_code": HARMLESS,
    "kills_everyone": HARMLESS,
    "starts_threads": HARMLESS,
    "leaves_a_daemon": HARMLESS,
    "plays_with_links": HARMLESS,
    "fills_the_scratch_folder": HARMLESS,
    "prints_a_gigabyte": HARMLESS,
    "forges_a_result": {"code": RUNTIME, "message": "something other than the grade"},
    "forges_from_a_child": {"code": RUNTIME, "message": "something other than the grade"},
    "closes_everything": {"code": RUNTIME, "message": "without a grade"},
    "exits": {"code": RUNTIME, "message": "SystemExit: 3"},
    "exits_at_once": {"code": RUNTIME, "message": "exit status 3"},
    "recurses": {"code": RUNTIME, "message": "RecursionError"},
    "overflows_the_stack": {"code": RUNTIME, "message": "SIGSEGV"},
    "returns_much": {"code": RUNTIME, "message": "type str"},
    "returns_a_huge_number": {"code": RUNTIME, "message": "finite"},
    "raises_much": {"code": RUNTIME, "message": "xxx"},
    "takes_memory": {"code": RUNTIME, "message": "MemoryError"},
    "takes_memory_in_many_processes": {"code": RUNTIME, "message": "768 MiB of memory"},
    "never_returns": {"code": SERVER, "message": "no grade within 1 s"},
    "never_gives_in": {"code": SERVER, "message": "no grade within 1 s"},
    "fork_bomb": {"code": SERVER, "message": "no grade within 1 s"},
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_hostile_grader_is_blocked_and_costs_only_its_own_grade(sandbox: str, attack: str) -> None:
    outcome = attacked(tuple(ATTACKS))[sandbox].result()[attack]
    expected = ATTACKS[attack]
    if expected is HARMLESS:
        assert outcome.get("value") == 1.0, outcome
    else:
        assert outcome["code"] == expected["code"] and expected["message"] in outcome["message"]
        assert len(json.dumps(outcome)) < 10_000
    assert outcome["beside"] == [0.25, 0.25]


# -- which sandbox -----------------------------------------------------------------------------------------------------


def test_the_report_lists_the_effective_protections() -> None:
    report = sandbox_report()
    assert report.method in ("bubblewrap", "namespaces")
    assert all(report.protections[name] for name in PROTECTIONS)
    assert ("namespaces" in report.failures) == (report.method == "bubblewrap")  # ours is tried first


async def test_unsandboxed_graders_still_have_a_deadline_limits_and_an_empty_environment(make: Make) -> None:
    source = (
        "import os, subprocess, sys\ndef grade(sample, item):\n"
        "    if item['what'] == 'env': return len(set(os.environ) & {'VERY_SECRET', 'USER', 'PWD', 'LOGNAME'})\n"
        "    if item['what'] == 'memory': return len(bytearray(1 << 40))\n"
        "    open('left', 'w').close()\n"
        "    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], start_new_session=True)\n"
        "    while True: pass"
    )
    grader = make(source, sandbox_method="none", timeout_s=2.0, limits=SandboxLimits(memory_bytes=1 << 30))
    before = set(psutil.Process().children())
    assert await value(grader, item={"what": "env"}) == 0
    assert (await failure(grader, {"what": "memory"})).message.endswith("MemoryError")
    (launcher,) = set(psutil.Process().children()) - before
    slow = asyncio.create_task(failure(grader, {"what": "endless"}))
    await until(lambda: len(launcher.children(recursive=True)) == 3)
    family = launcher.children(recursive=True)
    assert (await slow).details["python_grader_server_error_type"] == "timeout"
    await until(lambda: not running(family))
