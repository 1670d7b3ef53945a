"""What somebody should be told of, and what to do then. RUNBOOK.md is made from the same entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from trainer.loop.health import GAP_WARNS_AT

RUNBOOK = "RUNBOOK.md"


@dataclass(frozen=True, slots=True)
class Alert:
    """`expr` in PromQL holds for `wait` before somebody hears of it; `meaning` says what it means for the job,
    `runbook` what to do.
    """

    name: str
    severity: Literal["warning", "critical"]
    expr: str
    wait: str
    summary: str
    meaning: str
    runbook: str


def _rate(name: str, minutes: int, by: str = "job", labels: str = "") -> str:
    return f"sum by ({by}) (rate({name}{labels}[{minutes}m]))"


_DISCARDED = '{outcome!~"graded|cancelled"}'
_ENDPOINT = "job, endpoint"

ALERTS = (
    Alert(
        "EndpointFailing",
        "warning",
        f"{_rate('agent_rft_endpoint_failed_total', 5, _ENDPOINT)} / "
        f"({_rate('agent_rft_endpoint_calls_total', 5, _ENDPOINT)} > 0) > 0.2",
        "2m",
        "{{ $labels.endpoint }} of {{ $labels.job }} fails {{ $value | humanizePercentage }} of its calls",
        "Rollouts that need it are discarded and tried again: the job gets slower, what it learns stays right.",
        "Endpoints dashboard, 'Errors a second': server_error and connection are the server's (its log, its process, "
        "its URL), deadline and busy mean too little capacity (add some, lower max_concurrency, raise timeout_s).",
    ),
    Alert(
        "EndpointDown",
        "critical",
        "max by (job, endpoint) (agent_rft_endpoint_breaker) == 2",
        "1m",
        "{{ $labels.endpoint }} of {{ $labels.job }} is down: only probes are sent",
        "The job waits for it. Calls that reach their deadline are discarded, none is graded 0.",
        "Start the server or mend its URL; the next probe that is answered (within a minute) lets the job go on.",
    ),
    Alert(
        "RolloutsDiscarded",
        "warning",
        f"{_rate('agent_rft_rollouts_total', 10, labels=_DISCARDED)} / "
        f"({_rate('agent_rft_rollouts_total', 10)} > 0) > 0.3",
        "5m",
        "{{ $value | humanizePercentage }} of the rollouts of {{ $labels.job }} are discarded",
        "Their time is lost. Above limits.max_failure_rate only probes are started.",
        "Job dashboard, 'Rollouts a second, by how they ended': tool_failed and grader_failed lead to the Endpoints "
        "dashboard, rollout_timeout to limits.rollout_timeout_s and slow tools, engine_failed to EngineReplaced. "
        "`agent-rft traces RUN` shows the messages.",
    ),
    Alert(
        "NoProgress",
        "critical",
        "((sum by (job) (increase(agent_rft_time_step_seconds_count[15m])) == 0) unless on (job) "
        '(sum by (job) (increase(agent_rft_rollouts_total{outcome="graded"}[15m])) > 0)) '
        "and on (job) agent_rft_disk_total_bytes",
        "5m",
        "{{ $labels.job }} has taken no step and graded no rollout for a quarter of an hour",
        "It waits for resources, its engines start, its endpoints are down, or it hangs.",
        "The last lines of the job's events (`events.jsonl`, `agent-rft events list JOB`) say what it waits for. "
        "Waiting for resources: `ray status`. An endpoint: EndpointDown. Nothing at all: end it with SIGTERM, which "
        "takes a checkpoint, and resume.",
    ),
    Alert(
        "RewardCollapse",
        "warning",
        "avg_over_time(agent_rft_train_mean_reward[15m]) < 0.5 * "
        "max_over_time(avg_over_time(agent_rft_train_mean_reward[15m])[6h:5m]) "
        "and max_over_time(avg_over_time(agent_rft_train_mean_reward[15m])[6h:5m]) > 0.1",
        "10m",
        "the reward of {{ $labels.job }} fell to {{ $value | humanize }}, less than half of its best",
        "The policy is getting worse, or the grader or a tool now says something else.",
        "Compare grades and answers before and after (`agent-rft traces RUN --name step-N --worst 5`). If the "
        "endpoints are right: pause, go on from the best checkpoint with a lower learning_rate_multiplier or with a "
        "kl_coef above 0.",
    ),
    Alert(
        "EntropyCollapse",
        "warning",
        "agent_rft_entropy < 0.1 * max_over_time(agent_rft_entropy[6h])",
        "10m",
        "the entropy of {{ $labels.job }} fell to {{ $value | humanize }} nats, a tenth of what it was",
        "Rollouts of a group become alike: soon there is nothing left to compare.",
        "Learner dashboard. Where the reward still rises it is only near its end; else lower the learning rate, raise "
        "the temperature or clip_high, or take harder rows.",
    ),
    Alert(
        "EngineLearnerDifference",
        "critical",
        " or ".join(f"max by (job) (agent_rft_{gap}_gap) > {GAP_WARNS_AT:g}" for gap in ("logprob", "canary")),
        "0m",
        "engines and learner of {{ $labels.job }} differ by {{ $value | humanize }} nats on the same weights",
        "Importance weights become noise. At 0.5 the job stops by itself.",
        "Learner dashboard, 'Difference of log-probabilities'. Only after some updates: an engine missed weights "
        "(events name it, it is replaced). From the first step on: dtype or the model's implementation in vLLM; try "
        "float32.",
    ),
    Alert(
        "NoSignal",
        "warning",
        f"{_rate('agent_rft_groups_without_signal_total', 30)} / "
        f"({_rate('agent_rft_groups_without_signal_total', 30)} + "
        f"{_rate('agent_rft_groups_trained_total', 30)} > 0) > 0.8",
        "10m",
        "{{ $value | humanizePercentage }} of the groups of {{ $labels.job }} have equal rewards",
        "The job starves: most rollouts are sampled for nothing. Three batches without any signal stop it.",
        "Job dashboard, 'Groups a minute': all_right - the rows are too easy, take harder ones or stop; all_wrong - "
        "too hard, begin with supervised training or easier rows; equal - the grader does not tell tries apart.",
    ),
    Alert(
        "LearnerStarves",
        "warning",
        f"{_rate('agent_rft_time_wait_seconds_sum', 30)} / ({_rate('agent_rft_time_step_seconds_sum', 30)} > 0) > 0.8",
        "15m",
        "the learner of {{ $labels.job }} waits for rollouts {{ $value | humanizePercentage }} of its time",
        "Training is right, but the learner's place in the cluster is mostly idle.",
        "More engines (cluster.engines), faster tools, or max_staleness 2. Endpoints dashboard: calls that queue need "
        "more max_concurrency; Fleet dashboard: slots that are all used need more engines.",
    ),
    Alert(
        "EngineReplaced",
        "warning",
        "sum by (job) (increase(agent_rft_engine_replacements_total[15m])) > 0",
        "0m",
        "an engine of {{ $labels.job }} was replaced",
        "Its rollouts begin anew. After three replacements an engine the job stops.",
        "The events say why. Killed or out of memory: fewer max_num_seqs, or a larger node. Differs from the learner: "
        "EngineLearnerDifference.",
    ),
    Alert(
        "DiskFull",
        "critical",
        "agent_rft_disk_free_bytes / agent_rft_disk_total_bytes < 0.1 "
        "or (predict_linear(agent_rft_disk_free_bytes[1h], 4 * 3600) < 0 and delta(agent_rft_disk_free_bytes[1h]) < 0)",
        "5m",
        "the disk with the run of {{ $labels.job }} is full, or will be within four hours",
        "The next checkpoint fails and the job ends; the last good one still loads.",
        "Remove older runs, or move them. Then resume.",
    ),
    Alert(
        "ServerErrors",
        "warning",
        'sum(rate(agent_rft_api_request_seconds_count{status=~"5.."}[5m])) / '
        "(sum(rate(agent_rft_api_request_seconds_count[5m])) > 0) > 0.05",
        "5m",
        "the API answers {{ $value | humanizePercentage }} of its requests with an error of its own",
        "Clients see 5xx.",
        "The server's log has the cause beside the request id that the client got (`x-request-id`). 503: engines for a "
        "model could not be started, or the database is away.",
    ),
)


def rule_groups() -> dict[str, Any]:
    """Prometheus's rule file; the same is the `spec` of a PrometheusRule."""
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
    """RUNBOOK.md."""
    lines = ["# What to do when an alert fires", "", "Made from `cluster/observability/alerts.py`.", ""]
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
