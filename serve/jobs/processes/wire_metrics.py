"""Conversion of a job's metrics to the formats of the API: metrics events, checkpoints and the result file.

All metrics are included under their names in `agent_rft.metrics`. Unmeasured metrics are missing or null, not 0.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from agent_rft.metrics import METRICS

SHOWN = {name: metric.message for name, metric in METRICS.items() if metric.message}
"""Labels for event messages, by metric name."""
FIRST_COLUMNS = ("step", *(name for name, metric in METRICS.items() if metric.in_result_columns))
CHECKPOINT_KEYS = (
    *("step", "train_mean_reward", "full_valid_mean_reward", "full_valid_missing_rollouts"),
    *("train_loss", "full_valid_loss"),
)
TIMES = (
    ("sampling", "time_wait_s"),
    ("training", "time_learn_s"),
    ("eval", "time_eval_s"),
    ("full_iteration", "time_step_s"),
)


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Return the message of a metrics event, such as `Step 10/20, train mean reward=0.42, ...`."""
    finite = _finite_values(metrics)
    shown = [f"{label}={finite[name]:.4g}" for name, label in SHOWN.items() if name in finite]
    return ", ".join([f"Step {metrics['step']:.0f}/{metrics['total_steps']:.0f}", *shown])


def make_wire_data(metrics: Mapping[str, float]) -> dict[str, Any]:
    """Return the data of a metrics event: all finite metrics by name, then the fields of the API."""
    m = _finite_values(metrics)
    rollouts = m.get("rollouts_graded")
    sampled = m.get("completion_tokens_mean")
    judges = _values_by_name(m, "judge_tokens/", "")
    return {
        **m,
        "step": int(m["step"]),
        "total_steps": int(m["total_steps"]),
        "train_loss": m.get("loss"),
        "train_mean_reward": m.get("train_mean_reward"),
        "full_valid_mean_reward": m.get("full_valid_mean_reward"),
        "reasoning_tokens_mean": m.get("reasoning_tokens_mean"),
        "completion_tokens_mean": sampled,
        "valid_reasoning_tokens_mean": m.get("valid_reasoning_tokens_mean"),
        "mean_unresponsive_rewards": m.get("mean_unresponsive_rewards"),
        "scores": {
            "train_reward_mean": m.get("train_mean_reward"),
            "valid_reward_mean": m.get("full_valid_mean_reward"),
            "graders": [
                {"name": name, "train_reward_mean": value}
                for name, value in _values_by_name(m, "grader/", "/score_mean").items()
            ],
        },
        "usage": {
            "samples": {
                "rollouts": rollouts,
                "completion_tokens": None if rollouts is None or sampled is None else round(rollouts * sampled),
            },
            "graders": [{"model": model, "tokens": tokens} for model, tokens in judges.items()],
        },
        "errors": {"graders": m.get("discarded/grader_failed", 0.0)},
        "timing": {
            "step": {name: m.get(ours) for name, ours in TIMES},
            "graders": [{"name": "grader", "mean_s": m["grade_latency_s_mean"]}] if "grade_latency_s_mean" in m else [],
        },
        "model_graders_token_usage": judges,
        "tools": _tool_metrics(m),
    }


def checkpoint_metrics(data: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a checkpoint, a subset of `data`.

    `data` is the result of `make_wire_data` for the checkpoint's step.
    """
    return {key: float(data[key]) for key in CHECKPOINT_KEYS if data.get(key) is not None}


def result_csv(steps: Sequence[Mapping[str, float]]) -> bytes:
    """Return the content of a job's result file: CSV with one line per step, and an empty cell for a missing metric."""
    supervised = bool(steps) and "train_mean_reward" not in steps[-1]
    first = ("step", "train_loss", "full_valid_loss") if supervised else FIRST_COLUMNS
    rows = [
        {("train_loss" if k == "loss" and supervised else k): v for k, v in _finite_values(s).items()} for s in steps
    ]
    rest = sorted({name for row in rows for name in row} - set(first))
    out = io.StringIO()
    writer = csv.DictWriter(out, [*first, *rest], restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(row | {"step": int(row["step"])})
    return out.getvalue().encode()


def _tool_metrics(m: Mapping[str, float]) -> dict[str, dict[str, float | None]]:
    return {
        name: {
            "calls_per_rollout_mean": calls,
            "tokens_per_call_mean": m.get(f"tool/{name}/output_tokens_mean"),
            "latency_s_mean": m.get(f"tool/{name}/latency_s_mean"),
            "errors": m.get(f"tool/{name}/errors"),
        }
        for name, calls in _values_by_name(m, "tool/", "/calls_mean").items()
    }


def _values_by_name(m: Mapping[str, float], prefix: str, suffix: str) -> dict[str, float]:
    names = [name for name in m if name.startswith(prefix) and name.endswith(suffix)]
    return {name[len(prefix) : len(name) - len(suffix)]: m[name] for name in names}


def _finite_values(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
