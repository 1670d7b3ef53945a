"""Alerts, each with its effect on a job and a fix; the alert rules and RUNBOOK.md are generated from these entries.

Each alert has one panel in `agent_rft.cluster.observability.dashboards`, which draws its threshold.

The windows suit steps of ten seconds to ten minutes. Metrics recorded once per step are averaged over at least three
ten-minute steps, because a single batch is too noisy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agent_rft.cluster.observability.promql import (
    OUR_TARGETS,
    RAY_HEAD_MEMORY,
    RAY_SPILLED,
    RAY_TARGETS,
    Part,
    rate,
    samples,
)
from agent_rft.trainer.loop.step_checks import GAP_HALTS_AT, GAP_WARNS_AT


@dataclass(frozen=True, slots=True)
class Condition:
    """PromQL expression `value comparison threshold rest`.

    `threshold` is a number, or an expression with one threshold per series. `rest` continues the expression with
    `and`, `unless` or `or`.
    """

    value: str
    comparison: Literal["<", "==", ">"]
    threshold: float | str
    rest: str = ""

    @property
    def expr(self) -> str:
        threshold = self.threshold if isinstance(self.threshold, str) else f"{self.threshold:g}"
        return f"{self.value} {self.comparison} {threshold} {self.rest}".rstrip()


@dataclass(frozen=True, slots=True)
class Alert:
    """Alert that fires once `condition` has been true for `wait` (a Prometheus duration such as `5m`).

    `meaning` describes the effect on the job, `runbook` what to do.
    """

    name: str
    severity: Literal["warning", "critical"]
    condition: Condition
    wait: str
    summary: str
    meaning: str
    runbook: str

    @property
    def expr(self) -> str:
        return self.condition.expr


def _rate(name: str, window: str, *matchers: str, by: Sequence[str] = ("job",), part: Part | None = None) -> str:
    return rate(samples(name, *matchers, part=part), window, by)


def _mean(name: str, when: str = "") -> str:
    """Return PromQL for the half-hour mean of a gauge recorded once per step; `when` may be an offset."""
    return f"avg_over_time({samples(name)}[30m]{when})"


def _not_ended(*matchers: str) -> str:
    """Return PromQL: 0 for each job whose driver ran within the last hour and has not reported its end."""
    return f"sum by (job) (last_over_time({samples('jobs_ended/<outcome>', *matchers)}[1h])) == 0"


def drivers(*matchers: str) -> str:
    """Return PromQL: 1 for each job with a running driver, 0 for each whose driver is gone without reporting an end."""
    return f"(max by (job) ({samples('process_up', *matchers, DRIVER)}) or {_not_ended(*matchers)})"


def api(*matchers: str) -> str:
    """Return PromQL: 1 while an API replica runs, and 0 for a day after the last replica is gone."""
    up = samples("process_up", *matchers, API)
    return f"(max by (job) ({up}) or 0 * max by (job) (last_over_time({up}[1d])))"


def learner_restarts(*matchers: str) -> str:
    return f"sum by (job) (increase({samples('learner_restarts', *matchers)}[1h]))"


def store_failures(*matchers: str) -> str:
    return f"sum by (job) (increase({samples('checkpoint_store_failures/<action>', *matchers)}[30m]))"


def failed_trackers(*matchers: str) -> str:
    return f"sum by (job, tracker) ({samples('tracker_failures/<tracker>', *matchers)})"


def failed_jobs(*matchers: str) -> str:
    return f"sum by (job) (max_over_time({samples('jobs_ended/failed', *matchers)}[15m]))"


DRIVER, API = 'process="driver"', 'process=~"api-[0-9]+"'
DISCARDED = 'outcome!~"graded|cancelled"'
NOT_ALL_RIGHT = 'kind!="all_right"'
"""Matcher that excludes all-right groups, which are normal at the end of a job that has learned its rows."""
_ENDPOINT = ("job", "endpoint")
_REWARD = _mean("train_mean_reward")
_MAX_REWARD = f"(max_over_time({_REWARD}[6h:5m]) > 0.1)"
_ENTROPY = samples("entropy")
_NO_SIGNAL = _rate("zero_variance_groups/<kind>", "30m", NOT_ALL_RIGHT)
_GROUPS = f"({_rate('zero_variance_groups/<kind>', '30m')} + {_rate('groups_trained', '30m')} > 0)"
API_FAILED = f"max by (job) (delta({samples('api_jobs/failed')}[15m]))"
UP = f'up{{job="{OUR_TARGETS}"}}'
RAY_UP = f'max by (job, node) (label_replace(up{{job="{RAY_TARGETS}"}}, "node", "$1", "instance", "(.+):.+"))'
"""1 per node if any of its Ray ports answers: without an autoscaler, Ray also lists a port without a listener."""
NEW_SPILLS = f"sum by (NodeAddress) (increase({RAY_SPILLED}[15m]))"
_ENDED_CALLS = " + ".join(
    f"sum by (job, endpoint) (increase({samples(f'endpoint/<endpoint>/{end}')}[15m]))" for end in ("answered", "failed")
)
_LONG_CALLS = (
    f"sum by (job, endpoint) (min_over_time({samples('endpoint/<endpoint>/in_flight')}[15m])) > 0 "
    f"unless on (job, endpoint) ({_ENDED_CALLS} > 0)"
)
"""Endpoints that have had calls in flight for 15 minutes without any call ending."""
_DISK_FREE, _DISK_TOTAL = samples("disk_free_bytes"), samples("disk_total_bytes")
SERVER_ERROR = 'status=~"5.."'
API_REQUESTS = "api_request_s/<status>/<method>/<route>"

ALERTS = (
    Alert(
        "EndpointFailing",
        "warning",
        Condition(
            f"{_rate('endpoint/<endpoint>/failed', '5m', by=_ENDPOINT)} / "
            f"({_rate('endpoint/<endpoint>/calls', '5m', by=_ENDPOINT)} > 0)",
            ">",
            0.2,
        ),
        "2m",
        "{{ $value | humanizePercentage }} of calls to {{ $labels.endpoint }} of {{ $labels.job }} fail",
        "Rollouts that need the endpoint are discarded and retried, so the job is slower but still trains correctly.",
        "Endpoints dashboard, 'Errors per second': for server_error and connection check the server's log, process and "
        "URL; deadline and busy mean too little capacity (add capacity, lower max_concurrency or raise timeout_s).",
    ),
    Alert(
        "EndpointDown",
        "critical",
        Condition(f"max by (job, endpoint) ({samples('endpoint/<endpoint>/breaker')})", "==", 2),
        "1m",
        "{{ $labels.endpoint }} of {{ $labels.job }} is down: it only receives probes",
        "The job waits for the endpoint. Rollouts whose calls reach their deadline are discarded, never graded 0.",
        "Start the server or fix its URL. The job continues after the next probe that succeeds, within a minute.",
    ),
    Alert(
        "RolloutsDiscarded",
        "warning",
        Condition(
            f"{_rate('rollouts/<outcome>', '10m', DISCARDED)} / ({_rate('rollouts/<outcome>', '10m')} > 0)", ">", 0.3
        ),
        "5m",
        "{{ $value | humanizePercentage }} of the rollouts of {{ $labels.job }} are discarded",
        "Their time is lost. Above limits.max_failure_rate, the job starts only probes.",
        "Job dashboard, 'Rollouts per second by outcome': for tool_failed and grader_failed see the Endpoints "
        "dashboard, for rollout_timeout check limits.rollout_timeout_s and slow tools, for rollout_waited read its "
        "message, for engine_failed see EngineReplaced, for template_failed change the model's chat template. "
        "`agent-rft traces RUN` shows the error messages.",
    ),
    Alert(
        "NoProgress",
        "critical",
        Condition(
            f"sum by (job) (increase({samples('time_step_s', part='count')}[15m]))",
            "==",
            0,
            f"unless on (job) (sum by (job) (increase({samples('rollouts/graded')}[15m])) > 0) "
            f"unless on (job) ({_LONG_CALLS}) and on (job) {_DISK_TOTAL}",
        ),
        "5m",
        "{{ $labels.job }} has taken no step and graded no rollout for 15 minutes",
        "The job is waiting for resources, its engines are starting, its endpoints are down, or it hangs. The alert "
        "does not fire while all calls in flight at an endpoint take longer than 15 minutes; they end at `timeout_s`.",
        "The job's last events (`events.jsonl`, `agent-rft events list JOB`) show what it is waiting for. For "
        "resources see `ray status`, for an endpoint EndpointDown. If they show nothing, stop the job with "
        "SIGTERM, which saves a checkpoint, and resume it.",
    ),
    Alert(
        "RewardCollapse",
        "warning",
        Condition(_REWARD, "<", f"0.5 * {_MAX_REWARD}"),
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
        Condition(
            _ENTROPY,
            "<",
            f"0.1 * max_over_time({_ENTROPY}[6h])",
            f"and on (job) ({_REWARD} < 0.8 * {_MAX_REWARD} or {_NO_SIGNAL} / {_GROUPS} > 0.5)",
        ),
        "10m",
        "the entropy of {{ $labels.job }} fell to {{ $value | humanize }} nats, and its reward fell too or most "
        "groups have zero variance",
        "The rollouts of a group become identical before they are right, so soon all groups have zero variance. If a "
        "job has simply learned its rows, its entropy falls but not its reward, and the alert does not fire.",
        "Compare Learner dashboard, 'Entropy', with Job dashboard, 'Reward'. Pause the job and continue from the best "
        "checkpoint with a lower learning rate, a higher temperature or clip_high, or harder rows.",
    ),
    Alert(
        "EngineLearnerDifference",
        "critical",
        Condition(
            f"max by (job) ({samples('logprob_gap')})",
            ">",
            GAP_WARNS_AT,
            f"or max by (job) ({samples('canary_gap')}) > {GAP_WARNS_AT:g}",
        ),
        "0m",
        "with the same weights, engines and learner of {{ $labels.job }} differ by {{ $value | humanize }} nats",
        f"Importance weights become noise. At {GAP_HALTS_AT:g} nats the job stops.",
        "Learner dashboard, 'Log-probability gap'. If it appears only after some updates, an engine missed a weight "
        "update (an event names it, and it is replaced). If it exists from the first step, suspect the dtype or "
        "vLLM's implementation of the model; try float32.",
    ),
    Alert(
        "NoSignal",
        "warning",
        Condition(f"{_NO_SIGNAL} / {_GROUPS}", ">", 0.8),
        "10m",
        "{{ $value | humanizePercentage }} of the groups of {{ $labels.job }} have equal rewards and are not all right",
        "Most rollouts are wasted, because zero-variance groups teach nothing. After three zero-variance batches the "
        "job stops.",
        "Job dashboard, 'Groups per minute'. all_wrong: the rows are too hard; use easier ones or an SFT warm-up. "
        "equal: the grader gives all rollouts the same grade. Groups that are all_right are not counted: a job ends "
        "with them when it has learned its rows.",
    ),
    Alert(
        "LearnerStarves",
        "warning",
        Condition(
            f"{_rate('time_wait_s', '30m', part='sum')} / ({_rate('time_step_s', '30m', part='sum')} > 0)", ">", 0.8
        ),
        "15m",
        "the learner of {{ $labels.job }} waits for rollouts {{ $value | humanizePercentage }} of the time",
        "Training is correct, but the learner's resources are mostly idle.",
        "Use more engines (cluster.engines), faster tools, or max_staleness 2. If calls queue (Endpoints dashboard), "
        "raise max_concurrency; if all slots are used (Fleet dashboard), add engines.",
    ),
    Alert(
        "EngineReplaced",
        "warning",
        Condition(f"sum by (job) (increase({samples('engine_replacements')}[15m]))", ">", 0),
        "0m",
        "an engine of {{ $labels.job }} was replaced",
        "The rollouts of the engine start again. More than three replacements per engine between two weight updates "
        "end the job.",
        "The job's events have the cause. If it was killed or out of memory, lower max_num_seqs or use a larger node. "
        "If it differed from the learner, see EngineLearnerDifference.",
    ),
    Alert(
        "LearnerRestarts",
        "warning",
        Condition(learner_restarts(), ">", 2),
        "0m",
        "the learner of {{ $labels.job }} has restarted {{ $value | humanize }} times in an hour",
        "Each time all ranks start again and the updates since the last checkpoint are repeated. Restarts without a "
        "finished step in between end the job.",
        "The events `learner_restarted` have the cause; the rank's log has details. If memory ran out, lower "
        "`cluster.micro_batch_tokens`. If a node keeps leaving, check `ray status`.",
    ),
    Alert(
        "HeldOutFalls",
        "warning",
        Condition(
            _mean("held_out_grade_mean"),
            "<",
            f"{_mean('held_out_grade_mean', ' offset 2h')} - 0.05",
            f"and on (job) {_mean('train_mean_grade')} - {_mean('train_mean_grade', ' offset 2h')} > 0.05",
        ),
        "15m",
        "the held-out grade of {{ $labels.job }} fell to {{ $value | humanize }} in two hours while the grade rose",
        "The policy exploits its grader instead of solving the task: reward hacking.",
        "Job dashboard, 'Held-out grade'. Read rollouts with high grades (`agent-rft traces RUN`); the event "
        "`alarm_raised` lists some. Add a guard or repair the grader, and continue from a checkpoint before the "
        "held-out grade fell.",
    ),
    Alert(
        "JobFailed",
        "warning",
        Condition(failed_jobs(), ">", 0, f"or {API_FAILED} > 0"),
        "0m",
        "{{ $labels.job }}: a job has failed",
        "Its driver ended with an error and released its engines and learner. For the job `api`: a job of the server "
        "failed, possibly before its driver started.",
        "The last event has the cause (`events.jsonl`, `agent-rft events list JOB`; `agent-rft jobs log JOB` has the "
        "driver's output). `agent-rft explain CODE` explains a problem code. Once the cause is fixed, resume the "
        "job: it continues from its last checkpoint.",
    ),
    Alert(
        "JobLost",
        "critical",
        Condition(drivers(), "==", 0),
        "5m",
        "the driver of {{ $labels.job }} is gone and did not report the end of the job",
        "It was killed, or its node is down; the steps since the last checkpoint must be repeated. With a scrape "
        "interval above 15 s, Prometheus may miss the end of a job that ended normally.",
        "If the run's events include `job_ended`, nothing is lost. The server restarts its jobs automatically; resume "
        "other jobs with `agent-rft train JOB.yaml --resume RUN`. `dmesg` or `kubectl describe pod` shows whether "
        "memory ran out.",
    ),
    Alert(
        "TargetDown",
        "warning",
        Condition(
            UP,
            "==",
            0,
            f"and on (instance) (max by (instance, job) (last_over_time({samples('process_up')}[1h])) "
            f"and on (job) ({_not_ended()})) or {RAY_UP} == 0",
        ),
        "5m",
        "Prometheus cannot scrape {{ $labels.instance }}{{ $labels.node }}, where a job or Ray runs",
        "Panels and alerts have no data about its processes. A node without a job serves no metrics and has no alert.",
        "Check whether the node is in the cluster (`ray status`). If it is, run `curl http://NODE:9464/metrics` on the "
        "host of Prometheus. A firewall or a network policy may block it, or a full disk keeps the processes from "
        "writing their metrics.",
    ),
    Alert(
        "QueueStands",
        "warning",
        Condition(
            f"max by (job) ({samples('api_jobs/queued')})",
            ">",
            0,
            f"and on (job) max by (job) ({samples('api_jobs/running')}) == 0",
        ),
        "20m",
        "{{ $value }} jobs of the server wait, and none runs",
        "No job starts although one could: the server cannot reach the cluster, or waits for a paused job to save.",
        "The server's log shows what it is doing. `ray status` and `agent-rft jobs get JOB` show whether the cluster "
        "answers; restarting the server loses nothing.",
    ),
    Alert(
        "QueuedForHours",
        "warning",
        Condition(f"max by (job) ({samples('api_queue_age_s')})", ">", 4 * 3600),
        "5m",
        "a job of the server has been queued for {{ $value | humanizeDuration }}",
        "The job waits for the jobs before it. At most `jobs.max_running` jobs run at a time.",
        "`agent-rft jobs list` shows what runs. Raise `jobs.max_running` if the cluster has free GPUs (`ray status`), "
        "add GPUs, or pause a job that can wait. If nothing runs, see QueueStands.",
    ),
    Alert(
        "ApiDown",
        "critical",
        Condition(api(), "==", 0),
        "5m",
        "no process of the API exports metrics",
        "The API or the whole head is gone: clients get no answer and queued jobs do not start. Running jobs "
        "continue if their nodes are up.",
        "Check the head (`kubectl get pods`, `ray status`) and `curl http://SERVER:8000/health`. Start the server "
        "again: its jobs continue. If you stopped it on purpose, silence the alert, which ends after a day.",
    ),
    Alert(
        "HeadMemory",
        "critical",
        Condition(RAY_HEAD_MEMORY, ">", 0.9),
        "5m",
        "the head {{ $labels.ip }} uses {{ $value | humanizePercentage }} of its memory",
        "At 95 % Ray kills processes on the head, and a container over its limit is killed. The cluster stops if its "
        "head is killed.",
        "Fleet dashboard, 'Memory by process'. Give the head more memory, and keep engines and learner ranks off it. "
        "The object store counts too (`--object-store-memory`).",
    ),
    Alert(
        "EnginesMissing",
        "warning",
        Condition(
            f"sum by (job) ({samples('engine/<engine>/ready')})",
            "<",
            f"count by (job) ({samples('engine/<engine>/ready')})",
        ),
        "15m",
        "only {{ $value }} engines of {{ $labels.job }} are ready; others have not been ready for 15 minutes",
        "The job samples with fewer engines than planned and is slower.",
        "Fleet dashboard, 'Ready engines'. The events show what the engines wait for; `ray status` shows whether the "
        "cluster lacks GPUs or nodes that the autoscaler cannot get. If an engine keeps dying, see EngineReplaced.",
    ),
    Alert(
        "OldCheckpoint",
        "warning",
        Condition(samples("checkpoint_age_s"), ">", 7200),
        "5m",
        "the last checkpoint of {{ $labels.job }} was {{ $value | humanizeDuration }} ago",
        "If the driver is killed now, the steps since then must be repeated.",
        "Job dashboard, 'Checkpoint age' and 'Step time'. If "
        "`cluster.checkpoint_interval` is the cause, lower it: a resumed job may change it. If checkpoints were "
        "frequent until now, see NoProgress. To save one now, pause the job (or end it with SIGTERM) and resume it.",
    ),
    Alert(
        "CheckpointStoreFails",
        "warning",
        Condition(store_failures(), ">", 2),
        "0m",
        "the checkpoint store of {{ $labels.job }} has failed {{ $value | humanize }} times in half an hour",
        "Training continues, but the newest checkpoint is only in the run folder and is lost if that disk fails.",
        "The events `checkpoint_store_failed` have the cause: check credentials, quota and the URL in "
        "`checkpoint_store`. The next checkpoint is uploaded again, so no restart is needed.",
    ),
    Alert(
        "TrackerFails",
        "warning",
        Condition(failed_trackers(), ">", 0),
        "0m",
        "{{ $labels.tracker }} no longer receives metrics of {{ $labels.job }}",
        "Training continues, and the run folder has all metrics.",
        "The event `tracker_failed` has the reason. The job connects to the tracker again after a pause. "
        "If it fails in all jobs, check the operator's `trackers`, and the tracker's status page.",
    ),
    Alert(
        "RaySpills",
        "warning",
        Condition(NEW_SPILLS, ">", 0),
        "0m",
        "Ray's object store on {{ $labels.NodeAddress }} spills to disk ({{ $value | humanize1024 }}B in 15 minutes)",
        "A version of the weights does not fit into the store: weight updates become slow, and a pod whose disk has a "
        "limit is evicted.",
        "Fleet dashboard, 'Spilled to disk by node in 15 minutes'. Give the store more memory (`ray start "
        "--object-store-memory`, in Kubernetes `object-store-memory` of the worker group) and /dev/shm the same size.",
    ),
    Alert(
        "DiskFull",
        "critical",
        Condition(
            f"{_DISK_FREE} / {_DISK_TOTAL}",
            "<",
            0.1,
            f"or (predict_linear({_DISK_FREE}[1h], 4 * 3600) < 0 and delta({_DISK_FREE}[1h]) < 0)",
        ),
        "5m",
        "the disk of the run folder of {{ $labels.job }} is nearly full, or will be full within four hours",
        "The next checkpoint will fail and end the job; the last complete one still loads.",
        "Delete or move older runs. If the job has ended, resume it.",
    ),
    Alert(
        "ServerErrors",
        "warning",
        Condition(
            f"sum(rate({samples(API_REQUESTS, SERVER_ERROR, part='count')}[5m])) / "
            f"(sum(rate({samples(API_REQUESTS, part='count')}[5m])) > 0)",
            ">",
            0.05,
        ),
        "5m",
        "the API answers {{ $value | humanizePercentage }} of its requests with a server error",
        "Clients receive 5xx responses.",
        "The server's log has the cause next to the request id that the client received (`x-request-id`). 503 means "
        "that engines for a model could not be started or that the database is unreachable.",
    ),
)


def alert(name: str) -> Alert:
    """Return the alert with this name.

    Raises:
        KeyError: The alert does not exist.
    """
    return _BY_NAME[name]


_BY_NAME = {each.name: each for each in ALERTS}
