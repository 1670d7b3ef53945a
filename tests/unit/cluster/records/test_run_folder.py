import json
import math
import re
from dataclasses import asdict, fields, replace

import numpy as np
import pytest

from agent_rft.cluster.records.run_folder import RunFolder, new_run_folder, open_run
from agent_rft.errors import OutdatedFormat
from agent_rft.events import Evaluated, Notice, RolloutsProgressed, StepDone
from agent_rft.spec.step_plan import resolve_plan
from agent_rft.trainer.loop.evaluation import summarize
from agent_rft.types import Group, Segment
from tests.support.builders import job, plan
from tests.support.events import run_event
from tests.support.version_folders import RUN, unpack


def done(metrics):
    return run_event(StepDone(step=int(metrics["step"]), total_steps=4, metrics=metrics))


def notice(text):
    return run_event(Notice(text=text))


def assert_identical(a, b):
    """Assert that two rollouts are equal bit for bit, including NaN and -0.0."""
    assert replace(a, segments=()) == replace(b, segments=())
    for before, after in zip(a.segments, b.segments, strict=True):
        for f in fields(Segment):
            x, y = getattr(before, f.name), getattr(after, f.name)
            if f.name == "experts":  # which no file has
                assert x is None and y is None
                continue
            assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes()), f.name


def test_rollouts_are_read_back_bit_for_bit(tmp_path, synthetic):
    groups = synthetic.groups(5, 4, "train", 3, 0.5)
    odd = groups[0].rollouts[0]
    odd.segments[0].logprobs[:4] = [-0.0, math.nan, np.float32(1e-42), -math.inf]
    lost = Group(groups[1].request, (), groups[1].discarded)
    run = RunFolder(tmp_path)
    run.handle_groups("step-000001", [*groups, lost])
    run.close()
    back = run.read_groups("step-000001")
    assert [g.request for g in back] == [g.request for g in [*groups, lost]]
    assert [g.discarded for g in back] == [g.discarded for g in [*groups, lost]]
    for before, after in zip([*groups, lost], back, strict=True):
        for a, b in zip(before.rollouts, after.rollouts, strict=True):
            assert_identical(a, b)
    assert back[2].oldest_version == 3 and back[5].rollouts == ()


def test_all_reports_of_a_loop_are_saved(tmp_path, synthetic):
    run = synthetic.run(tmp_path, steps=4, total=4, validation_every=2)
    assert [m["step"] for m in run.metrics()] == [1, 2, 3, 4]
    assert [step for step, _ in run.validations()] == [0, 2, 4]
    assert set(run.evaluations()) == {"test-before", "test-after"}
    assert run.evaluations()["test-after"] == summarize(run.read_groups("test-after"), 1, 1.0)
    assert run.rollout_names()[0] == "test-before" and run.rollout_names()[-1] == "test-after"
    assert len(run.rollout_names()) == 2 + 4 + 3
    assert run.job()["job"]["suffix"] == "ledger" and run.job()["context_length"] == 2048


def test_numbers_that_are_not_finite_are_null_on_disk_and_left_out_when_read(tmp_path, synthetic):
    run = RunFolder(tmp_path)
    run.handle_event(done({"step": 1.0, "loss": math.nan, "grad_norm": math.inf, "kl_reference": 0.0}))
    run.handle_event(run_event(Evaluated(name="test-before", evaluation=summarize([], 1, 1.0))))
    run.close()
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["loss"] is None
    assert run.metrics() == [{"step": 1.0, "kl_reference": 0.0}]
    assert math.isnan(run.evaluations()["test-before"].ci95)
    assert run.evaluations()["test-before"].get_interval("grade") is None


def test_a_killed_run_keeps_its_complete_lines_and_a_resumed_run_appends(tmp_path):
    run = RunFolder(tmp_path)
    run.handle_event(notice("first"))
    for step in (1.0, 2.0):
        run.handle_event(done({"step": step, "loss": step}))
    run.close()
    for name in ("events.jsonl", "metrics.jsonl"):
        with (tmp_path / name).open("a") as file:
            file.write('{"step": 3.0, "lo')
    assert [m["step"] for m in RunFolder(tmp_path).metrics()] == [1, 2]
    resumed = RunFolder(tmp_path)
    resumed.handle_event(notice("second"))
    resumed.handle_event(done({"step": 2.0, "loss": 20.0}))
    resumed.handle_event(done({"step": 3.0, "loss": 30.0}))
    resumed.close()
    assert [m["loss"] for m in resumed.metrics()] == [1, 20, 30]
    first, second = (event for event in resumed.events() if event.kind == "notice")
    assert (first, second) == (notice("first"), notice("second"))


def test_rollouts_of_a_repeated_step_replace_the_earlier_ones(tmp_path, synthetic):
    run = RunFolder(tmp_path)
    for version in (1, 2):
        run.handle_groups("step-000001", synthetic.groups(1, 2, "train", version, 0.0))
    run.close()
    (group,) = run.read_groups("step-000001")
    assert group.oldest_version == 2
    assert [path.name for path in (tmp_path / "rollouts").iterdir()] == ["step-000001.jsonl.zst"]


def test_no_file_contains_secrets(tmp_path, synthetic):
    run = RunFolder(tmp_path)
    job = synthetic.job()
    run.write_job(job, resolve_plan(job, 100, 10**9)[0], {"database": "postgresql://me:db-secret@host/runs"})
    run.handle_event(notice("GET https://me:event-secret@tools.example/a?key=other-secret answered 401"))
    run.close()
    text = "".join(path.read_text() for path in tmp_path.rglob("*.json*"))
    assert "-secret" not in text
    assert "tools.example/search" in text and "host/runs" in text and "answered 401" in text


def test_a_full_disk_warns_once_and_is_reported_at_the_end(tmp_path, synthetic, capsys):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    (tmp_path / "rollouts").write_text("a file where the folder should be")
    run = RunFolder(tmp_path)
    for step in (1.0, 2.0):
        run.handle_groups("step-000001", synthetic.groups(1, 2, "train", 0, 0.0))
        run.handle_event(done({"step": step}))
    run.handle_event(notice("still here"))
    run.close()
    run.handle_event(notice("too late"))
    assert capsys.readouterr().err.count("warning") == 1
    assert [event.message for event in run.events() if event.kind == "notice"] == ["still here"]
    problems = "\n".join(run.problems)
    assert "metrics.jsonl: 2 write(s) failed; first error: [Errno 28] No space left on device" in problems
    assert "rollouts/step-000001.jsonl.zst: 2 write(s)" in problems and "events.jsonl: 1 write(s)" in problems


def test_writes_keep_their_order(tmp_path, synthetic):
    run = RunFolder(tmp_path)
    groups = synthetic.groups(2, 2, "train", 0, 0.0)
    for i in range(50):
        run.handle_event(notice(str(i)))
        run.handle_groups(f"step-{i:06d}", groups)
    run.close()
    assert [event.message for event in run.events()] == [str(i) for i in range(50)]
    assert run.rollout_names() == [f"step-{i:06d}" for i in range(50)]


def test_new_folders_sort_by_age_and_never_collide(tmp_path):
    paths = [new_run_folder(tmp_path / "runs", "my agent/v2") for _ in range(3)]
    assert len(set(paths)) == 3 and all(path.is_dir() for path in paths)
    assert paths[0].name[:8].isdigit() and "my-agent-v2" in paths[0].name
    assert "/" not in new_run_folder(tmp_path, None).relative_to(tmp_path).as_posix()


def test_events_for_live_views_only_are_not_written(tmp_path):
    run = RunFolder(tmp_path)
    run.handle_event(run_event(RolloutsProgressed(purpose="train", ended=1, total=2, in_flight=1)))
    run.close()
    assert run.events() == []


def test_an_event_of_a_later_version_is_shown_by_its_message(tmp_path):
    line = run_event(Notice(text="a message")).to_line() | {"version": 9, "data": {"other": 1}}
    (tmp_path / "events.jsonl").write_text(json.dumps(line) + "\n")
    (event,) = RunFolder(tmp_path).events()
    assert (event.event, event.message, event.data) == (None, "a message", {"other": 1})


def test_an_empty_folder_reads_as_an_empty_run(tmp_path):
    run = RunFolder(tmp_path)
    assert (run.metrics(), run.events(), run.evaluations(), run.rollout_names(), run.job()) == ([], [], {}, [], {})
    with pytest.raises(FileNotFoundError):
        run.read_groups("step-000001")


def test_a_rollout_file_has_one_json_object_per_group_and_rollout(tmp_path, synthetic):
    import zstandard

    run = RunFolder(tmp_path)
    groups = synthetic.groups(2, 2, "validation", 0, 0.0)
    run.handle_groups("validation-000000", groups)
    run.close()
    with zstandard.open(tmp_path / "rollouts" / "validation-000000.jsonl.zst", "rt") as file:
        lines = [json.loads(line) for line in file]
    assert [line["kind"] for line in lines] == ["group", "rollout", "rollout", "group", "rollout", "discarded"]
    assert lines[0]["purpose"] == "validation" and lines[0]["task"]["item"] == groups[0].request.task.item
    assert lines[1]["trace_id"] == groups[0].rollouts[0].trace_id
    assert lines[1]["turns"][0]["calls"][0] == asdict(groups[0].rollouts[0].turns[0].calls[0])
    assert (
        sum(length for value, length in lines[1]["segments"][0]["loss_mask"] if value)
        == groups[0].rollouts[0].num_sampled
    )


@pytest.mark.parametrize("record", [{"job": {}}, {"format": 2, "job": {}}])
def test_a_folder_from_before_the_first_version_is_refused(tmp_path, record):
    (tmp_path / "job.resolved.json").write_text(json.dumps(record))
    with pytest.raises(
        OutdatedFormat, match=r"was created by a version before 0\.2\.0; finish or export it with that version"
    ):
        open_run(tmp_path)


@pytest.mark.parametrize("text", [None, "", "{", "[]", "[1]", "{}", '{"format": "x"}', '{"format": 99, "job": {}}'])
def test_a_folder_without_a_readable_record_is_opened(tmp_path, text):
    if text is not None:
        (tmp_path / "job.resolved.json").write_text(text)
    assert open_run(tmp_path).path == tmp_path


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}"])
def test_new_runs_have_different_ids_in_trackers_even_in_folders_with_the_same_name(tmp_path, text):
    ids = []
    for cluster in ("a", "b"):
        folder = tmp_path / cluster / "job"
        folder.mkdir(parents=True)
        if text is not None:
            (folder / "job.resolved.json").write_text(text)
        ids.append(RunFolder(folder).tracker_id())
    assert len(set(ids)) == 2 and all(re.fullmatch("[0-9a-f]{16}", id) for id in ids)


def test_a_run_keeps_its_recorded_id_in_trackers(tmp_path):
    RunFolder(tmp_path / "job").write_job(job(), plan(), {"tracker_id": "0123456789abcdef"})
    assert RunFolder(tmp_path / "job").tracker_id() == "0123456789abcdef"


def test_a_run_of_0_2_0_keeps_its_name_as_id_in_trackers(tmp_path):
    folder = unpack(RUN, tmp_path)
    assert "tracker_id" not in RunFolder(folder).job()
    assert RunFolder(folder).tracker_id() == folder.name
