"""The alerts, each with what it means for a job and what to do; RUNBOOK.md is generated from the same entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cluster.observability.promql import Part, rate, samples
from trainer.loop.health import GAP_HALTS_AT, GAP_WARNS_AT

RUNBOOK = "RUNBOOK.md"


@dataclass(frozen=True, slots=True)
class Alert:
    """Fires once the PromQL expression `expr` has been true for `wait` (a Prometheus duration such as `5m`).

    `meaning` says what it means for the job, `runbook` what to do.
    """

    name: str
    severity: Literal["warning", "critical"]
    expr: str
    wait: str
    summary: str
    meaning: str
    runbook: str


def _rate(name: str, window: str, *matchers: str, by: Sequence[str] = ("job",), part: Part | None = None) -> str:
    return rate(samples(name, *matchers, part=part), window, by)


_DISCARDED = 'outcome!~"graded|cancelled"'
_ENDPOINT = ("job", "endpoint")
_REWARD = samples("train_mean_reward")
_MAX_REWARD = f"max_over_time(avg_over_time({_REWARD}[15m])[6h:5m])"
_ENTROPY = samples("entropy")
_DISK_FREE, _DISK_TOTAL = samples("disk_free_bytes"), samples("disk_total_bytes")
_SERVER_ERROR = 'status=~"5.."'
_API_REQUESTS = "api_request_s/<status>/<method>/<route>"

ALERTS = (
    Alert(
        "EndpointFailing",
        "warning",
        f"{_rate('endpoint/<endpoint>/failed', '5m', by=_ENDPOINT)} / "
        f"({_rate('endpoint/<endpoint>/calls', '5m', by=_ENDPOINT)} > 0) > 0.2",
        "2m",
        "{{ $value | humanizePercentage }} of calls to {{ $labels.endpoint }} of {{ $labels.job }} fail",
        "Rollouts that need the endpoint are discarded and retried: the job gets slower, but learns nothing wrong.",
        "Endpoints dashboard, 'Errors per second': for server_error and connection check the server's log, process and "
        "URL; deadline and busy mean too little capacity (add some, lower max_concurrency or raise timeout_s).",
    ),
    Alert(
        "EndpointDown",
        "critical",
        f"max by (job, endpoint) ({samples('endpoint/<endpoint>/breaker')}) == 2",
        "1m",
        "{{ $labels.endpoint }} of {{ $labels.job }} is down: it only receives probes",
        "The job waits for the endpoint. Rollouts whose calls reach their deadline are discarded, never graded 0.",
        "Start the server or fix its URL. The job continues after the next probe that succeeds, within a minute.",
    ),
    Alert(
        "RolloutsDiscarded",
        "warning",
        f"{_rate('rollouts/<outcome>', '10m', _DISCARDED)} / ({_rate('rollouts/<outcome>', '10m')} > 0) > 0.3",
        "5m",
        "{{ $value | humanizePercentage }} of the rollouts of {{ $labels.job }} are discarded",
        "The time spent on them is lost. Above limits.max_failure_rate the job only starts probes.",
        "Job dashboard, 'Rollouts per second by outcome': for tool_failed and grader_failed see the Endpoints "
        "dashboard, for rollout_timeout check limits.rollout_timeout_s and slow tools, for engine_failed see "
        "EngineReplaced. `agent-rft traces RUN` shows the error messages.",
    ),
    Alert(
        "NoProgress",
        "critical",
        f"((sum by (job) (increase({samples('time_step_s', part='count')}[15m])) == 0) unless on (job) "
        f"(sum by (job) (increase({samples('rollouts/graded')}[15m])) > 0)) and on (job) {_DISK_TOTAL}",
        "5m",
        "{{ $labels.job }} has taken no step and graded no rollout for 15 minutes",
        "The job is waiting for resources, its engines are starting, its endpoints are down, or it hangs.",
        "The job's last events (`events.jsonl`, `agent-rft events list JOB`) say what it is waiting for. For resources "
        "see `ray status`, for an endpoint EndpointDown. If they say nothing, stop the job with SIGTERM, which saves a "
        "checkpoint, and resume it.",
    ),
    Alert(
        "RewardCollapse",
        "warning",
        f"avg_over_time({_REWARD}[15m]) < 0.5 * {_MAX_REWARD} and {_MAX_REWARD} > 0.1",
        "10m",
        "the reward of {{ $labels.job }} fell to {{ $value | humanize }}, less than half of its maximum",
        "The policy is getting worse, or the grader or a tool has changed its answers.",
        "Compare grades and tool results before and after the drop (`agent-rft traces RUN --name step-N --worst 5`). "
        "If the endpoints are correct, pause the job and continue from the best checkpoint with a lower "
        "learning_rate_multiplier or a kl_coef above 0.",
    ),
    Alert(
        "EntropyCollapse",
        "warning",
        f"{_ENTROPY} < 0.1 * max_over_time({_ENTROPY}[6h])",
        "10m",
        "the entropy of {{ $labels.job }} fell to {{ $value | humanize }} nats, less than a tenth of its maximum",
        "The rollouts of a group become identical, so that soon there is no signal to train on.",
        "See the Learner dashboard. If the reward still rises, the job is merely close to converging. Otherwise lower "
        "the learning rate, raise the temperature or clip_high, or use harder rows.",
    ),
    Alert(
        "EngineLearnerDifference",
        "critical",
        " or ".join(f"max by (job) ({samples(gap)}) > {GAP_WARNS_AT:g}" for gap in ("logprob_gap", "canary_gap")),
        "0m",
        "with the same weights, engines and learner of {{ $labels.job }} differ by {{ $value | humanize }} nats",
        f"Importance weights become noise. At {GAP_HALTS_AT:g} nats the job stops.",
        "Learner dashboard, 'Log-probability gap'. If it appears only after some updates, an engine missed a weight "
        "update (an event names it, and it is replaced). If it is there from the first step, suspect the dtype or "
        "vLLM's implementation of the model; try float32.",
    ),
    Alert(
        "NoSignal",
        "warning",
        f"{_rate('groups_without_signal/<kind>', '30m')} / "
        f"({_rate('groups_without_signal/<kind>', '30m')} + {_rate('groups_trained', '30m')} > 0) > 0.8",
        "10m",
        "in {{ $value | humanizePercentage }} of the groups of {{ $labels.job }} all rewards are equal",
        "Most rollouts are wasted, since such groups train nothing. After three batches without signal the job stops.",
        "Job dashboard, 'Groups per minute'. all_right: the rows are too easy; use harder ones or stop. all_wrong: "
        "they are too hard; use easier ones or supervised training first. equal: the grader makes no distinctions.",
    ),
    Alert(
        "LearnerStarves",
        "warning",
        f"{_rate('time_wait_s', '30m', part='sum')} / ({_rate('time_step_s', '30m', part='sum')} > 0) > 0.8",
        "15m",
        "the learner of {{ $labels.job }} waits for rollouts {{ $value | humanizePercentage }} of the time",
        "Training is correct, but the learner's resources are mostly idle.",
        "Use more engines (cluster.engines), faster tools, or max_staleness 2. If calls queue (Endpoints dashboard), "
        "raise max_concurrency; if all slots are used (Fleet dashboard), add engines.",
    ),
    Alert(
        "EngineReplaced",
        "warning",
        f"sum by (job) (increase({samples('engine_replacements')}[15m])) > 0",
        "0m",
        "an engine of {{ $labels.job }} was replaced",
        "The rollouts of the engine start again. After more than three replacements per engine the job stops.",
        "The job's events say why. If it was killed or out of memory, lower max_num_seqs or use a larger node. If it "
        "differed from the learner, see EngineLearnerDifference.",
    ),
    Alert(
        "DiskFull",
        "critical",
        f"{_DISK_FREE} / {_DISK_TOTAL} < 0.1 "
        f"or (predict_linear({_DISK_FREE}[1h], 4 * 3600) < 0 and delta({_DISK_FREE}[1h]) < 0)",
        "5m",
        "the disk of the run folder of {{ $labels.job }} is nearly full, or will be full within four hours",
        "The next checkpoint will fail and end the job; the last complete one still loads.",
        "Delete or move older runs. If the job has ended, resume it.",
    ),
    Alert(
        "ServerErrors",
        "warning",
        f"sum(rate({samples(_API_REQUESTS, _SERVER_ERROR, part='count')}[5m])) / "
        f"(sum(rate({samples(_API_REQUESTS, part='count')}[5m])) > 0) > 0.05",
        "5m",
        "the API answers {{ $value | humanizePercentage }} of its requests with a server error",
        "Clients receive 5xx responses.",
        "The server's log has the cause next to the request id that the client received (`x-request-id`). 503 means "
        "that engines for a model could not be started or that the database is unreachable.",
    ),
)


def rule_groups() -> dict[str, Any]:
    """Prometheus's rule file, which is also the `spec` of a PrometheusRule."""
    rules = [
        {
            "alert": alert.name,
            "expr": alert.expr,
            "for": alert.wait,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "description": alert.meaning, "runbook": alert.runbook},
        }
        for alert in ALERTS
    ]
    return {"groups": [{"name": "agent-rft", "rules": rules}]}


def runbook() -> str:
    """The text of RUNBOOK.md."""
    lines = ["# What to do when an alert fires", "", "Generated from `cluster/observability/alerts.py`.", ""]
    for alert in ALERTS:
        lines += [
            f"## {alert.name} ({alert.severity})",
            "",
            alert.meaning,
            "",
            alert.runbook,
            "",
            f"`{alert.expr}`",
            "",
        ]
    return "\n".join(lines)
