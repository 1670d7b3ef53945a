"""Removes old rollout files of a run that has more than its operator keeps.

A resume needs none of them: it has the journal and the checkpoints. Kept all the same are the rollouts of steps after
the last checkpoint, of tests, and of the first and the last validation, which the report compares.
"""

from __future__ import annotations

from pathlib import Path

from agent_rft.cluster.records.rollout_index import RolloutFile, RolloutIndex
from agent_rft.rows.rollout_files import ROLLOUTS_SUFFIX
from agent_rft.spec.operator.config import RecordLimits
from agent_rft.trainer.loop.checkpoint import latest_checkpoint


def trim(run: Path, index: RolloutIndex, limits: RecordLimits) -> list[str]:
    """Remove the oldest files until the rest is within the limits, as far as it may be; returns their names.

    Raises:
        OSError: A file could not be removed.
        sqlite3.Error: The index could not be read.
    """
    if limits.max_rollouts is None and limits.max_rollout_bytes is None:
        return []
    index.catch_up()
    files = index.files()
    count, num_bytes = sum(f.num_rollouts for f in files), sum(f.num_bytes for f in files)
    removed = []
    for file in _removable(run, files):
        if count <= (limits.max_rollouts or count) and num_bytes <= (limits.max_rollout_bytes or num_bytes):
            break
        (run / "rollouts" / (file.name + ROLLOUTS_SUFFIX)).unlink(missing_ok=True)
        count, num_bytes = count - file.num_rollouts, num_bytes - file.num_bytes
        removed.append(file.name)
    index.catch_up()
    return removed


def _removable(run: Path, files: list[RolloutFile]) -> list[RolloutFile]:
    saved = latest_checkpoint(run / "checkpoints")
    step = 0 if saved is None else saved[1].step
    validations = sorted(file.name for file in files if file.name.startswith("validation-"))
    kept = {*validations[:1], *validations[-1:]}
    return [file for file in files if file.step is not None and file.step <= step and file.name not in kept]
