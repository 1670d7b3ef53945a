"""Histories of jobs for `promtool test rules`: a healthy one, one that simply learned, and one for each alert.

A history has a sample a minute of each metric that the alerts query, as a function of the time in minutes; `step_s`
decides when a job records what it records once a step. Cases change a healthy job, most of them at minute START.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_rft.cluster.observability.alerts import find_alert
from agent_rft.cluster.observability.monitoring_files import DASHBOARDS
from agent_rft.cluster.observability.promql import samples
from agent_rft.metrics import METRICS, find_metric
from docs.dashboards.draw import filled

MINUTES, START, END = 330, 180, 300
"""Length of a history, the minute at which things go wrong in it, and the one at which its job has ended."""
STEPS_S = (10, 600)
DRIVER, ENGINE_NODE = 'instance="a:9464",job="j",process="driver"', 'instance="b:9464",job="j",process="engine-1"'
DISPATCHER, SERVER = 'instance="a:9464",job="j",process="dispatcher-0"', 'instance="a:9464",job="api",process="api-0"'
UP_A, UP_B, UP_RAY, UP_AUTOSCALER = (
    f'up{{instance="{instance}",job="{job}"}}'
    for instance, job in (
        ("a:9464", "agent-rft"),
        ("b:9464", "agent-rft"),
        ("a:8080", "agent-rft-ray"),
        ("a:44217", "agent-rft-ray"),
    )
)
DRIVER_UP, ENGINE_UP, API_UP = (samples("process_up", process) for process in (DRIVER, ENGINE_NODE, SERVER))
HEAD_MEMORY, HEAD_TOTAL = (
    f'ray_node_mem_{what}{{job="agent-rft-ray",ip="10.0.0.1",IsHeadNode="true"}}' for what in ("used", "total")
)
SPILLED = 'ray_spill_manager_objects_bytes{job="agent-rft-ray",NodeAddress="10.0.0.1",State="Spilled"}'

Values = Callable[[float], float | None]
"""The value at a minute; None ends the series. A counter grows by it each minute or, if it is recorded once a step,
each step. A histogram of steps observes it if it is above 0, and one of requests counts so many."""


def until(minute: float, before: Values, then: Values = lambda minute: None) -> Values:
    return lambda m: before(m) if m < minute else then(m)


def always(value: float) -> Values:
    return lambda minute: value


def ramp(first: float, last: float, begin: float = 0.0, end: float = END) -> Values:
    """Linear from `first` at minute `begin` to `last` at minute `end`."""
    return lambda m: first + (last - first) * min(1.0, max(0.0, (m - begin) / (end - begin)))


def changed(before: float, after: float) -> Values:
    """A value that changes at START."""
    return until(START, always(before), always(after))


GONE = until(START, always(1.0))
OF_THE_JOB: dict[str, Values] = {
    "time_step_s": always(10.0),
    "time_wait_s": always(3.0),
    "rollouts/graded": always(90.0),
    "rollouts/tool_failed": always(5.0),
    "train_mean_reward": ramp(0.2, 0.6),
    "train_mean_grade": ramp(0.2, 0.65),
    "held_out_grade_mean": ramp(0.2, 0.6),
    "entropy": ramp(1.0, 0.4),
    "logprob_gap": always(0.02),
    "logprob_gap_tokens": always(5000.0),
    "canary_gap": always(0.01),
    "groups_trained": always(10.0),
    "zero_variance_groups/all_right": always(5.0),
    "zero_variance_groups/equal": always(5.0),
    "engine_replacements": always(0.0),
    "learner_restarts": lambda m: float(m == 20),
    "checkpoint_store_failures/copy": lambda m: float(m == 20),
    "engine/engine-0/ready": always(1.0),
    "engine/engine-1/ready": until(10, always(0.0), always(1.0)),
    "disk_total_bytes": always(1e12),
    "disk_free_bytes": lambda m: 6e11 - 2e10 * (m // 30 % 4),
    "checkpoint_age_s": lambda m: 60 * (m % 50),
    "jobs_ended/done": lambda m: float(m == END - 1),
    "jobs_ended/failed": always(0.0),
}
"""What the driver of a healthy job exports; it ends at END in all cases."""
HEALTHY: dict[str, Values] = {
    **OF_THE_JOB,
    "endpoint/t/calls": always(100.0),
    "endpoint/t/failed": always(5.0),
    "endpoint/t/breaker": always(0.0),
    "api_request_s/200/GET/models": always(9.0),
    "api_request_s/500/GET/files": always(0.1),
    "api_jobs/queued": always(2.0),
    "api_jobs/running": always(1.0),
    "api_jobs/failed": always(3.0),
    "api_queue_age_s": always(600.0),
    API_UP: always(1.0),
    HEAD_MEMORY: always(3e10),
    HEAD_TOTAL: always(6.4e10),
    'ray_node_mem_used{job="agent-rft-ray",ip="10.0.0.2",IsHeadNode="false"}': always(6.3e10),
    'ray_node_mem_total{job="agent-rft-ray",ip="10.0.0.2",IsHeadNode="false"}': always(6.4e10),
    DRIVER_UP: until(END, always(1.0)),
    ENGINE_UP: until(END, always(1.0)),
    UP_A: until(END, always(1.0), always(0.0)),
    UP_B: until(END, always(1.0), always(0.0)),
    UP_RAY: always(1.0),
    SPILLED: always(4e9),
    UP_AUTOSCALER: always(0.0),  # Ray lists it, but without an autoscaler nobody has it
    'up{instance="theirs:80",job="theirs"}': always(0.0),
    'up{instance="idle:9464",job="agent-rft"}': always(0.0),
    'ray_spill_manager_objects_bytes{job="theirs",NodeAddress="10.0.0.9",State="Spilled"}': ramp(0, 1e12),
}


@dataclass(frozen=True)
class Case:
    """What differs from a healthy job, and the alerts that fire: name -> its label `job`."""

    about: str
    changes: Mapping[str, Values] = field(default_factory=dict)
    fires: Mapping[str, str | None] = field(default_factory=dict)


def _ends(then: str, when: float = START) -> dict[str, Values]:
    """The driver ends: `then` is `killed`, or its outcome. Its node serves no metrics any more."""
    gone = {name: until(when, values) for name, values in OF_THE_JOB.items()}
    if then != "killed":
        gone[f"jobs_ended/{then}"] = until(when, lambda m: float(m == when - 1))
    return gone | {DRIVER_UP: until(when, always(1.0))}


_STANDS: dict[str, Values] = {
    "time_step_s": changed(10, 0),
    "rollouts/graded": changed(90, 0),
    "rollouts/tool_failed": changed(5, 0),
}


def _waits_for_calls(ended: float) -> dict[str, Values]:
    """Calls are in flight for two hours; `ended` of them are answered each minute."""
    return {
        "endpoint/t/in_flight": until(START, always(30), until(END, always(4))),
        "endpoint/t/calls": changed(100, ended),
        "endpoint/t/answered": changed(95, ended),
        "endpoint/t/failed": changed(5, 0),
    }


API_GONE = {name: until(START, values) for name, values in HEALTHY.items() if name.startswith("api_") or name == API_UP}
WHOLE_CLUSTER_DOWN = {UP_A: changed(1, 0), UP_B: changed(1, 0), ENGINE_UP: GONE}
LEARNED: dict[str, Values] = {
    "train_mean_reward": ramp(0.2, 0.98, end=150),
    "train_mean_grade": ramp(0.2, 0.98, end=150),
    "held_out_grade_mean": ramp(0.2, 0.93, end=150),
    "entropy": ramp(1.0, 0.01, end=150),
    "groups_trained": ramp(19.0, 1.0, end=150),
    "zero_variance_groups/all_right": ramp(0.0, 19.0, end=150),
    "zero_variance_groups/equal": always(0.1),
}
FALLS = until(START, ramp(0.2, 0.8, end=START), ramp(0.8, 0.2, START, START + 30))
COLLAPSE = until(START, always(1.0), always(0.02))
CASES = (
    Case("healthy"),
    Case("has simply learned", LEARNED),
    Case("half of an endpoint's calls fail", {"endpoint/t/failed": changed(5, 50)}, {"EndpointFailing": "j"}),
    Case("an endpoint is down", {"endpoint/t/breaker": changed(0, 2)}, {"EndpointDown": "j"}),
    Case("a third of the rollouts is discarded", {"rollouts/tool_failed": changed(5, 60)}, {"RolloutsDiscarded": "j"}),
    Case("rollouts are cancelled", {"rollouts/cancelled": changed(1, 900)}),
    Case("hangs", _STANDS, {"NoProgress": "j"}),
    Case("waits for tool calls of two hours", _STANDS | _waits_for_calls(ended=0)),
    Case(
        "waits for a tool whose calls end, but no rollout does",
        _STANDS | _waits_for_calls(ended=9),
        {"NoProgress": "j"},
    ),
    Case("takes no step, but grades rollouts", {"time_step_s": changed(10, 0)}),
    Case("the reward falls", {"train_mean_reward": FALLS}, {"RewardCollapse": "j"}),
    Case(
        "entropy and reward collapse",
        {"entropy": COLLAPSE, "train_mean_reward": until(START, always(0.6), always(0.4))},
        {"EntropyCollapse": "j"},
    ),
    Case(
        "the entropy collapses, and groups become equal",
        {"entropy": COLLAPSE, "zero_variance_groups/all_wrong": changed(0, 30)},
        {"EntropyCollapse": "j"},
    ),
    Case("engine and learner differ", {"logprob_gap": changed(0.02, 0.3)}, {"EngineLearnerDifference": "j"}),
    Case("ten tokens differ", {"logprob_gap": changed(0.02, 0.3), "logprob_gap_tokens": always(10.0)}, {}),
    Case("only the canary differs", {"canary_gap": changed(0.01, 0.3)}, {"EngineLearnerDifference": "j"}),
    Case("nine of ten groups are wrong", {"zero_variance_groups/all_wrong": changed(0, 150)}, {"NoSignal": "j"}),
    Case("waits for rollouts", {"time_wait_s": changed(3, 9)}, {"LearnerStarves": "j"}),
    Case("an engine was replaced", {"engine_replacements": lambda m: float(m == START)}, {"EngineReplaced": "j"}),
    Case(
        "reward hacking",
        {"train_mean_grade": ramp(0.2, 0.9, START, END), "held_out_grade_mean": ramp(0.6, 0.2, START, END)},
        {"HeldOutFalls": "j"},
    ),
    Case("both grades fall", {"train_mean_grade": ramp(0.6, 0.3, START), "held_out_grade_mean": ramp(0.6, 0.2, START)}),
    Case("fails", _ends("failed") | WHOLE_CLUSTER_DOWN, {"JobFailed": "j"}),
    Case("is stopped", _ends("stopped") | WHOLE_CLUSTER_DOWN),
    Case("a job of the server fails before it has a driver", {"api_jobs/failed": changed(3, 4)}, {"JobFailed": "api"}),
    Case("its driver is killed, other jobs go on", _ends("killed"), {"JobLost": "j"}),
    Case("its node dies", _ends("killed") | WHOLE_CLUSTER_DOWN, {"JobLost": "j", "TargetDown": "agent-rft"}),
    Case("the node of an engine is down", {UP_B: changed(1, 0), ENGINE_UP: GONE}, {"TargetDown": "agent-rft"}),
    Case("Ray's metrics are down", {UP_RAY: changed(1, 0)}, {"TargetDown": "agent-rft-ray"}),
    Case("no job is started", {"api_jobs/running": changed(1, 0)}, {"QueueStands": "api"}),
    Case("a job is queued for hours", {"api_queue_age_s": changed(600, 5 * 3600)}, {"QueuedForHours": "api"}),
    Case("the API is gone while a job runs", API_GONE, {"ApiDown": "api"}),
    Case(
        "the head is gone while no job runs",
        _ends("done", START - 60) | API_GONE | dict.fromkeys((UP_A, UP_B, ENGINE_UP, UP_RAY, UP_AUTOSCALER), GONE),
        {"ApiDown": "api"},
    ),
    Case("the memory of the head is nearly used up", {HEAD_MEMORY: changed(3e10, 6e10)}, {"HeadMemory": None}),
    Case(
        "the learner restarts repeatedly",
        {"learner_restarts": lambda m: float(m in (START, START + 10, START + 20))},
        {"LearnerRestarts": "j"},
    ),
    Case(
        "the checkpoint store fails",
        {"checkpoint_store_failures/copy": lambda m: float(START <= m < START + 4)},
        {"CheckpointStoreFails": "j"},
    ),
    Case(
        "a tracker fails",
        {"tracker_failures/wandb": lambda m: None if m < START else float(m == START)},
        {"TrackerFails": "j"},
    ),
    Case("the server is idle", {"api_jobs/running": changed(1, 0), "api_jobs/queued": changed(2, 0)}),
    Case("an engine does not come back", {"engine/engine-1/ready": changed(1, 0)}, {"EnginesMissing": "j"}),
    Case("no checkpoint", {"checkpoint_age_s": lambda m: 60 * max(m - 150, m % 50)}, {"OldCheckpoint": "j"}),
    Case("Ray spills", {SPILLED: ramp(0, 1e10, START, END)}, {"RaySpills": None}),
    Case("the disk is full", {"disk_free_bytes": changed(5e11, 5e10)}, {"DiskFull": "j"}),
    Case("the disk will be full", {"disk_free_bytes": ramp(9e11, 3e11, START, END)}, {"DiskFull": "j"}),
    Case("the API fails", {"api_request_s/500/GET/files": changed(0.1, 2)}, {"ServerErrors": None}),
)


def promtool_test(step_s: int) -> dict[str, Any]:
    """The content of a test file: no alert fires before START, and those of the case until the end.

    In the first case of each alert, a curve of its panel crosses the line of its threshold.
    """
    first = {name: case.about for case in reversed(CASES) for name in case.fires}
    return {
        "rule_files": ["alerts.yml"],
        "evaluation_interval": "5m",
        "tests": [
            {
                "name": f"steps of {step_s} s: {case.about}",
                "interval": "1m",
                "input_series": [
                    {"series": name, "values": values}
                    for name, values in _history(HEALTHY | case.changes, step_s).items()
                ],
                "promql_expr_test": [
                    _firing(START - 1, {}),
                    _firing(MINUTES, case.fires),
                    *(_crossing(name) for name in case.fires if first[name] == case.about),
                ],
            }
            for case in CASES
        ],
    }


def _firing(minute: int, alerts: Mapping[str, str | None]) -> dict[str, Any]:
    """Exactly these alerts have fired by that minute."""
    jobs = {find_alert: "" if job is None else f',job="{job}"' for find_alert, job in alerts.items()}
    found = [{"labels": f'{{alertname="{find_alert}"{job}}}', "value": 1} for find_alert, job in jobs.items()]
    fired = f'max_over_time(ALERTS{{alertstate="firing"}}[{minute}m])'
    return {"expr": f"group by (alertname, job) ({fired})", "eval_time": f"{minute}m", "exp_samples": found}


def _crossing(name: str) -> dict[str, Any]:
    """A curve of the alert's panel was on the alert's side of its line after START."""
    condition = find_alert(name).condition
    (panel,) = [panel for board in DASHBOARDS for _, panel in board.numbered_panels if find_alert(name) in panel.alerts]
    asked = [filled(query.expr, {"job": ".+", "endpoint": ".+"}) for query in panel.queries]
    threshold, curves = f"{condition.threshold}", asked
    if isinstance(condition.threshold, str):
        threshold, curves = f"({asked[-1]})", asked[:-1]
    crossed = " or ".join(
        f"count(max_over_time((({curve}) {condition.comparison} {threshold})[{MINUTES - START}m:1m]))"
        for curve in curves
    )
    return {"expr": f"sum({crossed}) >= bool 1", "eval_time": f"{MINUTES}m", "exp_samples": [{"value": 1}]}


def _history(changes: Mapping[str, Values], step_s: int) -> dict[str, str]:
    """The samples of each series, in promtool's notation."""
    history: dict[str, str] = {}
    for name, values in changes.items():
        found = find_metric(name)
        if found is None:
            history[name] = _written(map(values, range(MINUTES)))
            continue
        metric = METRICS[found[0]]
        place = DISPATCHER if name.startswith("endpoint/") else SERVER if name.startswith("api_") else DRIVER
        values = until(END, values) if place is DRIVER else values
        period = 1.0 if metric.is_live else step_s / 60
        if metric.kind == "gauge":
            history[samples(name, place)] = _written(_last(values, period))
        elif metric.kind == "counter":
            history[samples(name, place)] = _written(_sums(values, period))
        else:
            history[samples(name, place, part="sum")] = _written(_sums(values, period))
            history[samples(name, place, part="count")] = _written(
                _sums(values if metric.is_live else _counted(values), period)
            )
    return history


def _written(values: Iterable[float | None]) -> str:
    return " ".join("stale" if value is None else f"{value:.9g}" for value in values)


def _last(values: Values, period: float) -> Iterator[float | None]:
    """What was recorded last, every `period` minutes; nothing before the first time and after the end."""
    for minute in range(MINUTES):
        yield None if minute < period or values(minute) is None else values(minute // period * period)


def _sums(values: Values, period: float) -> Iterator[float | None]:
    """The sums of what was recorded until each minute, every `period` minutes."""
    total, num_done = 0.0, 0
    for minute in range(MINUTES):
        for num in range(num_done + 1, int(minute / period) + 1):
            total += values(num * period) or 0.0
            num_done = num
        yield None if values(minute) is None else total


def _counted(values: Values) -> Values:
    """1 for each observation."""
    return lambda minute: None if (value := values(minute)) is None else float(value > 0)
