"""Charts of the report, each with its metrics' common unit and explanation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of one or more metrics, in the report's section on the agent or on the training.

    `reads` completes a sentence that explains how to read the chart: "From 3 to 2: " and `reads`.
    """

    title: str
    reads: str
    unit: str = ""
    kind: Literal["lines", "area", "bars"] = "lines"
    ticks: str = ""
    scale: Literal["from zero", "fitted", "log"] = "from zero"
    section: Literal["agent", "training"] = "agent"


_training = partial(Chart, section="training")

CHARTS: dict[str, Chart] = {
    "tool_calls": Chart(
        "Tool calls per rollout", "a lower number at the same grade means a faster agent", "calls", "area"
    ),
    "tokens": Chart("Tokens per rollout", "a lower number at the same grade means a faster agent", "tokens"),
    "turns": Chart("Turns per rollout", "each turn waits for the model and then for its slowest call", "turns"),
    "parallel": Chart(
        "Turns with parallel calls",
        "parallel calls take only as long as the slowest of them",
        "of turns with calls",
        ticks=".0%",
    ),
    "rollout_time": Chart("Time per rollout", "a user waits this long; busy time excludes queues and retries", "s"),
    "tool_latency": Chart("Latency of tools", "a slow tool makes every step slow", "s"),
    "grader_parts": Chart(
        "Scores of the grader's parts", "a part that falls while the grade rises is being traded for it"
    ),
    "held_out": Chart(
        "Grades of the held-out grader", "if they fall while the grade rises, the grader is being hacked"
    ),
    "guards": Chart(
        "Rewards set by guards",
        "if they increase, the model tries more often what must not be rewarded",
        "rollouts",
        "bars",
    ),
    "call_errors": Chart(
        "Invalid and failed calls",
        "invalid calls are errors of the model, failed calls are error responses of the tool",
        "calls",
        "bars",
    ),
    "finish": Chart(
        "Rollouts by finish reason",
        "only rollouts with an answer were finished by the model itself",
        "rollouts",
        "bars",
    ),
    "discarded": _training("Discarded rollouts", "ideally zero; nothing is learned from them", "rollouts", "bars"),
    "groups": _training(
        "Groups", "only groups whose rollouts differ in reward contribute to learning", "groups", "bars"
    ),
    "staleness": _training("Staleness", "age of the rollouts that are trained on; it is bounded", "versions"),
    "sync": _training("Weight sync", "the time until the engines have the new weights", "s"),
    "gap": _training(
        "Log-probability gap of engine and learner",
        "difference of their log-probabilities with the same weights; small and steady is good",
        "nats",
        scale="log",
    ),
    "step_time": _training(
        "Time per step", "if most of it is waiting, more engines or faster tools would help", "s", "bars"
    ),
    "loss": _training(
        "Loss", "it falls in supervised jobs; in reinforcement jobs it is near zero and means little", scale="fitted"
    ),
    "grad_norm": _training("Gradient norm", "single peaks are clipped; a steady rise is a sign of instability"),
    "entropy": _training("Entropy", "it falls as the model becomes more certain; near zero it stops exploring", "nats"),
    "limited": _training(
        "Capped, clipped and diverged tokens", "a few percent are normal", "of trained tokens", ticks=".1%"
    ),
}
"""Charts by key, in the order of the report."""
