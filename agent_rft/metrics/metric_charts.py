"""Charts of the report, each with its unit and an explanation. The console uses the same titles and explanations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of one or more metrics. `section` is the report's section that contains the chart.

    The report shows `explanation` after the metric's change, as in "From 3 to 2: a lower number means ...".
    """

    title: str
    explanation: str
    unit: str = ""
    kind: Literal["lines", "area", "bars"] = "lines"
    tick_format: str = ""
    scale: Literal["from zero", "fitted", "log"] = "from zero"
    section: Literal["agent", "training"] = "agent"


_training_chart = partial(Chart, section="training")

CHARTS: dict[str, Chart] = {
    "tool_calls": Chart("Tool calls per rollout", "fewer calls at the same grade mean a faster agent", "calls", "area"),
    "tokens": Chart(
        "Tokens per rollout",
        "fewer sampled tokens at the same grade mean a faster agent; the curve of all tokens also counts prompts and "
        "tool results",
        "tokens",
    ),
    "turns": Chart("Turns per rollout", "each turn waits for the model and then for its slowest call", "turns"),
    "parallel": Chart(
        "Turns with parallel calls",
        "parallel calls take only as long as the slowest call",
        "of turns with calls",
        tick_format=".0%",
    ),
    "rollout_time": Chart(
        "Time per rollout",
        "the shorter the rollouts, the sooner a user gets an answer; the curve of the busy time excludes queueing, "
        "retries and pauses",
        "s",
    ),
    "tool_latency": Chart("Latency of tools", "a slow tool makes every step slow", "s"),
    "grader_parts": Chart(
        "Scores of the grader's parts",
        "if the score of a part falls while the grade rises, the model neglects this part",
    ),
    "held_out": Chart(
        "Grades of the held-out grader",
        "if these grades fall while the grades of the job's own grader rise, the model exploits a loophole in the "
        "job's grader",
    ),
    "guards": Chart(
        "Rewards set by guards",
        "an increase means that the model shows more behavior that must not be rewarded",
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
        "the reason answer means that the model ended the rollout; all other reasons are limits",
        "rollouts",
        "bars",
    ),
    "discarded": _training_chart(
        "Discarded rollouts",
        "ideally zero; a discarded rollout has no grade, so the model learns nothing from it",
        "rollouts",
        "bars",
    ),
    "groups": _training_chart(
        "Groups", "the model learns only from groups with signal, whose rewards differ", "groups", "bars"
    ),
    "staleness": _training_chart(
        "Staleness",
        "lag of the sampled tokens behind the learner, in policy versions; at most max_staleness",
        "versions",
    ),
    "sync": _training_chart("Weight sync", "the time until the engines have the new weights", "s"),
    "gap": _training_chart(
        "Log-probability gap between engine and learner",
        "difference between the log-probabilities of engine and learner with the same weights; it should be small "
        "and steady",
        "nats",
        scale="log",
    ),
    "step_time": _training_chart(
        "Time per step", "if most of a step is waiting, more engines or faster tools would help", "s", "bars"
    ),
    "loss": _training_chart(
        "Loss",
        "the loss falls in supervised jobs; in reinforcement jobs it is near zero and means little",
        scale="fitted",
    ),
    "grad_norm": _training_chart(
        "Gradient norm", "gradient clipping limits single peaks; a steady rise is a sign of instability"
    ),
    "entropy": _training_chart(
        "Entropy",
        "the entropy falls as the model becomes more certain; a model with an entropy near zero no longer explores",
        "nats",
    ),
    "limited": _training_chart(
        "Capped, clipped and diverged tokens", "a few percent are normal", "of trained tokens", tick_format=".1%"
    ),
}
"""Charts by key, in the order of the report."""
