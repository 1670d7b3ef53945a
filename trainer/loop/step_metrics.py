"""The metrics of one reinforcement step: its rollouts, what was trained and how fresh it was, what the sync cost."""

from __future__ import annotations

import math

from trainer.loop.buffer import Batch
from trainer.loop.checkpoint import LoopState
from trainer.metrics import rollout_metrics, slow_rows_ratio
from trainer.types import SyncReport


def step_metrics(
    batch: Batch, state: LoopState, total_steps: int, trained_version: int, sync: SyncReport | None
) -> dict[str, float]:
    """Of the step that led to `state`, taken from policy `trained_version`, by the names of `trainer.metrics`."""
    groups = batch.all_groups
    metrics = rollout_metrics([r for g in groups for r in g.rollouts], [d for g in groups for d in g.discarded])
    staleness = [trained_version - group.oldest_version for group in batch.trained]
    metrics |= {
        "step": float(state.step),
        "total_steps": float(total_steps),
        "version": float(state.version),
        "groups_trained": float(len(batch.trained)),
        "groups_lost": float(batch.num_lost),
        "staleness_mean": sum(staleness) / len(staleness),
        "staleness_max": float(max(staleness)),
    }
    if not math.isnan(ratio := slow_rows_ratio(groups)):
        metrics["slow_rows_ratio"] = ratio
    metrics |= {f"groups_without_signal/{kind}": float(n) for kind, n in batch.without_signal.items()}
    if sync is not None:
        metrics |= {
            "sync_pause_s": sync.pause_s,
            "sync_total_s": sync.total_s,
            "sync_bytes": float(sync.num_bytes),
            "canary_gap": sync.canary_gap,
        }
    return metrics
