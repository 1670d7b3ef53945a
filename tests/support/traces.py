"""Recorded rollouts of a run, as a list."""

from __future__ import annotations

from agent_rft.cluster.records.rollout_filter import RolloutFilter
from agent_rft.cluster.records.rollout_index import Order
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.views.traces import Trace, find_traces, newest_file


def select_traces(
    run: RunFolder,
    *,
    name: str | None = None,
    row: str | None = None,
    trace: str | None = None,
    worst: int | None = None,
    best: int | None = None,
) -> list[Trace]:
    """Traces of the file `name` in its order, or the `worst` or `best` by grade.

    `row` is a row's id or line number, `trace` the start of a trace id; without `name`, both are searched in all files.
    With none of the three, the traces are those of the newest file. Discarded rollouts have no grade and are neither
    among the worst nor the best.

    Raises:
        UserError: There are no rollouts, or none of this name, row or trace.
    """
    wanted = RolloutFilter(name=name, row=row, trace=trace)
    if wanted == RolloutFilter():
        wanted = RolloutFilter(name=newest_file(run))
    order: Order = "oldest" if worst is None and best is None else "worst" if best is None else "best"
    return list(find_traces(run, wanted, order, worst if best is None else best))
