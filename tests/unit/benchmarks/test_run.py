"""The lists of benchmarks that are run: none is forgotten, and none is gone."""

from __future__ import annotations

from benchmarks.run import FULL, LEFT_OUT, QUICK, SMALLEST, find_benchmarks


def test_each_benchmark_has_a_smallest_size_or_a_reason_to_be_left_out() -> None:
    assert not SMALLEST.keys() & LEFT_OUT.keys()
    assert SMALLEST.keys() | LEFT_OUT.keys() == find_benchmarks()


def test_make_bench_full_runs_each_benchmark_that_is_not_left_out() -> None:
    assert {name for name, *_ in FULL} == SMALLEST.keys()
    assert {name for name, *_ in QUICK} <= SMALLEST.keys()
