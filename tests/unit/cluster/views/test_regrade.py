import io
import json
import random

import pytest
from aiohttp import web
from rich.console import Console
from typer.testing import CliRunner

from agent_rft.cli.main import app
from agent_rft.cluster.views.regrade import GradingCase, grade_file, read_cases, read_grader
from agent_rft.cluster.views.regrade_report import find_grade_changes, print_changes, print_summary, summarize_grades
from agent_rft.errors import EndpointRefused, GraderFailed, InvalidJob, RftError, UserError
from agent_rft.spec.operator.operator_config import ModelEndpoint, OperatorConfig
from agent_rft.types import Grade
from tests.support.builders import EXACT
from tests.support.fakes_http import LOCAL, FakeEndpoint, says

NONE = OperatorConfig()


@pytest.fixture
def write(tmp_path):
    """A function that writes a file: text unchanged, a list as JSON lines, anything else as JSON."""

    def file(name, content):
        lines = [json.dumps(line) for line in content] if isinstance(content, list) else [json.dumps(content)]
        (tmp_path / name).write_text(content if isinstance(content, str) else "\n".join(lines) + "\n")
        return tmp_path / name

    return file


def rows(*answers, reference="Paris"):
    return [{"sample": {"output_text": answer}, "item": {"reference_answer": reference}} for answer in answers]


def printed(summary, recorded=()):
    console = Console(file=io.StringIO(), width=120, color_system=None)
    print_summary(summary, list(recorded), console)
    return console.file.getvalue()


# -- the rollouts of a run ---------------------------------------------------------------------------------------------


async def test_recorded_rollouts_are_graded_with_their_rows_and_tool_calls(tmp_path, synthetic, write):
    synthetic.run(tmp_path / "run", steps=2, total=2, validation_every=0)
    parts = {
        "exact": EXACT,
        "called": EXACT | {"input": "{{ sample.output_tools[0].output }}", "reference": "vorzen", "operation": "like"},
    }
    grader = write("g.json", {"type": "multi", "graders": parts, "calculate_output": "exact"})
    reinforcement, cases, (outcomes,) = await grade_file(tmp_path / "run", grader, NONE, name="step-000002")
    assert len(cases) == 6 * 4 - 1  # one was discarded
    assert [outcome.value for outcome in outcomes] == [case.recorded_grade for case in cases]
    assert {outcome.scores["called"] for outcome in outcomes} == {1.0}
    summary = summarize_grades([outcomes], reinforcement.grader.pass_threshold)
    assert "mean of the recorded grades" in printed(summary, [case.recorded_grade for case in cases])


def test_the_newest_file_is_read_unless_one_is_named(tmp_path, synthetic):
    run = synthetic.run(tmp_path / "run", steps=2, total=2, validation_every=0)
    newest = read_cases(run.path)
    assert len(newest) == 8  # test-after
    (step,) = [path for path in (run.path / "rollouts").iterdir() if "step-000001" in path.name]
    assert [case.trace_id for case in read_cases(step)] == [c.trace_id for c in read_cases(run.path, "step-000001")]
    with pytest.raises(UserError, match=r"no rollouts named 'step-9'.*test-before"):
        read_cases(run.path, "step-9")
    with pytest.raises(UserError, match="no rollouts"):
        read_cases(tmp_path)
    step.write_bytes(b"torn")
    with pytest.raises(UserError, match="is damaged"):
        read_cases(step)


# -- lines -------------------------------------------------------------------------------------------------------------


async def test_lines_are_graded_and_failures_are_counted_by_kind(write):
    lines = [*rows("Paris", "Rome"), {"sample": "Paris", "item": {"reference_answer": "Paris"}}, {"sample": "x"}]
    _, cases, (outcomes,) = await grade_file(write("s.jsonl", lines), write("g.json", EXACT), NONE)
    assert [o.value if isinstance(o, Grade) else o.details["code"] for o in outcomes] == [
        1.0,
        0.0,
        1.0,
        "invalid_variable_error",
    ]
    assert len({case.trace_id for case in cases}) == 4
    text = printed(summarize_grades([outcomes], 1.0))
    assert "3 grades of 4 rollouts" in text and "66.7%" in text
    assert "invalid_variable_error" in text and "item.reference_answer" in text and "25.0%" in text


def test_invalid_lines_are_reported_with_their_numbers(write):
    text = '{"sample": "a"}\n\nno json\n[1]\n{"item": {}}\n{"sample": "a", "item": 7}\n'
    with pytest.raises(InvalidJob, match="4 invalid line") as wrong:
        read_cases(write("s.jsonl", text))
    assert [(p.line, p.message.split(":")[0]) for p in wrong.value.problems] == [
        (3, "is not valid JSON"),
        (4, "is not a JSON object"),
        (5, "`sample` must be an object or the answer's text"),
        (6, "`item` must be an object"),
    ]
    with pytest.raises(InvalidJob, match="contains no rollouts"):
        read_cases(write("empty.jsonl", "\n"))
    with pytest.raises(InvalidJob, match="No such file"):
        read_cases(write("s.jsonl", "").with_name("gone.jsonl"))


# -- the grader --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "field", "line"),
    [
        ('{\n"type": "string_check",\n"input": "a",\n"reference": 7,\n"operation": "eq"}', "reference", 4),
        ('{"input": "a"}', "grader", None),
        ('{"type": "score_model", "model": "gone", "input": [{"role": "user", "content": "x"}]}', "grader.model", None),
        (json.dumps({"grader": EXACT, "guards": [{"name": "g"}]}), "guards[0].grader", 1),
        (json.dumps({"grader": EXACT | {"input": "{{ row.x }}"}}), "grader.input", None),
        (json.dumps(EXACT | {"name": "${NO_SUCH_NAME}"}), "name", 1),
        ("[]", "grader", None),
        ('{"type": }', "grader", 1),
    ],
)
def test_problems_of_a_grader_file_name_the_field_and_line(write, content, field, line):
    path = write("g.json", content)
    with pytest.raises(InvalidJob) as wrong:
        read_grader(path, NONE, {})
    [problem] = wrong.value.problems
    assert (problem.field, problem.line, problem.file) == (field, line, str(path))


def test_a_grader_file_may_have_guards_and_secrets_from_the_environment(write):
    held_out = {"type": "endpoint", "url": "http://x/", "headers": {"Key": "${KEY}"}}
    guards = [{"name": "short", "grader": {"type": "length", "max_chars": 9}}]
    path = write("g.json", {"grader": EXACT, "guards": guards, "held_out_grader": held_out})
    reinforcement = read_grader(path, NONE, {"KEY": "secret-0815"})
    assert reinforcement.held_out_grader.headers["Key"].get_secret_value() == "secret-0815"
    assert reinforcement.guards[0].name == "short"


def test_the_grader_may_be_that_of_a_job_with_its_guards(write):
    reinforcement = {"grader": EXACT, "guards": [{"name": "short", "grader": {"type": "length", "max_chars": 9}}]}
    job = {"model": "m", "training_file": "t.jsonl"}
    job |= {"method": {"type": "reinforcement", "reinforcement": reinforcement}}
    path = write("job.json", job)
    assert read_grader(path, NONE, {}).guards[0].name == "short"
    reinforcement["grader"] = EXACT | {"reference": 7}
    with pytest.raises(InvalidJob) as wrong:
        read_grader(write("job.json", job), NONE, {})
    assert wrong.value.problems[0].field == "method.reinforcement.grader.reference"
    job["method"] = {"type": "supervised", "supervised": {}}
    with pytest.raises(UserError, match="supervised"):
        read_grader(write("job.json", job), NONE, {})


# -- runs --------------------------------------------------------------------------------------------------------------


async def test_a_second_run_calls_judges_and_endpoints_again_so_that_noise_is_measured(write):
    rng = random.Random(1)
    keys = set()

    async def behave(request):
        keys.add(request.headers["Idempotency-Key"])
        content = json.dumps({"steps": [], "result": rng.choice([0.25, 0.75])})
        return web.json_response({"choices": [{"message": {"content": content}}], "score": 0.5})

    async with FakeEndpoint(behave) as server:
        judge = {"type": "score_model", "model": "judge", "input": [{"role": "user", "content": "{{ item.n }}"}]}
        parts = {"judge": judge, "remote": {"type": "endpoint", "url": server.url}}
        grader = write("g.json", {"type": "multi", "graders": parts, "calculate_output": "judge + remote"})
        operator = LOCAL.model_copy(update={"models": {"judge": ModelEndpoint(base_url=server.url)}})
        lines = [{"sample": "a", "item": {"n": n}} for n in range(40)]
        progress = []
        _, _, runs = await grade_file(
            write("s.jsonl", lines),
            grader,
            operator,
            repeat=2,
            on_progress=lambda count, total: progress.append((count, total)),
        )
    assert len(server.received) == len(keys) == 160
    noise = summarize_grades(runs, 1.0).noise
    assert noise.num_pairs == 40 and 0 < noise.changed_share < 1
    assert noise.mean_difference == pytest.approx(0.5 * noise.changed_share)
    assert progress[-1] == (80, 80)


async def test_an_endpoint_that_refuses_access_ends_the_run(write):
    async with FakeEndpoint(says("no", 401)) as server:
        grader = write("g.json", {"type": "endpoint", "url": server.url})
        with pytest.raises(EndpointRefused):
            await grade_file(write("s.jsonl", rows("a", "b")), grader, LOCAL)


def test_a_summary_of_known_grades():
    first = [Grade(v, {"part": v}) for v in (0.0, 0.25, 0.5, 1.0)] + [GraderFailed("x", kind="deadline")]
    second = [
        Grade(0.0, guard="brief", held_out=0.5, judge_tokens={"m": 3}),
        Grade(0.75),
        Grade(0.5),
        GraderFailed("down"),
        Grade(1.0),
    ]
    summary = summarize_grades([first, second], pass_threshold=0.5)
    assert (summary.num_graded, summary.mean, summary.pass_rate) == (8, 0.5, 5 / 8)
    assert summary.quantiles[0] == 0.0 and summary.quantiles[3] == 0.5 and summary.quantiles[-1] == 1.0
    assert sum(count for *_, count in summary.bins) == 8
    assert {name: count for name, (count, _) in summary.errors.items()} == {
        "unresponsive_reward_error": 1,
        "other_error": 1,
    }
    noise = summary.noise
    assert (noise.num_pairs, noise.changed_share, noise.num_one_graded) == (3, 1 / 3, 2)
    assert noise.mean_difference == pytest.approx(0.5 / 3)
    text = printed(summary)
    for part in ("mean of part", "guard brief tripped", "held-out", "tokens of m", "differ by 0.1667", "33.3% of 3"):
        assert part in text


def test_equal_grades_and_no_grades_can_be_printed():
    assert summarize_grades([[Grade(1.0)] * 3], 1.0).bins == ((1.0, 1.0, 3),)
    text = printed(summarize_grades([[GraderFailed("[red]x\x1b[31m")]], 1.0))
    assert "0 grades of 1" in text and "[red]x" in text and "\x1b" not in text


# -- what has changed --------------------------------------------------------------------------------------------------


def changes(cases, runs, known=None):
    console = Console(file=io.StringIO(), width=120, color_system=None)
    print_changes(find_grade_changes(cases, runs), len(cases) if known is None else known, console)
    return console.file.getvalue()


async def test_rows_whose_grade_changed_are_listed_with_row_and_line(tmp_path, synthetic, write):
    run = synthetic.run(tmp_path / "run", steps=1, total=1, validation_every=0)
    grader = write("g.json", EXACT | {"operation": "ne"})  # the opposite of what the run had
    _, cases, runs = await grade_file(run.path, grader, NONE, name="step-000001")
    text = changes(cases, runs)
    assert f"{len(cases)} of {len(cases)} grades changed" in text
    assert {case.where for case in cases} == {f"train.jsonl:{n}" for n in range(6)}  # the job's training file
    first, last = (next(case for case in cases if case.recorded_grade == grade) for grade in (0.0, 1.0))
    lines = [line for line in text.splitlines() if "train.jsonl:" in line]
    assert all(part in lines[0] for part in (first.row_id, first.where, first.trace_id, "0.000", "1.000", "+1.000"))
    assert "-1.000" in lines[-1] and len(lines) == 20 and "between" in text
    assert {case.where for case in read_cases(run.path, "test-after")} == {f"test_file:{n}" for n in range(8)}
    assert (
        "0 of 7 grades" in changes(cases[:7], [[Grade(case.recorded_grade) for case in cases[:7]]])
        and last.recorded_grade == 1.0
    )


def test_the_greatest_gains_and_losses_are_listed_and_failures_are_no_changes():
    cases = [GradingCase({}, {}, f"t{i}", 0.5, "", f"a.jsonl:{i}") for i in range(4)] + [GradingCase({}, {}, "unknown")]
    runs = [
        [Grade(0.5), Grade(0.0), GraderFailed("x"), Grade(0.75), Grade(1.0)],
        [Grade(0.5), Grade(0.5), GraderFailed("x"), Grade(0.75), Grade(1.0)],
    ]
    assert [(case.where, before, now) for case, before, now in find_grade_changes(cases, runs)] == [
        ("a.jsonl:3", 0.5, 0.75),
        ("a.jsonl:1", 0.5, 0.25),
    ]
    hostile = [GradingCase({}, {}, "\x1b[31m", 0.5, "[red]", "\u202e")]
    assert "\x1b" not in changes(hostile, [[Grade(0.0)]]) and "[red]" in changes(hostile, [[Grade(0.0)]])
    assert changes(cases[4:], [[Grade(1.0)]], 0) == ""


def test_a_line_may_have_the_grade_that_you_expect(write):
    path = write("s.jsonl", [{"sample": "a", "grade": 1}, {"sample": "b"}])
    assert [(case.recorded_grade, case.where) for case in read_cases(path)] == [(1, f"{path}:1"), (None, f"{path}:2")]
    with pytest.raises(InvalidJob) as wrong:
        read_cases(
            write(
                "w.jsonl",
                '{"sample": "a", "grade": NaN}\n{"sample": "a", "grade": true}\n{"sample": "a", "grade": "1"}\n',
            )
        )
    assert [problem.line for problem in wrong.value.problems] == [1, 2, 3]


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_prints_the_grades(write):
    arguments = ["grade", str(write("s.jsonl", rows("Paris", "Rome"))), "--grader", str(write("g.json", EXACT))]
    result = CliRunner().invoke(app, [*arguments, "--repeat", "2"])
    assert result.exit_code == 0
    assert "4 grades of 2 rollouts x 2 runs" in result.output and "0.0% of 2 pairs differ" in result.output


def test_each_grade_is_a_line_of_json_with_its_row_or_why_there_is_none(write):
    lines = [*rows("Paris", "Rome"), {"sample": "Paris"}]
    lines[0] |= {"trace_id": "half a character: \ud800"}
    lines[1] |= {"trace_id": "trace_rome", "grade": 1}
    path, grader = write("s.jsonl", lines), write("g.json", EXACT)
    result = CliRunner().invoke(app, ["grade", str(path), "--grader", str(grader), "--repeat", "2", "--json"])
    assert result.exit_code == 0
    first, again, rome, _, failed, _ = map(json.loads, result.stdout.splitlines())
    assert (first["where"], first["run"], again["run"], first["grade"]["value"]) == (f"{path}:1", 1, 2, 1.0)
    assert first["trace_id"] == "half a character: \ud800"
    assert first["grade"] | {"latency_s": 0} == again["grade"] | {"latency_s": 0}
    assert (rome["trace_id"], rome["recorded"], rome["grade"]["value"], rome["error"]) == ("trace_rome", 1, 0.0, None)
    assert (failed["where"], failed["grade"], failed["error"]["kind"]) == (f"{path}:3", None, "invalid_variable_error")
    assert "reference_answer" in failed["error"]["message"]


def test_the_command_fails_without_any_grade_and_on_invalid_input(write):
    grader = write("g.json", EXACT)
    failed = CliRunner().invoke(app, ["grade", str(write("s.jsonl", [{"sample": "x"}])), "--grader", str(grader)])
    assert type(failed.exception) is RftError  # exit code 1
    wrong = CliRunner().invoke(app, ["grade", str(write("s.jsonl", "x")), "--grader", str(grader)])
    assert type(wrong.exception) is InvalidJob  # exit code 2
