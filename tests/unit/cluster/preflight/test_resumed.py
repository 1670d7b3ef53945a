"""A run folder holds all values that a resumed run keeps, whatever the job uses; newer settings and bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.preflight.prepare import STOPS_ACCEPTED
from cluster.preflight.resumed import Began, digests_of
from cluster.records.run_folder import RunFolder
from tests.support.builders import EXACT, job, plan, raw_job
from tests.support.paths import BASE
from trainer.errors import InvalidJob
from trainer.problem_codes import entry_of
from trainer.spec.job import JobSpec, resolve
from trainer.spec.job_file import load_accepted_job
from trainer.spec.kept import without_todays_bounds

URL = "https://user:pass@tools.example/a?key=1"
JUDGE = {
    "type": "score_model",
    "model": "judge",
    "input": [{"role": "user", "content": "{{ item.x }}"}],
    "range": [0, 2],
}
EVERYTHING: dict[str, Any] = {
    "tools": [{"name": "cat", "server_url": URL, "headers": {"Authorization": "a"}, "idempotent": True, "own": "b"}],
    "session": {"start_url": URL, "headers": {"X": "c"}, "max_open": 3},
    "grader": {
        "type": "multi",
        "graders": {"a": EXACT, "b": JUDGE, "c": {"type": "endpoint", "url": URL, "rate_limit": 2}},
        "calculate_output": "a + b + c",
    },
    "guards": [{"name": "short", "grader": {"type": "length", "max_chars": 9}}],
    "held_out_grader": {"type": "python", "source": "def grade(sample, item): return 1.0"},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    "hyperparameters": {"reasoning_effort": "low", "learning_rate_multiplier": 2},
    "limits": {"straggler_wait_s": 1.5},
    "signing_secret": ["whsec_d", "whsec_e"],
}


def began(folder: Path, spec: JobSpec, /, **changes: Any) -> Began:
    run = RunFolder(folder / "run")
    run.write_job(spec, plan(), {"context_length": 512, "digests": digests_of(spec)} | changes)
    return Began.of(run)


@pytest.mark.parametrize(
    "spec",
    [
        job(EVERYTHING, model=str(BASE)),
        job(model=str(BASE), method={"type": "supervised"}),
        job(model=str(BASE), method={"type": "supervised", "supervised": {"algorithm": {"learning_rate": 1e-3}}}),
    ],
    ids=["everything", "supervised", "supervised_settings"],
)
def test_the_same_job_is_resumed_with_all_its_values_and_secrets(tmp_path: Path, spec: JobSpec) -> None:
    kept = began(tmp_path, spec).keep(spec)
    wanted = spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"context_length": 512})})
    assert resolve(kept, 5) == resolve(spec, 5)
    if spec.method.type == "supervised":
        assert kept.supervised == wanted.supervised
    else:
        assert kept == wanted
        assert kept.reinforcement.tools[0].headers["Authorization"].get_secret_value() == "a"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"calculate_output": "a"}, "method.reinforcement.grader.calculate_output"),
        ({"graders": {"a": EXACT, "b": JUDGE}}, "method.reinforcement.grader.graders"),
        ({"graders": EVERYTHING["grader"]["graders"] | {"a": JUDGE}}, "method.reinforcement.grader.graders.a"),
    ],
)
def test_a_change_inside_a_grader_is_found(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    changed = job(EVERYTHING | {"grader": EVERYTHING["grader"] | changes}, model=str(BASE))
    with pytest.raises(InvalidJob) as raised:
        began(tmp_path, job(EVERYTHING, model=str(BASE))).keep(changed)
    assert [problem.field for problem in raised.value.problems] == [field]


@pytest.mark.parametrize("name", ["tools", "session"])
def test_a_part_with_secrets_that_is_no_longer_named_is_refused(tmp_path: Path, name: str) -> None:
    less = job({key: value for key, value in EVERYTHING.items() if key != name}, model=str(BASE))
    with pytest.raises(InvalidJob, match="a run folder keeps no secrets") as raised:
        began(tmp_path, job(EVERYTHING, model=str(BASE))).keep(less)
    assert [problem.field for problem in raised.value.problems] == [f"method.reinforcement.{name}"]


def test_a_setting_that_no_longer_exists_is_left_out_with_a_warning(tmp_path: Path) -> None:
    spec = job(model=str(BASE))
    record = json.loads(json.dumps(spec.model_dump(mode="json")))
    record["method"]["reinforcement"]["limits"]["max_naps"] = 3
    found = began(tmp_path, spec, job=record)
    assert found.keep(spec).reinforcement.limits == spec.reinforcement.limits
    (warning,) = found.warnings
    assert warning.startswith("method.reinforcement.limits.max_naps: this setting no longer exists")


def test_a_newer_setting_may_be_named_with_its_default_only(tmp_path: Path) -> None:
    spec = job(model=str(BASE))
    record = spec.model_dump(mode="json")
    del record["method"]["reinforcement"]["limits"]["max_failure_rate"]
    found = began(tmp_path, spec, job=record)
    named = {"limits": {"max_failure_rate": 0.5}}
    assert found.keep(job(named, model=str(BASE))).reinforcement.limits.max_failure_rate == 0.5
    with pytest.raises(InvalidJob, match=r"is 0\.6, but the run began with 0\.5"):
        found.keep(job({"limits": {"max_failure_rate": 0.6}}, model=str(BASE)))


def test_numbers_that_a_plan_did_not_have_yet_are_todays(tmp_path: Path) -> None:
    spec = job(model=str(BASE))
    record = plan(steps=9).model_dump()
    del record["eval_samples"]
    found = began(tmp_path, spec, plan=record).plan_of(plan(steps=5, eval_samples=4))
    assert (found.steps, found.eval_samples) == (9, 4)


# -- bounds that are stricter today ------------------------------------------------------------------------------------

BEYOND = {"hyperparameters": {"reasoning_effort": "low"}, "limits": {"max_rollout_retries": 11}}
FIELD = "method.reinforcement.limits.max_rollout_retries"


def test_a_value_outside_of_todays_bounds_is_kept_with_a_warning() -> None:
    spec, (warning,) = without_todays_bounds(raw_job(**BEYOND), "the run")
    assert spec.reinforcement.limits.max_rollout_retries == 11 and warning.startswith(f"{FIELD}: the run keeps 11")


def test_a_bound_inside_a_list_is_kept_too() -> None:
    tools = [{"name": "a", "server_url": URL}, {"name": "b", "server_url": URL, "timeout_s": 601}]
    spec, warnings = without_todays_bounds(raw_job(tools=tools), "the run")
    assert [tool.timeout_s for tool in spec.reinforcement.tools] == [120.0, 601] and len(warnings) == 1


def test_a_value_of_another_form_is_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidJob, match="continue it with the version of agent-rft that began it") as raised:
        without_todays_bounds(raw_job(limits={"max_tool_calls": "many"}), "the run")
    assert [problem.field for problem in raised.value.problems] == ["method.reinforcement.limits.max_tool_calls"]


def test_a_job_file_of_a_resumed_run_is_read_alike(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(raw_job(**BEYOND, naps=3)))
    spec, warnings = load_accepted_job(path, raw_job(naps=3), {})
    assert spec.reinforcement.limits.max_rollout_retries == 11 and warnings[0].startswith(f"{FIELD}: ")
    assert warnings[1] == "method.reinforcement.naps: this setting no longer exists; the run continues without it"
    with pytest.raises(InvalidJob, match="2 mistakes"):
        load_accepted_job(path, raw_job(), {})  # the run did not have it: it is a mistake


def test_every_code_that_stops_a_resumed_run_is_listed() -> None:
    assert {code for code in STOPS_ACCEPTED if entry_of(code) != code} == set()
