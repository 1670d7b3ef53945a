"""Spans of the driver: a step with its parts, at the times that were measured, and links to its traced rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from agent_rft.actors.runtime.telemetry.tracing import NO_TRACES, create_tracer
from agent_rft.cluster.run.sinks.step_traces import StepTraces
from agent_rft.errors import TrainingHalted
from agent_rft.events import VALIDATION, Evaluated, Event, LearnerRestarted, LossEvaluated, PhaseStarted, StepDone
from agent_rft.spec.operator.operator_config import TraceSettings
from agent_rft.types import Evaluation, Group
from tests.support.builders import group, group_request
from tests.support.events import run_event

EVALUATION = Evaluation(4, 4, 0, 0.5, 0.1, 0.4, 0.5, 0.5, 1, 2.0, 3.0, 0.0, 20.0, 60.0, 1.5)
STEP = {"time_step_s": 60.0, "time_wait_s": 30.0, "time_learn_s": 10.0, "sync_total_s": 2.0, "time_checkpoint_s": 5.0}
FIRST, SECOND = "trace_" + "1" * 32, "trace_" + "e" * 32


def traced(*trace_ids: str) -> list[Group]:
    made = group(group_request(size=len(trace_ids)), [1.0] * len(trace_ids))
    return [
        replace(made, rollouts=tuple(replace(r, trace_id=t) for r, t in zip(made.rollouts, trace_ids, strict=True)))
    ]


def seconds(span: ReadableSpan) -> tuple[float, float]:
    assert span.start_time is not None and span.end_time is not None
    return span.start_time / 1e9, span.end_time / 1e9


def spans_of(
    share: float, *happened: tuple[float, Event], groups: Sequence[Group] = (), failure: Exception | None = None
) -> list[ReadableSpan]:
    """The spans of these events at these times, and of an error that ends the run at 200.0."""
    exporter = InMemorySpanExporter()
    settings = TraceSettings(endpoint="http://collector:4318/v1/traces", sampling_ratio=share)
    sink = StepTraces(create_tracer(settings, "driver", exporter=exporter, export_all=True), clock=lambda: 200.0)
    sink.handle_groups("step-000003", groups)
    for at, event in happened:
        sink.handle_event(replace(run_event(event), time=at))
    if failure is not None:
        sink.record_failure(failure)
    sink.close()
    return list(exporter.get_finished_spans())


def test_a_step_is_a_trace_with_its_parts() -> None:
    spans = spans_of(
        0.5,
        (145.0, PhaseStarted(phase="validation", step=3)),
        (153.0, Evaluated(step=3, name=VALIDATION, evaluation=EVALUATION)),
        (160.0, StepDone(step=3, total_steps=9, metrics=STEP)),
        groups=traced(FIRST, SECOND),
    )
    step, *parts = spans
    assert (step.name, seconds(step), step.parent) == ("training step", (100.0, 160.0), None)
    assert step.attributes == {"agent_rft.step": 3}
    assert [(part.name, *seconds(part)) for part in parts] == [
        ("sampling", 100.0, 130.0),
        ("learning", 130.0, 140.0),
        ("weight sync", 140.0, 142.0),
        ("validation", 145.0, 153.0),
        ("checkpoint", 155.0, 160.0),
    ]
    assert step.context is not None
    assert {part.parent.span_id for part in parts if part.parent} == {step.context.span_id}
    assert [f"{link.context.trace_id:032x}" for link in step.links] == ["1" * 32], "the other is not in the share"


def test_the_validation_before_the_first_step_is_a_trace_of_its_own_however_few_rollouts_are_traced() -> None:
    (span,) = spans_of(
        1e-30,
        (10.0, PhaseStarted(phase="validation", step=0)),
        (12.0, Evaluated(step=0, name=VALIDATION, evaluation=EVALUATION)),
    )
    assert (span.name, seconds(span), span.parent) == ("validation", (10.0, 12.0), None)


def test_the_validation_of_a_supervised_job_lasts_until_its_loss_is_known() -> None:
    spans = spans_of(
        0.5,
        (145.0, PhaseStarted(phase="validation", step=3)),
        (153.0, LossEvaluated(step=3, loss=0.5, num_rows=4)),
        (160.0, StepDone(step=3, total_steps=9, metrics=STEP)),
    )
    assert [seconds(span) for span in spans if span.name == "validation"] == [(145.0, 153.0)]


TRAINING = (90.0, PhaseStarted(phase="training", step=2))
DONE = (160.0, StepDone(step=3, total_steps=9, metrics=STEP))
LOST = LearnerRestarted(step=2, cause="rank 1: /home/ann/secret", times=1, error_type="WeightsLost")


def test_a_step_that_fails_is_a_trace_with_the_errors_type_and_no_text_of_it() -> None:
    spans = spans_of(0.5, TRAINING, DONE, groups=traced(FIRST), failure=TrainingHalted("gap of 0.7 at trace_1"))
    failed = spans[-1]
    assert [span.name for span in spans].count("training step") == 2 and failed.context != spans[0].context
    assert (failed.name, seconds(failed), failed.parent) == ("training step", (160.0, 200.0), None)
    assert failed.status.status_code is StatusCode.ERROR and failed.status.description is None
    assert failed.attributes == {"agent_rft.step": 4, "error.type": "TrainingHalted"} and not failed.events
    assert spans[0].status.status_code is StatusCode.UNSET


def test_each_try_of_a_step_that_is_done_again_is_a_trace() -> None:
    again = replace(LOST, times=2)
    spans = spans_of(0.5, TRAINING, (120.0, LOST), (130.0, again), DONE)
    tries = [span for span in spans if span.status.status_code is StatusCode.ERROR]
    assert [seconds(span) for span in tries] == [(90.0, 120.0), (120.0, 130.0)]
    assert all(span.attributes == {"agent_rft.step": 3, "error.type": "WeightsLost"} for span in tries)
    assert [span.name for span in spans].count("training step") == 3 and "secret" not in str(
        [span.to_json() for span in spans]
    )


def test_the_first_step_begins_after_the_validation_of_the_start_model() -> None:
    evaluated = (12.0, Evaluated(step=0, name=VALIDATION, evaluation=EVALUATION))
    begun = ((5.0, PhaseStarted(phase="training", step=0)), (10.0, PhaseStarted(phase="validation", step=0)), evaluated)
    *_, failed = spans_of(0.5, *begun, failure=OSError("no room"))
    assert (seconds(failed), failed.attributes) == ((12.0, 200.0), {"agent_rft.step": 1, "error.type": "OSError"})


def test_what_fails_outside_of_steps_is_no_step() -> None:
    last = (160.0, StepDone(step=9, total_steps=9, metrics={}))
    grading = (170.0, PhaseStarted(phase="grading", step=3))
    assert spans_of(0.5, (10.0, LOST), failure=OSError("no room")) == []
    for happened in ((TRAINING, last), (TRAINING, grading)):
        spans = spans_of(0.5, *happened, failure=OSError("no room"))
        assert [span for span in spans if span.status.status_code is StatusCode.ERROR] == []


def test_without_a_collector_a_step_makes_nothing() -> None:
    sink = StepTraces(NO_TRACES)
    sink.handle_groups("step-000003", traced(FIRST))
    sink.handle_event(run_event(StepDone(step=3, total_steps=9, metrics=STEP)))
    sink.record_failure(TrainingHalted("x"))
    sink.close()
    assert NO_TRACES.find_sampled_id(FIRST) == ""
