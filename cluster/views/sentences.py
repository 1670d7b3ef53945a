"""The sentence of each event, as shown in the live view, the API's events and events.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainer import events as e
from trainer.loop.diagnosis import Diagnosis, how_many
from trainer.metrics.intervals import FEW
from trainer.spec.plan import Choice

SHOWN_TOOLS = 6
PHASES: Mapping[e.Phase, str] = {
    "resources": "waiting for resources",
    "actors": "starting",
    "replay": "replaying updates",
    "grading": "grading",
    "training": "training",
    "validation": "grading the validation file",
    "checkpoint": "writing a checkpoint",
    "copy": "copying the last checkpoint to the checkpoint store",
}

_INTEGRATION: Mapping[e.IntegrationCause, str] = {
    "not_installed": ": its package is not installed",
    "not_allowed": ": the operator has not set it up",
    "failed": "",
}


def sentence(event: e.Event) -> str:
    """An event in English, without its time and level."""
    match event:
        case e.JobStarted():
            return f"{event.method} job with {event.total_steps} steps"
        case e.SettingChosen():
            return str(Choice(event.setting, event.value, event.why))
        case e.SettingChanged():
            return f"{event.setting} is {event.now}; the run began with {event.was}"
        case e.JobResumed():
            return f"resumed at step {event.step} of {event.total_steps}"
        case e.PhaseBegan():
            return _phase(event)
        case e.StepDone():
            return f"step {event.step} of {event.total_steps} is done"
        case e.Evaluated():
            return _evaluated(event)
        case e.ReadinessJudged():
            return f"the verdict is {event.verdict}: {_list(event.reasons)}"
        case e.LossEvaluated():
            return f"validation at step {event.step}: loss {event.loss:.4f} ({event.num_rows} rows)"
        case e.CheckpointSaved():
            return f"checkpoint step-{event.step:06d}" + ("" if event.offered else " to resume from")
        case e.CheckpointIntervalChanged():
            change = f"checkpoints are {event.minutes:.1f} minutes apart from now on instead of {event.was:.1f}"
            return f"writing a checkpoint took {event.write_s:.0f} s: {change}"
        case e.TrainingWaitedForCheckpoint():
            interval = "step" if event.steps == 1 else f"{event.steps} steps"
            return f"training waited {event.waited_s:.0f} s for a checkpoint: writing takes longer than {interval}"
        case e.CheckpointCopied():
            return f"checkpoint step-{event.step:06d} is in the checkpoint store ({event.seconds:.1f} s)"
        case e.StateConverted():
            return f"the checkpoint of step {event.step} was converted from {event.before} to {event.now}"
        case e.UpdatesReplayed():
            again = f"replayed {event.num_updates} updates in {event.seconds:.1f} s"
            return f"{again}; {event.num_groups} finished groups are kept"
        case e.EarlyStopped():
            reward = "" if event.best_reward is None else f", with a validation reward of {event.best_reward:.3f}"
            when = f"stopped early, after {event.step} of {event.total_steps} steps"
            return f"{when}: validations brought no gain; the best checkpoint is step-{event.best_step:06d}{reward}"
        case e.NothingLeftToLearn():
            when = f"ended after {event.step} of {event.total_steps} steps"
            return f"{when}: nearly all answers are right, nothing is left to learn"
        case e.FewerCalls():
            calls = f"{event.tool_calls:.2f} instead of {event.best_tool_calls:.2f} calls per rollout"
            return (
                f"step-{event.cheaper_step:06d} may be as good as the best checkpoint, step-{event.best_step:06d}, "
                f"with {calls}: its reward differs by {event.reward_change:+.3f}, within the 95 % interval "
                f"({event.num_rows} rows)"
            )
        case e.SidesCompared():
            shares = f"engines were busy {event.engine_share:.0%} of the time, learner ranks {event.rank_share:.0%}"
            if event.better_engines is None:
                return shares
            better = f"{event.better_engines} and {event.better_learner_ranks}"
            return f"{shares}; instead of {event.engines} and {event.learner_ranks} of them, {better} would wait less"
        case e.JobEnded():
            return event.error or ("the job is done" if event.outcome == "done" else "the job was stopped")
        case _:
            return _trouble(event)


def _phase(event: e.PhaseBegan) -> str:
    name = PHASES[event.phase]
    if not event.detail:
        return name
    return f"{name}: {event.detail}" if event.phase == "resources" else f"{name} {event.detail}"


def _evaluated(event: e.Evaluated) -> str:
    found = event.evaluation
    interval = found.interval("grade")
    grade = f"grade {found.grade:.3f}" + (f" {interval.bounds('{:.3f}')}" if interval else "")
    rows = found.graded_rows or found.num_rows
    count = f"({found.num_rollouts} rollouts of {rows} rows" + (", a small sample)" if rows < FEW else ")")
    if event.name == e.VALIDATION:
        return f"validation at step {event.step}: {grade}, reward {found.reward:.3f} {count}"
    return f"{event.name}: {grade}, {found.tool_calls:.2f} tool calls {count}"


def _trouble(event: e.Event) -> str:
    match event:
        case e.UpdateSkipped():
            return f"step {event.step}: the gradient was not finite, the update was skipped"
        case e.LearnerRestarted():
            return f"the learner starts again from the last checkpoint, since a rank was lost: {event.cause}"
        case e.CheckpointStoreFailed():
            what = "take a checkpoint" if event.action == "copy" else "remove older checkpoints"
            again = "at the next checkpoint" if event.again_in_s is None else f"in {event.again_in_s:.0f} s"
            return f"the checkpoint store did not {what}{_why(event.cause)}; it is tried again {again}"
        case e.CheckpointStoreTaken():
            return "another process has claimed the run's checkpoints in the store: this one uploads no more of them"
        case e.DiskFull():
            return "the disk of the run folder is full: the job pauses until there is room"
        case e.DiskFreed():
            return "the disk has room again: the job goes on"
        case e.BatchStarved():
            why = Diagnosis(event.cause, event.name, event.error)
            return f"nothing to learn from: {how_many(event.without_signal, event.num_lost)}: {why}"
        case e.NoToolCalls():
            return f"step {event.step}: none of {event.num_rollouts} rollouts called any of its tools"
        case e.EngineLearnerGap():
            return f"engine and learner differ by {event.gap_nats:.3f} nats on the same weights"
        case e.AlarmRaised():
            traces = ", ".join(event.traces)
            return f"step {event.step}: {_alarm(event)} (agent-rft explain {event.rule}); look at {traces}"
        case e.RolloutDiscarded():
            return f"a rollout of row {event.row_id} was discarded: {event.cause}"
        case e.RolloutsProgressed():
            return progress(event)
        case e.EndpointDown():
            return (
                f"{event.num_failed} of the last {event.num_rollouts} rollouts were discarded, {event.num_by_endpoint} "
                f"because of {event.endpoint}: new ones are held back until a probe is graded. Last error: "
                f"{event.cause}"
            )
        case e.EndpointUp():
            return "a probe was graded: rollouts resume"
        case e.SessionProblem():
            return event.detail
        case e.SinkCutOff():
            return f"the sink {event.sink} was cut off and gets no more events{_why(event.reason)}"
        case e.IntegrationFailed():
            return f"{event.integration} gets no numbers of this run{_INTEGRATION[event.cause]}{_why(event.reason)}"
        case e.Notice():
            return event.text
        case _:
            return _actor(event)


def _actor(event: e.Event) -> str:
    match event:
        case e.EngineWaiting():
            return f"the cluster has no room for {event.engine} yet; it joins when there is room"
        case e.EngineReplaced():
            return f"{event.engine} is being replaced{_why(event.reason)}"
        case e.EngineUnstable():
            return (
                f"{event.engine} was replaced {event.times} times in a row without working from one weight update to "
                f"the next{_why(event.reason)}"
            )
        case e.WeightsNotCompared():
            return (
                f"the engines load {event.num_tensors} tensors in another form ({_list(event.tensors)}): "
                "only the canary compares them with the learner"
            )
        case e.EngineRestarted():
            return f"{event.engine} is being restarted{_why(event.reason)}"
        case e.EngineJoined():
            return f"{event.engine} is ready, with the newest weights"
        case e.ActorSilent():
            work = f": {_list(event.work)}" if event.work else ""
            what = ("; waiting for it" if event.waiting else "; last seen at") if work else ""
            return f"{event.actor} has not answered for {event.silent_s:.0f} s{what}{work}"
        case e.ActorAnswered():
            return f"{event.actor} answers again, after {event.silent_s:.0f} s"
        case e.WorkStalled():
            return f"{event.actor} has been in {event.stage} for {event.for_s:.0f} s"
        case e.EndpointOutageBegan():
            return f"{event.endpoint} is down: it only receives probes, and all other calls wait"
        case e.EndpointOutageEnded():
            effect = f"{event.delayed_calls} calls were delayed, {event.failed_calls} failed"
            return f"{event.endpoint} is up again after {event.seconds:.0f} s; {effect}"
        case e.RolloutsStalled():
            longest = _list(event.longest) or "waiting for an engine"
            return f"no rollout has ended for {event.idle_s:.0f} s, {event.num_in_flight} are in flight: {longest}"
        case e.ComponentFailed():
            return f"the {event.component} failed{_why(event.error)}"
    return event.kind.replace("_", " ")


def progress(event: e.RolloutsProgressed) -> str:
    """How far the rollouts are: `rollouts: 17/32 ended, 15 in flight, slowest 12 s (row 31); calls: cat 25`."""
    return f"rollouts: {counted(event)}" + (f"; calls: {calls_by_tool(event)}" if event.calls else "")


def counted(event: e.RolloutsProgressed) -> str:
    """`17/32 ended, 15 in flight, slowest 12 s (row 31)`."""
    slowest = f", slowest {event.slowest_s:.0f} s (row {_line(event.slowest_row)})" if event.in_flight else ""
    return f"{event.ended}/{event.total} ended, {event.in_flight} in flight{slowest}"


def calls_by_tool(event: e.RolloutsProgressed) -> str:
    """The tools that were called most, with their errors: `search 40, cat 25 (2 errors)`."""

    def one(tool: str, count: float) -> str:
        errors = event.errors.get(tool, 0.0)
        return f"{tool} {count:.0f}" + (f" ({errors:.0f} error{'s' * (errors > 1)})" if errors else "")

    most = sorted(event.calls.items(), key=lambda pair: -pair[1])
    more = [f"{len(most) - SHOWN_TOOLS} more"] if len(most) > SHOWN_TOOLS else []
    return _list([*(one(*pair) for pair in most[:SHOWN_TOOLS]), *more])


def newest(event: e.RolloutsProgressed) -> str:
    """The rollout that was graded last: `row 12, grade 1.000: 4427, after cat {"path": "x"}`; empty without one."""
    if not event.newest_trace:
        return ""
    after = f", after {' → '.join(event.newest_calls)}" if event.newest_calls else ""
    return f"row {_line(event.newest_row)}, grade {event.newest_grade:.3f}: {event.newest_answer or 'no answer'}{after}"


def _line(row_id: str) -> str:
    return row_id.partition("-")[0]


def _alarm(event: e.AlarmRaised) -> str:
    if event.rule == "top_grade_soon":
        return f"the mean grade rose from {event.before:.2f} to {event.now:.2f} unusually early: check the grader"
    if event.rule == "drift":
        return f"{event.metric} is {event.now:.1f}, was {event.before:.1f} at the start"
    change = f"{'fell' if event.now < event.before else 'rose'} from {event.before:.2f} to {event.now:.2f}"
    return f"{event.metric} {change} while the grade rose by {event.grade_rise:.2f}"


def _why(text: str) -> str:
    """Empty if the text is PRIVATE and the sentence for a server's clients."""
    return f": {text}" if text else ""


def _list(items: Sequence[str]) -> str:
    return ", ".join(items)
