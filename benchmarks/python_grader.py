"""Grades per second and core of the sandboxed python grader, against calling the grade function directly.

    python -m benchmarks.python_grader [--grades 300] [--runs 5]

Both sides compute the same grade of the same sample; the baseline is one thread. `python_grader_first` is the time to
the first grade, including the start of the sandbox, against executing the module in a running Python.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from agent_rft.actors.graders.kinds.python_grader import PythonRunner
from agent_rft.actors.runtime.cpu_cores import count_usable_cores
from agent_rft.actors.sandbox.sandbox_start import sandbox_report
from agent_rft.spec.graders import PythonGrader
from agent_rft.spec.operator.operator_config import OperatorConfig
from benchmarks.common import Figure, report, seconds

SOURCE = """
import difflib
import json
import re
import numpy as np

def grade(sample, item):
    words = re.findall(r"\\w+", sample["output_text"].lower())
    close = difflib.SequenceMatcher(None, words, item["reference"].lower().split()).ratio()
    return float(np.clip(close - 0.01 * len(json.loads(item["calls"])), 0, 1))
"""
SAMPLE = {"output_text": "The balance of the account is 1,234.50 euros after the last transfer. " * 5}
ITEM = {"reference": "the balance is 1,234.50 euros " * 5, "calls": '[{"name": "search"}, {"name": "read"}]'}


def direct() -> Any:
    space: dict[str, Any] = {}
    exec(SOURCE, space)
    return space["grade"]


async def measure(grades: int, runs: int) -> list[Figure]:
    grade = direct()
    cores = count_usable_cores()
    spec = PythonGrader(type="python", source=SOURCE)
    rates, firsts = [], []
    loop = asyncio.get_running_loop()
    for _ in range(runs):
        grader = PythonRunner(spec, "bench", OperatorConfig())
        started = loop.time()
        assert (await grader.grade(SAMPLE, ITEM, "trace")).value == grade(SAMPLE, ITEM)
        firsts.append((loop.time() - started, seconds(direct)))
        await asyncio.gather(*(grader.grade(SAMPLE, ITEM, "trace") for _ in range(8 * cores)))  # warm-up of all workers
        started = loop.time()
        await asyncio.gather(*(grader.grade(SAMPLE, ITEM, "trace") for _ in range(grades)))
        ours_s = loop.time() - started
        await grader.close()
        theirs_s = seconds(lambda: [grade(SAMPLE, ITEM) for _ in range(grades)])
        rates.append((grades / ours_s / cores, grades / theirs_s))
    return [
        Figure("python_grader_per_core", "grades/s", tuple(rates)),
        Figure("python_grader_first", "s", tuple(firsts)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grades", type=int, default=300)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    print(f"sandbox: {sandbox_report().method}")
    report(asyncio.run(measure(options.grades, options.runs)))


if __name__ == "__main__":
    main()
