"""Spans of the driver: a step with its parts, at the times that were measured, and links to its traced rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from actors.runtime.tracing import NO_TRACES, tracer_of
from cluster.run.step_traces import StepTraces
from tests.support.builders import group, group_request
from tests.support.events import run_event
from trainer.events import VALIDATION, Evaluated, Event, LossEvaluated, PhaseBegan, StepDone
from trainer.spec.operator import TraceSettings
from trainer.types import Evaluation, Group

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


def spans_of(share: float, *happened: tuple[float, Event], groups: Sequence[Group] = ()) -> list[ReadableSpan]:
    exporter = InMemorySpanExporter()
    settings = TraceSettings(endpoint="http://collector:4318/v1/traces", share=share)
    sink = StepTraces(tracer_of(settings, "driver", exporter=exporter, every=True))
    sink.groups("step-000003", groups)
    for at, event in happened:
        sink.event(replace(run_event(event), time=at))
    sink.close()
    return list(exporter.get_finished_spans())


def test_a_step_is_a_trace_with_its_parts() -> None:
    spans = spans_of(
        0.5,
        (145.0, PhaseBegan(phase="validation", step=3)),
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
        (10.0, PhaseBegan(phase="validation", step=0)),
        (12.0, Evaluated(step=0, name=VALIDATION, evaluation=EVALUATION)),
    )
    assert (span.name, seconds(span), span.parent) == ("validation", (10.0, 12.0), None)


def test_the_validation_of_a_supervised_job_lasts_until_its_loss_is_known() -> None:
    spans = spans_of(
        0.5,
        (145.0, PhaseBegan(phase="validation", step=3)),
        (153.0, LossEvaluated(step=3, loss=0.5, num_rows=4)),
        (160.0, StepDone(step=3, total_steps=9, metrics=STEP)),
    )
    assert [seconds(span) for span in spans if span.name == "validation"] == [(145.0, 153.0)]


def test_without_a_collector_a_step_makes_nothing() -> None:
    sink = StepTraces(NO_TRACES)
    sink.groups("step-000003", traced(FIRST))
    sink.event(run_event(StepDone(step=3, total_steps=9, metrics=STEP)))
    sink.close()
    assert NO_TRACES.sampled(FIRST) == ""
