"""Alerts, each with its effect on a job and a fix; the alert rules and RUNBOOK.md are generated from these entries.

Each alert has one panel in `agent_rft.cluster.observability.dashboards` that draws the alert's threshold.

The averaging windows suit training steps of ten seconds to ten minutes. Metrics that are recorded once per step are
averaged over at least 30 minutes (three steps of ten minutes), because a single batch is too noisy.
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
from agent_rft.trainer.loop.step_checks import GAP_HALTS_AT, GAP_WARNS_AT, MIN_GAP_TOKENS


@dataclass(frozen=True, slots=True)
class Condition:
    """PromQL condition of an alert.

    `value` is compared with `threshold`, a number or a PromQL expression with one threshold per series. `continuation`
    is empty, or continues the expression with `and`, `unless` or `or`.
    """

    value: str
    comparison: Literal["<", "==", ">"]
    threshold: float | str
    continuation: str = ""

    @property
    def expr(self) -> str:
        threshold = self.threshold if isinstance(self.threshold, str) else f"{self.threshold:g}"
        return f"{self.value} {self.comparison} {threshold} {self.continuation}".rstrip()


@dataclass(frozen=True, slots=True)
class Alert:
    """Alert that fires once `condition` has been true for `pending_period` (a Prometheus duration such as `5m`).

    `meaning` describes the effect on the job, and `runbook` describes what to do.
    """

    name: str
    severity: Literal["warning", "critical"]
    condition: Condition
    pending_period: str
    summary: str
    meaning: str
    runbook: str

    @property
    def expr(self) -> str:
        return self.condition.expr


def _rate(name: str, window: str, *matchers: str, by: Sequence[str] = ("job",), part: Part | None = None) -> str:
    return rate(samples(name, *matchers, part=part), window, by)


def _mean(name: str, when: str = "") -> str:
    """Return PromQL for the half-hour mean of a gauge; `when` may shift the time, as in ` offset 2h`."""
    return f"avg_over_time({samples(name)}[30m]{when})"


def _not_ended(*matchers: str) -> str:
    """Return PromQL that evaluates to 0 for each job whose driver ran in the last hour without reporting an end."""
    return f"sum by (job) (last_over_time({samples('jobs_ended/<outcome>', *matchers)}[1h])) == 0"


def driver_up_expr(*matchers: str) -> str:
    """Return PromQL with one value per job: 1 while its driver runs, 0 if the driver is gone without reporting an end.

    A job whose driver has reported the end has no value. The value 0 disappears after one hour.
    """
    return f"(max by (job) ({samples('process_up', *matchers, DRIVER)}) or {_not_ended(*matchers)})"


def api_up_expr(*matchers: str) -> str:
    """Return PromQL that evaluates to 1 while the API runs, and to 0 for one day afterwards."""
    up = samples("process_up", *matchers, API)
    return f"(max by (job) ({up}) or 0 * max by (job) (last_over_time({up}[1d])))"


def learner_restarts_expr(*matchers: str) -> str:
    return f"sum by (job) (increase({samples('learner_restarts', *matchers)}[1h]))"


def store_failures_expr(*matchers: str) -> str:
    return f"sum by (job) (increase({samples('checkpoint_store_failures/<action>', *matchers)}[30m]))"


def failed_trackers_expr(*matchers: str) -> str:
    return f"sum by (job, tracker) ({samples('tracker_failures/<tracker>', *matchers)})"


def failed_jobs_expr(*matchers: str) -> str:
    return f"sum by (job) (max_over_time({samples('jobs_ended/failed', *matchers)}[15m]))"


DRIVER, API = 'process="driver"', 'process=~"api-[0-9]+"'
DISCARDED = 'outcome!~"graded|cancelled"'
NOT_ALL_RIGHT = 'kind!="all_right"'
"""Label matcher that excludes groups whose rollouts all pass."""
_ENDPOINT = ("job", "endpoint")
_REWARD = _mean("train_mean_reward")
_MAX_REWARD = f"(max_over_time({_REWARD}[6h:5m]) > 0.1)"
_ENTROPY = samples("entropy")
_NO_SIGNAL = _rate("zero_variance_groups/<kind>", "30m", NOT_ALL_RIGHT)
_GROUPS = f"({_rate('zero_variance_groups/<kind>', '30m')} + {_rate('groups_trained', '30m')} > 0)"
API_FAILED = f"max by (job) (delta({samples('api_jobs/failed')}[15m]))"
UP = f'up{{job="{OUR_TARGETS}"}}'
RAY_UP = f'max by (job, node) (label_replace(up{{job="{RAY_TARGETS}"}}, "node", "$1", "instance", "(.+):.+"))'
"""PromQL that returns one value per node: 1 if any of Ray's metrics ports responds, else 0."""
NEW_SPILLS = f"sum by (NodeAddress) (increase({RAY_SPILLED}[15m]))"
_ENDED_CALLS = " + ".join(
    f"sum by (job, endpoint) (increase({samples(f'endpoint/<endpoint>/{end}')}[15m]))" for end in ("answered", "failed")
)
_LONG_CALLS = (
    f"sum by (job, endpoint) (min_over_time({samples('endpoint/<endpoint>/in_flight')}[15m])) > 0 "
    f"unless on (job, endpoint) ({_ENDED_CALLS} > 0)"
)
"""Endpoints that had calls in flight throughout the last 15 minutes. No call ended in this time."""
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
        "{{ $value | humanizePercentage }} of the calls from {{ $labels.job }} to {{ $labels.endpoint }} fail",
        "Rollouts that need the endpoint are discarded and retried, so the job is slower but still trains correctly.",
        "See 'Errors per second' in the Endpoints dashboard. For server_error and connection, check the server's log, "
        "its process and its URL. Errors of kind deadline or busy mean that the server has too little capacity: add "
        "capacity, lower max_concurrency or raise timeout_s.",
    ),
    Alert(
        "EndpointDown",
        "critical",
        Condition(f"max by (job, endpoint) ({samples('endpoint/<endpoint>/breaker')})", "==", 2),
        "1m",
        "{{ $labels.endpoint }} of {{ $labels.job }} is down and receives only probes",
        "The job waits for the endpoint. Rollouts whose calls reach their deadline are discarded, never graded 0.",
        "Start the server, or correct its URL in the job. The job continues within a minute, as soon as a probe "
        "succeeds.",
    ),
    Alert(
        "RolloutsDiscarded",
        "warning",
        Condition(
            f"{_rate('rollouts/<outcome>', '10m', DISCARDED)} / ({_rate('rollouts/<outcome>', '10m')} > 0)", ">", 0.3
        ),
        "5m",
        "{{ $value | humanizePercentage }} of the rollouts of {{ $labels.job }} are discarded",
        "The time spent on these rollouts is lost. If their share exceeds limits.max_failure_rate, the job starts "
        "only one test rollout from time to time, until a test rollout succeeds.",
        "See 'Rollouts per second by outcome' in the Job dashboard. tool_failed and grader_failed: see the Endpoints "
        "dashboard. rollout_timeout: check limits.rollout_timeout_s, and look for slow tools. rollout_waited: read "
        "the error message. engine_failed: see EngineReplaced. template_failed: change the model's chat template. "
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
        "{{ $labels.job }} has completed no training step and graded no rollout for 15 minutes",
        "The job is waiting for resources, its engines are starting, its endpoints are down, or the job hangs. The "
        "alert is suppressed while an endpoint has calls in flight but no call has ended for 15 minutes, because the "
        "calls may only be slow. They end after `timeout_s` at the latest.",
        "The job's last events (`events.jsonl`, `agent-rft events list JOB`) show what the job is waiting for. If it "
        "is waiting for resources, run `ray status`; if it is waiting for an endpoint, see EndpointDown. If the "
        "events do not show a reason, stop the job with SIGTERM, which saves a checkpoint, and resume the job.",
    ),
    Alert(
        "RewardCollapse",
        "warning",
        Condition(_REWARD, "<", f"0.5 * {_MAX_REWARD}"),
        "10m",
        "the reward of {{ $labels.job }} fell to {{ $value | humanize }}, less than half of its maximum",
        "The policy is getting worse, or the grader or a tool has changed its answers.",
        "Compare grades and tool results before and after the drop (`agent-rft traces RUN --name step-N --worst 5`). "
        "If the endpoints work correctly, pause the job. Then continue from the best checkpoint, and lower "
        "learning_rate_multiplier or set kl_coef above 0.",
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
        "the entropy of {{ $labels.job }} fell to {{ $value | humanize }} nats, and either its reward fell as well or "
        "most of its groups have zero variance",
        "The rollouts of a group become identical before they become right. Soon all groups will have zero variance "
        "and teach nothing. The alert does not fire if the entropy falls but the reward stays high: such a job has "
        "simply learned its rows.",
        "Compare 'Entropy' in the Learner dashboard with 'Reward' in the Job dashboard. Pause the job and continue "
        "from the best checkpoint with a lower learning rate, a higher temperature, a higher clip_high or harder "
        "rows.",
    ),
    Alert(
        "EngineLearnerDifference",
        "critical",
        Condition(
            f"max by (job) ({samples('logprob_gap')})",
            ">",
            GAP_WARNS_AT,
            f"and max by (job) ({samples('logprob_gap_tokens')}) >= {MIN_GAP_TOKENS} "
            f"or max by (job) ({samples('canary_gap')}) > {GAP_WARNS_AT:g}",
        ),
        "0m",
        "in {{ $labels.job }}, the log-probabilities of engines and learner differ by {{ $value | humanize }} nats, "
        "although the weights are the same",
        "If the log-probabilities of engines and learner differ, the importance weights become noise. If the "
        f"difference reaches {GAP_HALTS_AT:g} nats, the job stops.",
        "See 'Log-probability gap' in the Learner dashboard. If the gap appears only after some updates, an engine "
        "missed a weight update; an event names this engine, and the engine is replaced. If the gap exists from the "
        "first step, suspect the dtype or vLLM's implementation of the model, and try float32.",
    ),
    Alert(
        "NoSignal",
        "warning",
        Condition(f"{_NO_SIGNAL} / {_GROUPS}", ">", 0.8),
        "10m",
        "{{ $value | humanizePercentage }} of the groups of {{ $labels.job }} have equal rewards, although not all of "
        "their rollouts are right",
        "Most rollouts are wasted, because zero-variance groups teach nothing. After three zero-variance batches the "
        "job stops.",
        "See 'Groups per minute' in the Job dashboard, which counts these groups by kind. all_wrong means that the "
        "rows are too hard: use easier rows or an SFT warm-up. equal means that the grader gives all rollouts of a "
        "group the same grade. all_right groups do not count for this alert, because they are expected: once a job has "
        "learned its rows, nearly all of its groups are all_right, and the job ends.",
    ),
    Alert(
        "LearnerStarves",
        "warning",
        Condition(
            f"{_rate('time_wait_s', '30m', part='sum')} / ({_rate('time_step_s', '30m', part='sum')} > 0)", ">", 0.8
        ),
        "15m",
        "the learner of {{ $labels.job }} waits for rollouts {{ $value | humanizePercentage }} of the time",
        "Training is correct, but the learner's resources are idle most of the time.",
        "Use more engines (cluster.engines), use faster tools, or set max_staleness to 2. If calls wait in a queue "
        "(see the Endpoints dashboard), raise max_concurrency. If all slots of the engines are in use (see the Fleet "
        "dashboard), add engines.",
    ),
    Alert(
        "EngineReplaced",
        "warning",
        Condition(f"sum by (job) (increase({samples('engine_replacements')}[15m]))", ">", 0),
        "0m",
        "an engine of {{ $labels.job }} was replaced",
        "The rollouts that ran on the lost engine start again. The job ends if, between two weight updates, its "
        "engines are replaced more than three times each, on average.",
        "The job's events contain the cause. If the engine was killed or ran out of memory, lower max_num_seqs or use "
        "a larger node. If its log-probabilities differed from the learner's, see EngineLearnerDifference.",
    ),
    Alert(
        "LearnerRestarts",
        "warning",
        Condition(learner_restarts_expr(), ">", 2),
        "0m",
        "the learner of {{ $labels.job }} has restarted {{ $value | humanize }} times in an hour",
        "At each restart, all ranks start again and the updates since the last checkpoint are repeated. If the "
        "learner keeps restarting without finishing a step in between, the job ends.",
        "The `learner_restarted` events contain the cause, and the rank's log has details. If memory ran out, lower "
        "`cluster.micro_batch_tokens`. If a node repeatedly leaves the cluster, check `ray status`.",
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
        "within two hours, the held-out grade of {{ $labels.job }} fell to {{ $value | humanize }} while the training "
        "grade rose",
        "This is reward hacking: the policy exploits its grader instead of solving the task.",
        "See 'Held-out grade' in the Job dashboard. Read rollouts with high grades (`agent-rft traces RUN`); the "
        "event `alarm_raised` lists some of them. Add a guard or correct the grader, and continue from a checkpoint "
        "that was saved before the held-out grade fell.",
    ),
    Alert(
        "JobFailed",
        "warning",
        Condition(failed_jobs_expr(), ">", 0, f"or {API_FAILED} > 0"),
        "0m",
        "{{ $labels.job }}: a job has failed",
        "The job's driver ended with an error and released the engines and the learner. If the alert names the job "
        "`api`, a job on the server failed, possibly before its driver started.",
        "The last event contains the cause (`events.jsonl`, `agent-rft events list JOB`), and `agent-rft jobs log "
        "JOB` prints the driver's output. `agent-rft explain CODE` explains a problem code. Fix the cause and resume "
        "the job, which continues from its last checkpoint.",
    ),
    Alert(
        "JobLost",
        "critical",
        Condition(driver_up_expr(), "==", 0),
        "5m",
        "the driver of {{ $labels.job }} is gone and did not report the end of the job",
        "The driver was killed, or its node is down. The steps since the last checkpoint must be repeated. If "
        "Prometheus scrapes less often than every 15 s, it may miss the end of a job that ended normally, "
        "which causes a false alarm.",
        "If the run's events include `job_ended`, the job ended normally and nothing is lost. A server restarts its "
        "jobs automatically; resume other jobs with `agent-rft train JOB.yaml --resume RUN`. `dmesg` or `kubectl "
        "describe pod` shows whether memory ran out.",
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
        "Prometheus cannot scrape {{ $labels.instance }}{{ $labels.node }}, where a job or Ray is running",
        "Panels and alerts have no data about the processes on this node. A node without a job serves no metrics, so "
        "the alert does not fire for a node whose jobs have ended.",
        "Check whether the node is in the cluster (`ray status`). If it is, run `curl http://NODE:9464/metrics` on "
        "the host of Prometheus. If this command fails, a firewall or a network policy may block the port, or a full "
        "disk prevents the processes from writing their metrics.",
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
        "{{ $value }} jobs on the server are queued, but no job is running",
        "A queued job could start but does not: the server cannot reach the cluster, or is waiting for a paused job "
        "to save its checkpoint.",
        "The server's log shows what the server is doing. `ray status` and `agent-rft jobs get JOB` show whether the "
        "cluster answers. It is safe to restart the server: no job is lost.",
    ),
    Alert(
        "QueuedForHours",
        "warning",
        Condition(f"max by (job) ({samples('api_queue_age_s')})", ">", 4 * 3600),
        "5m",
        "a job on the server has been queued for {{ $value | humanizeDuration }}",
        "The job waits until the jobs ahead of it have ended. At most `jobs.max_running` jobs run at a time.",
        "`agent-rft jobs list` shows the running jobs. Raise `jobs.max_running` if the cluster has free GPUs (`ray "
        "status`), add GPUs, or pause a job that can wait. If no job is running, see QueueStands.",
    ),
    Alert(
        "ApiDown",
        "critical",
        Condition(api_up_expr(), "==", 0),
        "5m",
        "no process of the API exports metrics",
        "The API or the whole head node is down: clients get no answer, and queued jobs do not start. Running jobs "
        "continue if their nodes are up.",
        "Check the head node (`kubectl get pods`, `ray status`) and `curl http://SERVER:8000/health`. Start the "
        "server again; it then continues its jobs. If you stopped the server on purpose, silence the alert. "
        "Without a silence, the alert ends after one day.",
    ),
    Alert(
        "HeadMemory",
        "critical",
        Condition(RAY_HEAD_MEMORY, ">", 0.9),
        "5m",
        "the head node {{ $labels.ip }} uses {{ $value | humanizePercentage }} of its memory",
        "When 95 % of the memory is in use, Ray kills processes on the head node. A container that exceeds its memory "
        "limit is killed. If the head node is killed, the cluster stops.",
        "See 'Memory by process' in the Fleet dashboard. Give the head node more memory, and do not run engines and "
        "learner ranks on it. Ray's object store counts as used memory; `--object-store-memory` sets its size.",
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
        "some engines of {{ $labels.job }} have not been ready for 15 minutes; only {{ $value }} engines are ready",
        "The job samples with fewer engines than planned and is slower.",
        "See 'Ready engines' in the Fleet dashboard. The events show what the engines are waiting for. `ray status` "
        "shows whether GPUs are missing, or whether the autoscaler cannot start nodes. If an engine keeps failing, "
        "see EngineReplaced.",
    ),
    Alert(
        "OldCheckpoint",
        "warning",
        Condition(samples("checkpoint_age_s"), ">", 7200),
        "5m",
        "the last checkpoint of {{ $labels.job }} was {{ $value | humanizeDuration }} ago",
        "If the driver is killed now, all steps since the last checkpoint must be repeated.",
        "See 'Checkpoint age' and 'Step time' in the Job dashboard. If `cluster.checkpoint_interval` is too long, "
        "lower it; the interval may be changed when a job is resumed. If the interval is short and checkpoints have "
        "stopped only now, see the alert NoProgress. To save a checkpoint now, pause the job (or stop it with SIGTERM) "
        "and resume it.",
    ),
    Alert(
        "CheckpointStoreFails",
        "warning",
        Condition(store_failures_expr(), ">", 2),
        "0m",
        "the checkpoint store of {{ $labels.job }} has failed {{ $value | humanize }} times in half an hour",
        "Training continues, but the newest checkpoint exists only in the run folder and is lost if the disk of the "
        "run folder fails.",
        "The `checkpoint_store_failed` events contain the cause. Check the credentials, the quota and the URL in "
        "`checkpoint_store`. The job does not need a restart, because it tries to upload again with the next "
        "checkpoint.",
    ),
    Alert(
        "TrackerFails",
        "warning",
        Condition(failed_trackers_expr(), ">", 0),
        "0m",
        "{{ $labels.tracker }} no longer receives metrics from {{ $labels.job }}",
        "Training continues, and the run folder has all metrics.",
        "The event `tracker_failed` contains the reason. The job connects to the tracker again when it is paused and "
        "resumed. If the tracker fails in all jobs, check the operator's setting `trackers` and the tracker's status "
        "page.",
    ),
    Alert(
        "RaySpills",
        "warning",
        Condition(NEW_SPILLS, ">", 0),
        "0m",
        "Ray's object store on {{ $labels.NodeAddress }} spills to disk ({{ $value | humanize1024 }}B in 15 minutes)",
        "The weights of one version do not fit in the object store. Weight updates become slow, and a pod that "
        "exceeds its disk limit is evicted.",
        "See 'Spilled to disk in 15 minutes, per node' in the Fleet dashboard. Give the object store more memory (`ray "
        "start --object-store-memory`; in Kubernetes, `object-store-memory` of the worker group), and give /dev/shm "
        "the same size.",
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
        "the disk with the run folder of {{ $labels.job }} is nearly full, or will be full within four hours",
        "When the disk is full, the next checkpoint cannot be written and the job ends. The last complete checkpoint "
        "can still be loaded.",
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
        "In the server's log, the cause is next to the request id, which the client received as `x-request-id`. "
        "Status 503 means that the engines of a model could not be started, or that the database cannot be reached.",
    ),
)


def find_alert(name: str) -> Alert:
    """Return the alert with this name.

    Raises:
        KeyError: The alert does not exist.
    """
    return _BY_NAME[name]


_BY_NAME = {each.name: each for each in ALERTS}
