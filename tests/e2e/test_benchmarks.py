"""Each benchmark at its smallest size: it ends with exit code 0, and each figure is a finite number."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from math import isfinite
from typing import Any

import pytest

from benchmarks.run import LEFT_OUT, SMALLEST, find_benchmarks
from tests.e2e.command import marked, processes_left
from tests.support.paths import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


def numbers_in(value: Any) -> Iterator[float]:
    """The numbers in a JSON value, at any depth."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from numbers_in(item)
    elif isinstance(value, int | float):
        yield value


@pytest.mark.parametrize("name", sorted(find_benchmarks() - LEFT_OUT.keys()))
def test_a_benchmark_prints_finite_figures_at_its_smallest_size(name: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", *SMALLEST[name]]
    ended = subprocess.run(command, cwd=ROOT, env=marked(os.environ), stdout=subprocess.PIPE, text=True)
    print(ended.stdout)
    assert ended.returncode == 0
    figures = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert figures
    for figure in figures:
        assert {"name", "value", "unit"} <= figure.keys()
        assert all(isfinite(number) for number in numbers_in(figure)), figure
    assert processes_left() == []
