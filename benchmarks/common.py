"""The report of every benchmark: one JSON line per figure for programs, and a table with both sides of each ratio."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any


class NotPossible(Exception):
    """This machine lacks what a measurement needs; says what."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A measurement against a baseline. `value`, `baseline` and `ratio` are medians of `runs`, pairs of both sides."""

    name: str
    unit: str
    runs: tuple[tuple[float, float], ...]

    @property
    def value(self) -> float:
        return median(ours for ours, _ in self.runs)

    @property
    def baseline(self) -> float:
        return median(theirs for _, theirs in self.runs)

    @property
    def ratio(self) -> float:
        return median(ours / theirs for ours, theirs in self.runs)

    @property
    def spread(self) -> tuple[float, float]:
        ratios = sorted(ours / theirs for ours, theirs in self.runs)
        return ratios[0], ratios[-1]


def in_turn(ours: Callable[[], float], baseline: Callable[[], float], times: int) -> tuple[tuple[float, float], ...]:
    """Pairs of both results, measured alternately so that other load on the machine affects both sides equally."""
    return tuple((ours(), baseline()) for _ in range(times))


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def copy_rows(source: Path, target: Path, max_rows: int | None) -> None:
    """Copy the first `max_rows` lines of a JSONL file; None: all lines."""
    with source.open() as file:
        target.write_text("".join(islice(file, max_rows)))


def print_figure(name: str, value: float, unit: str, **details: Any) -> None:
    """Print the JSON line of a figure. `details` are further fields, such as a baseline."""
    print(json.dumps({"name": name, "value": value, "unit": unit} | details), flush=True)


def impossible(why: str) -> None:
    """Print the JSON line of a measurement that is not possible on this machine."""
    print(json.dumps({"not_possible": why}), flush=True)


def report(figures: Sequence[Figure]) -> None:
    """Print the JSON lines, then the table, then the machine's load."""
    for figure in figures:
        sides = {"baseline": figure.baseline, "ratio": figure.ratio, "runs": figure.runs}
        print_figure(figure.name, figure.value, figure.unit, **sides)
    print(f"\n{'figure':36}{'ours':>14}{'baseline':>14}  {'unit':12}{'ratio':>8}  spread")
    for figure in figures:
        low, high = figure.spread
        print(
            f"{figure.name:36}{figure.value:14,.4g}{figure.baseline:14,.4g}  {figure.unit:12}{figure.ratio:8.3f}"
            f"  {low:.3f}..{high:.3f} ({len(figure.runs)} runs)"
        )
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
