"""Every kind of event survives a JSON round trip; one that cannot be decoded keeps its message."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import MISSING, FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from agent_rft.events import KINDS, CheckpointSaved, Evaluated, Event, JobEnded, Notice, StepDone, event_kind
from agent_rft.stored_events import RunEvent, load_run_event, parse_evaluation
from agent_rft.types import Evaluation
from tests.support.events import JOB, run_event

EVALUATION = Evaluation(3, 6, 0, 0.5, math.nan, 0.4, 0.5, 0.5, 2, 3.0, 2.0, 0.0, 20.0, 90.0, 1.0)
RECORDED = Path(__file__).with_name("event_sentences.txt")
EXAMPLES: dict[Any, Any] = {
    Evaluation: EVALUATION,
    tuple[str, ...]: ("trace_1", "trace_2"),
    dict[str, float]: {"loss": 0.5},
    dict[str, int]: {"tool_failed": 3, "grader_failed": 2},
    str: "text",
    int: 3,
    float: 0.25,
    float | str: "rank 32",
    int | None: 3,
    float | None: 0.5,
}


def example(kind: type[Event]) -> Event:
    """An event of this kind with a value in each field."""
    hints = get_type_hints(kind)
    values = {f.name: EXAMPLES.get(hints[f.name], getattr(hints[f.name], "__args__", ("",))[0]) for f in fields(kind)}
    return kind(**values)


def variants(kind: type[Event]) -> Iterator[Event]:
    """Events of this kind, with another number or string in each field.

    The first has all fields, the next ones the other values of its Literal fields, the last only the required fields.
    """
    full, hints = example(kind), get_type_hints(kind)
    for number, field in enumerate(fields(kind), start=10):
        values: dict[type, Any] = {str: f"<{field.name}>", int: number, float: number + 0.25}
        if hints[field.name] in values:
            full = replace(full, **{field.name: values[hints[field.name]]})
    yield full
    for field in fields(kind):
        if get_origin(hints[field.name]) is Literal:
            yield from (replace(full, **{field.name: value}) for value in get_args(hints[field.name])[1:])
    required = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    yield kind(**{name: getattr(full, name) for name in ("step", *required)})


def through_json(event: RunEvent) -> RunEvent:
    return RunEvent.from_line(json.loads(json.dumps(event.to_line(), allow_nan=False)))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_every_kind_survives_a_json_round_trip(kind: type[Event]) -> None:
    event = run_event(example(kind))
    back = through_json(event)
    assert back == event
    assert (back.job, back.step, back.kind, back.version) == (JOB, 3, event_kind(kind), kind.VERSION)
    assert type(back.event) is kind
    assert back.message not in (back.kind, back.kind.replace("_", " ")), "each kind has a sentence"


def test_levels_private_fields_and_sentences_are_the_recorded_ones() -> None:
    found = [
        f"{event.kind}, {event.level}{''.join(f', {name}' for name in sorted(event.PRIVATE))}: {event}".rstrip()
        for kind in KINDS.values()
        for event in variants(kind)
    ]
    recorded = RECORDED.read_text().splitlines()
    assert list(dict.fromkeys(found)) == recorded, f"if this change is intended, edit {RECORDED.name}"


def test_an_event_is_immutable_and_takes_keyword_arguments() -> None:
    notice = Notice(text="a message")
    with pytest.raises(FrozenInstanceError):
        notice.text = "another"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Notice("a message")  # type: ignore[arg-type, call-arg]


def test_numbers_that_are_not_finite_are_null_in_json_and_read_back_as_missing_or_nan() -> None:
    event = through_json(run_event(StepDone(step=1, total_steps=2, metrics={"loss": math.nan, "step": 1.0})))
    assert event.data["metrics"] == {"loss": None, "step": 1.0}
    assert isinstance(event.event, StepDone) and event.event.metrics == {"step": 1.0}
    evaluated = through_json(run_event(Evaluated(name="validation", evaluation=EVALUATION))).event
    assert isinstance(evaluated, Evaluated) and math.isnan(evaluated.evaluation.ci95)


def test_an_unknown_or_damaged_event_keeps_its_message() -> None:
    line = run_event(Notice(text="a message")).to_line()
    for change in ({"kind": "of_another_program"}, {"version": 2}, {"data": {"metrics": 7}}):
        event = RunEvent.from_line(line | change)
        assert (event.event, event.message, event.level) == (None, "a message", "warn")


def test_a_field_with_a_default_may_be_missing() -> None:
    event = load_run_event("j", 4, 0.0, "info", "m", "checkpoint_saved", 1, {"path": "p", "num_bytes": 1}).event
    assert event == CheckpointSaved(step=4, path="p", num_bytes=1)
    without = {name: value for name, value in EVALUATION.as_dict().items() if name != "reasoning_tokens"}
    assert math.isnan(parse_evaluation(without).reasoning_tokens)


def test_only_a_failed_job_ends_with_level_error() -> None:
    assert [JobEnded(outcome=outcome).level for outcome in ("done", "stopped", "failed")] == ["info", "info", "error"]
