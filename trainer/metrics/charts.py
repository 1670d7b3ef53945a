"""The charts of the report; an entry of the list of metrics names the one that draws it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal


@dataclass(frozen=True, slots=True)
class Chart:
    """Metrics that are drawn together, in the report's section on the agent or on the training."""

    title: str
    unit: str = ""
    kind: Literal["lines", "area", "bars"] = "lines"
    ticks: str = ""
    scale: Literal["from zero", "fitted", "log"] = "from zero"
    section: Literal["agent", "training"] = "agent"


_training = partial(Chart, section="training")

CHARTS: dict[str, Chart] = {
    "tool_calls": Chart("Tool calls per rollout", "calls", "area"),
    "tokens": Chart("Tokens per rollout", "tokens"),
    "turns": Chart("Turns per rollout", "turns"),
    "parallel": Chart("Turns with parallel calls", "of turns with calls", ticks=".0%"),
    "rollout_time": Chart("Time per rollout", "s"),
    "tool_latency": Chart("Latency of tools", "s"),
    "grader_parts": Chart("Scores of the grader's parts"),
    "held_out": Chart("Grades of the held-out grader"),
    "guards": Chart("Rewards set by guards", "rollouts", "bars"),
    "call_errors": Chart("Invalid and failed calls", "calls", "bars"),
    "finish": Chart("How rollouts ended", "rollouts", "bars"),
    "discarded": _training("Discarded rollouts", "rollouts", "bars"),
    "groups": _training("Groups", "groups", "bars"),
    "staleness": _training("Staleness", "versions"),
    "sync": _training("Weight sync", "s"),
    "gap": _training("Engine against learner, same weights", "nats", scale="log"),
    "step_time": _training("Time per step", "s", "bars"),
    "loss": _training("Loss", scale="fitted"),
    "grad_norm": _training("Gradient norm"),
    "entropy": _training("Entropy", "nats"),
    "limited": _training("Truncated, clipped and diverged tokens", "of trained tokens", ticks=".1%"),
}
"""In the order of the report."""
