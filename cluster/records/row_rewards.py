"""Distribution of rewards per row, computed from the index of a run's rollouts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agent_rft.cluster.records.rollout_filter import RolloutFilter
from agent_rft.cluster.records.rollout_index import JOIN_SQL, RolloutIndex, UnknownValue

BINS = 10
RowOrder = Literal["worst", "best", "widest"]


@dataclass(slots=True)
class RowRewards:
    """Distribution of the rewards of one row.

    Attributes:
        bins: Number of rewards in each tenth of the range.
        range: Lowest and highest reward over all selected rows, so that all rows have the same bins.
        num_lost: Number of rollouts without a grade.
    """

    row_id: str
    range: tuple[float, float]
    bins: list[int] = field(default_factory=lambda: [0] * BINS)
    num_rollouts: int = 0
    num_lost: int = 0
    total: float = 0.0
    low: float | None = None
    high: float | None = None

    @property
    def mean(self) -> float | None:
        return self.total / self.num_rollouts if self.num_rollouts else None

    @property
    def spread(self) -> float:
        return 0.0 if self.low is None or self.high is None else self.high - self.low


def compute_row_rewards(index: RolloutIndex, requested: RolloutFilter, order: RowOrder) -> list[RowRewards]:
    """Return the reward distribution of each row, over the requested rollouts. Rows without any grade come last.

    The order `widest` starts with the rows whose rewards differ most, because a model learns most from these rows.
    """
    condition, values = requested.to_sql()
    with index.connect() as db:
        low, high = db.execute(f"SELECT min(r.reward), max(r.reward) {JOIN_SQL} {condition}", values).fetchone()
        low, high = (0.0, 0.0) if low is None else (low, high)
        scale = BINS / (high - low) if high > low else 0.0
        counted = db.execute(
            f"SELECT r.row_id, min(CAST((r.reward - ?) * ? AS INTEGER), ?) AS bin, count(*), sum(r.reward), "
            f"min(r.reward), max(r.reward) {JOIN_SQL} {condition} GROUP BY r.row_id, bin ORDER BY r.row_id, bin",
            [low, scale, BINS - 1, *values],
        )
        rows: dict[str, RowRewards] = {}
        for row_id, bin, count, total, low_in_bin, high_in_bin in counted:
            row = rows.setdefault(row_id, RowRewards(row_id, (low, high)))
            if bin is None:
                row.num_lost += count
                continue
            row.bins[bin] += count
            row.num_rollouts, row.total = row.num_rollouts + count, row.total + total
            row.low, row.high = low_in_bin if row.low is None else row.low, high_in_bin  # bins are in order
    return sorted(rows.values(), key=lambda row: (row.mean is None, _sort_value(row, order), *_line_key(row)))


def rows_after(rows: list[RowRewards], after: str | None) -> list[RowRewards]:
    """Return the rows after the row with the id `after`, or all rows if `after` is None.

    Raises:
        UnknownValue: No row has this id.
    """
    if after is None:
        return rows
    for number, row in enumerate(rows, start=1):
        if row.row_id == after:
            return rows[number:]
    raise UnknownValue(f"there are no rollouts of the row {after!r}; start again from the first page", "after")


def _sort_value(row: RowRewards, order: RowOrder) -> float:
    mean = row.mean or 0.0
    return {"worst": mean, "best": -mean, "widest": -row.spread}[order]


def _line_key(row: RowRewards) -> tuple[int, str]:
    """Return a sort key by line number, so that line 2 comes before line 10."""
    return len(row.row_id.partition("-")[0]), row.row_id
