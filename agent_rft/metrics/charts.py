"""The charts of the report; an entry of the list of metrics names the one that draws it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal


@dataclass(frozen=True, slots=True)
class Chart:
    """Metrics that are drawn together, in the report's section on the agent or on the training.

    `reads` ends a sentence that says how they are read: "From 3 to 2: " and this.
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
    "tool_calls": Chart("Tool calls per rollout", "fewer at the same grade make a faster agent", "calls", "area"),
    "tokens": Chart("Tokens per rollout", "fewer at the same grade make a faster agent", "tokens"),
    "turns": Chart("Turns per rollout", "each turn waits for the model and then for its slowest call", "turns"),
    "parallel": Chart(
        "Turns with parallel calls",
        "calls of one turn cost the time of the slowest",
        "of turns with calls",
        ticks=".0%",
    ),
    "rollout_time": Chart("Time per rollout", "what a user waits; busy is without queues and retries", "s"),
    "tool_latency": Chart("Latency of tools", "a slow tool makes every step slow", "s"),
    "grader_parts": Chart("Scores of the grader's parts", "a part that falls while the grade rises is the price of it"),
    "held_out": Chart(
        "Grades of the held-out grader", "if they fall while the grade rises, the grader is being fooled"
    ),
    "guards": Chart(
        "Rewards set by guards", "the more, the more often the model tries what must not pay", "rollouts", "bars"
    ),
    "call_errors": Chart(
        "Invalid and failed calls",
        "invalid calls are the model's mistakes, failed ones the tool's answers",
        "calls",
        "bars",
    ),
    "finish": Chart(
        "How rollouts ended", "only those with an answer were finished by the model itself", "rollouts", "bars"
    ),
    "discarded": _training("Discarded rollouts", "none is good; nothing is learned from them", "rollouts", "bars"),
    "groups": _training("Groups", "only those whose rollouts differ in reward teach anything", "groups", "bars"),
    "staleness": _training("Staleness", "how old the rollouts are that are learned from; it is bounded", "versions"),
    "sync": _training("Weight sync", "the time until the engines have the new weights", "s"),
    "gap": _training(
        "Engine against learner, same weights",
        "how far their probabilities differ; small and steady is good",
        "nats",
        scale="log",
    ),
    "step_time": _training(
        "Time per step", "mostly waiting means that more engines or faster tools would help", "s", "bars"
    ),
    "loss": _training("Loss", "it falls in supervised jobs; in others it is near zero and says little", scale="fitted"),
    "grad_norm": _training("Gradient norm", "single peaks are clipped; a steady rise is a sign of trouble"),
    "entropy": _training("Entropy", "it falls while the model decides; near zero it tries nothing new", "nats"),
    "limited": _training(
        "Truncated, clipped and diverged tokens", "a few percent are normal", "of trained tokens", ticks=".1%"
    ),
}
"""In the order of the report."""
