"""A run folder holds all values that a resumed run keeps, whatever the job uses; newer settings and bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_rft.cluster.checks.resumption import file_digests
from agent_rft.cluster.checks.resumption.file_digests import digest_path, matches_digest
from agent_rft.cluster.checks.resumption.recorded_run import RecordedRun, digest_job
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.errors import InvalidJob
from agent_rft.spec.job import JobSpec
from agent_rft.spec.job_file import load_accepted_job
from agent_rft.spec.legacy_job import load_legacy_job
from agent_rft.spec.step_plan import resolve_plan
from tests.support.builders import EXACT, job, plan, raw_job
from tests.support.paths import BASE

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
    "algorithm": {"lora": {"targets": ["q_proj", "v_proj"]}},
    "signing_secret": ["whsec_d", "whsec_e"],
}


def began(folder: Path, spec: JobSpec, /, **changes: Any) -> RecordedRun:
    run = RunFolder(folder / "run")
    run.write_job(spec, plan(), {"context_length": 512, "digests": digest_job(spec)} | changes)
    return RecordedRun.load(run)


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
    kept = began(tmp_path, spec).apply_to(spec)
    wanted = spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"context_length": 512})})
    assert resolve_plan(kept, 5, 10**9) == resolve_plan(spec, 5, 10**9)
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
        began(tmp_path, job(EVERYTHING, model=str(BASE))).apply_to(changed)
    assert [problem.field for problem in raised.value.problems] == [field]


@pytest.mark.parametrize("name", ["tools", "session"])
def test_a_part_with_secrets_that_is_no_longer_named_is_refused(tmp_path: Path, name: str) -> None:
    less = job({key: value for key, value in EVERYTHING.items() if key != name}, model=str(BASE))
    with pytest.raises(InvalidJob, match="run folders contain no secrets") as raised:
        began(tmp_path, job(EVERYTHING, model=str(BASE))).apply_to(less)
    assert [problem.field for problem in raised.value.problems] == [f"method.reinforcement.{name}"]


def test_a_setting_that_no_longer_exists_is_left_out_with_a_warning(tmp_path: Path) -> None:
    spec = job(model=str(BASE))
    record = json.loads(json.dumps(spec.model_dump(mode="json")))
    record["method"]["reinforcement"]["limits"]["straggler_quorum"] = 0.5
    found = began(tmp_path, spec, job=record)
    assert found.apply_to(spec).reinforcement.limits == spec.reinforcement.limits
    (warning,) = found.warnings
    assert warning.startswith("method.reinforcement.limits.straggler_quorum: this setting no longer exists")


def test_a_newer_setting_may_be_named_with_its_default_only(tmp_path: Path) -> None:
    spec = job(model=str(BASE))
    record = spec.model_dump(mode="json")
    del record["method"]["reinforcement"]["limits"]["max_tool_calls"]
    found = began(tmp_path, spec, job=record)
    named = {"limits": {"max_tool_calls": 64}}
    assert found.apply_to(job(named, model=str(BASE))).reinforcement.limits.max_tool_calls == 64
    with pytest.raises(InvalidJob, match="is 65, but the run began with 64"):
        found.apply_to(job({"limits": {"max_tool_calls": 65}}, model=str(BASE)))


def test_numbers_that_a_plan_did_not_have_yet_are_todays(tmp_path: Path) -> None:
    spec = job(model=str(BASE))
    record = plan(steps=9).model_dump()
    del record["eval_samples"]
    found = began(tmp_path, spec, plan=record).recorded_plan(spec, plan(steps=5, eval_samples=4))
    assert (found.steps, found.eval_samples) == (9, 4)


# -- bounds that are stricter today ------------------------------------------------------------------------------------

BEYOND = {"hyperparameters": {"reasoning_effort": "low"}, "limits": {"max_rollout_retries": 11}}
FIELD = "method.reinforcement.limits.max_rollout_retries"


def test_a_value_outside_of_todays_bounds_is_kept_with_a_warning() -> None:
    spec, (warning,) = load_legacy_job(raw_job(**BEYOND), "the run")
    assert spec.reinforcement.limits.max_rollout_retries == 11 and warning.startswith(f"{FIELD}: the run still uses 11")


def test_a_bound_inside_a_list_is_kept_too() -> None:
    tools = [{"name": "a", "server_url": URL}, {"name": "b", "server_url": URL, "timeout_s": 21_601}]
    spec, warnings = load_legacy_job(raw_job(tools=tools), "the run")
    assert [tool.timeout_s for tool in spec.reinforcement.tools] == [120.0, 21_601] and len(warnings) == 1


def test_trackers_that_this_version_does_not_have_are_left_out_with_a_warning() -> None:
    named = [{"type": "comet"}, {"type": "tensorboard"}, {"type": "neptune", "neptune": {"project": "x"}}]
    spec, warnings = load_legacy_job(raw_job() | {"integrations": named}, "the job")
    assert [integration.type for integration in spec.integrations] == ["tensorboard"]
    assert [warning.partition(":")[0] for warning in warnings] == ["integrations[0]", "integrations[2]"]


@pytest.mark.parametrize("damaged", ["wandb", ["wandb"], 5])
def test_damaged_trackers_are_refused_with_the_fix(damaged: Any) -> None:
    with pytest.raises(InvalidJob, match="integrations"):
        load_legacy_job(raw_job() | {"integrations": damaged}, "the run")


def test_a_value_of_another_form_is_refused_with_the_fix() -> None:
    with pytest.raises(InvalidJob, match="resume the job with the version of agent-rft that started it") as raised:
        load_legacy_job(raw_job(limits={"max_tool_calls": "many"}), "the run")
    assert [problem.field for problem in raised.value.problems] == ["method.reinforcement.limits.max_tool_calls"]


def test_a_job_file_of_a_resumed_run_is_read_alike(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(raw_job(**BEYOND, naps=3)))
    spec, warnings = load_accepted_job(path, raw_job(naps=3), {})
    assert spec.reinforcement.limits.max_rollout_retries == 11 and warnings[0].startswith(f"{FIELD}: ")
    assert warnings[1] == "method.reinforcement.naps: this setting no longer exists; the run continues without it"
    with pytest.raises(InvalidJob, match="2 errors"):
        load_accepted_job(path, raw_job(), {})  # the run did not have it: it is a mistake


def test_a_bound_of_a_value_that_may_also_be_auto_is_kept_too() -> None:
    spec, (warning,) = load_legacy_job(raw_job(hyperparameters={"batch_size": 0}), "the run")
    assert spec.reinforcement.hyperparameters.batch_size == 0 and "batch_size: the run still uses 0" in warning


@pytest.mark.parametrize("written", ["11", 11.0])
def test_a_number_outside_of_todays_bounds_is_a_number_however_it_is_written(tmp_path: Path, written: object) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(raw_job(limits={"max_rollout_retries": "${N}" if written == "11" else written})))
    kept = load_accepted_job(path, {}, {"N": "11"})[0].reinforcement.limits.max_rollout_retries
    assert (kept, type(kept)) == (11, int)


# -- attacks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("now", ["one more tool", "no tools", "another method"])
def test_no_message_shows_what_a_tools_own_keys_hold(tmp_path: Path, now: str) -> None:
    tool = {"name": "cat", "server_url": URL, "own": "secret-1"}
    before, given = job({"tools": [tool]}, model=str(BASE)), job({"tools": []}, model=str(BASE))
    if now == "one more tool":
        given = job({"tools": [tool, tool | {"name": "dog", "own": "secret-2"}]}, model=str(BASE))
    elif now == "another method":
        before, given = job(model=str(BASE), method={"type": "supervised"}), before
    with pytest.raises(InvalidJob, match="cannot resume") as raised:
        began(tmp_path, before).apply_to(given)
    assert "secret" not in str(raised.value).replace("contain no secrets", "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is damaged"),
        ("\0" * 9, "is damaged"),
        ("[" * 100_000, "is damaged"),
        ("[]", "is damaged"),
        ('{"format": 5, "job": [], "plan": {}}', "by a newer version"),
        ('{"format": "new"}', "is damaged"),
        ('{"format": 4, "job": null, "plan": {}}', "is missing, or lacks the job or the plan"),
        ('{"format": 4, "job": {}, "plan": []}', "is damaged"),
        ('{"format": 4, "job": {}, "plan": {}, "digests": ["a"]}', "is damaged"),
        ('{"format": 4, "job": {}, "plan": {}, "context_length": 0}', "is damaged"),
        ('{"format": 4, "job": {}, "plan": {}, "layout": {"micro_batch_tokens": 0}}', "is damaged"),
        ('{"format": 4, "job": {"model": "x", "method": []}, "plan": {}}', "value in an older format"),
        (
            '{"format": 4, "job": {"model": "x", "method": {"reinforcement": [1]}}, "plan": {}}',
            "value in an older format",
        ),
    ],
)
def test_a_damaged_record_is_refused_with_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "job.resolved.json").write_text(text)
    with pytest.raises(InvalidJob, match=said):
        RecordedRun.load(RunFolder(tmp_path))


def test_a_record_that_cannot_be_read_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "job.resolved.json").mkdir()
    with pytest.raises(InvalidJob, match="cannot be read: Is a directory"):
        RecordedRun.load(RunFolder(tmp_path))


@pytest.mark.parametrize("numbers", [{"steps": "many"}, {"batch_size": 0}, {"learning_rate": None}, {"steps": 1e400}])
def test_a_plan_that_was_edited_by_hand_is_checked(tmp_path: Path, numbers: dict[str, Any]) -> None:
    spec = job(model=str(BASE))
    found = began(tmp_path, spec, plan=numbers)
    with pytest.raises(InvalidJob, match=r"the plan in the run's job.resolved.json is damaged"):
        found.recorded_plan(spec, plan())


# -- files and models --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "same"),
    [
        ('{"a": 1}\n{"b": 2}\n', True),
        ('{"a": 1}\n{"b": 2}\n{"c": 3}\n', True),
        ('{"a": 1}\n{"b": 3}\n', False),
        ('{"a": 1}\n', False),
        ("", False),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_a_file_may_only_grow(tmp_path: Path, written: str, same: bool, named: bool) -> None:
    rows, tests = tmp_path / "rows.jsonl", tmp_path / "tests.jsonl"
    for path in (rows, tests):
        path.write_text('{"a": 1}\n{"b": 2}\n')
    spec = job(model=str(BASE), training_file=str(rows), test_file=str(tests))
    found = began(tmp_path, spec)
    tests.write_text(written)
    again = spec if named else job(model=str(BASE), training_file=str(rows))
    if same:
        assert found.apply_to(again) == found.apply_to(spec)
    else:
        with pytest.raises(InvalidJob, match=r"test_file: the contents have changed since .* only be appended"):
            found.apply_to(again)


def test_the_last_row_of_a_file_without_a_line_end_may_not_grow(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}')
    digest = digest_path(path)
    assert digest is not None
    for text, same in (('{"a": 1}', True), ('{"a": 1}\n{}', True), ('{"a": 1}\r\n', True), ('{"a": 1}  {}', False)):
        path.write_bytes(text.encode())
        assert matches_digest(path, digest) is same


@pytest.mark.parametrize("digest", ["", "-", "x", "0" * 32, "9" * 30 + "-", "\u0661-"])
def test_a_digest_that_was_edited_by_hand_matches_nothing(tmp_path: Path, digest: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("{}\n")
    assert matches_digest(path, digest) is False


def test_what_cannot_be_read_is_left_to_the_check_of_the_job(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    spec = job(model=str(BASE), training_file=str(rows))
    found = began(tmp_path, spec)
    rows.unlink()
    assert found.apply_to(spec).training_file == str(rows)


def write_model(folder: Path, weights: bytes) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def test_a_model_that_was_trained_on_is_another_one_and_a_readme_does_not_matter(tmp_path: Path) -> None:
    size = file_digests.MAX_FULL_BYTES + 12_345
    model = write_model(tmp_path / "model", bytes(size))
    found = began(tmp_path, job(model=str(model)))
    (model / "README.md").write_text("mine")
    (model / ".cache").mkdir()
    moved = model.rename(tmp_path / "moved")
    assert found.apply_to(job(model=str(moved))).model == str(moved)
    other = write_model(tmp_path / "model", bytes(size - 1) + b"1")
    with pytest.raises(InvalidJob, match="model: the contents have changed since the run began"):
        found.apply_to(job(model=str(other)))


def test_of_large_weights_a_bounded_part_is_read(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", b"")
    with (model / "model.safetensors").open("r+b") as file:
        file.truncate(1 << 40)  # a sparse file: reading all of it would take minutes
    assert matches_digest(model, str(digest_path(model)))
