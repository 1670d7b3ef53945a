"""Settings of a job that earlier versions accepted, so that a job file that still has one gets the reason."""

from __future__ import annotations

from collections.abc import Mapping

REMOVED_SETTINGS: Mapping[str, str] = {
    "context_weight": "only the assistant's tokens are trained",
    "dispatchers": "their number follows from the engines' sequences and the tools' max_concurrency",
    "straggler_quorum": "the quorum is always 0.75",
}
"""What holds instead of each setting, by the setting's name. No current setting of a job has one of these names."""
