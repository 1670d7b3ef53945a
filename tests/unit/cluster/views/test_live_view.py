import io
import math
import os
import re
from dataclasses import replace

from rich.console import Console

from agent_rft.cluster.views.live_view import LiveView, before_after_table, format_duration, safe_text, trend
from agent_rft.events import Evaluated, Notice, PhaseStarted, RolloutsProgressed, StepDone
from agent_rft.trainer.loop.evaluation import summarize
from agent_rft.types import Grade, Group
from tests.support.builders import group, group_request
from tests.support.events import run_event, stream_of


def console(terminal, width=100):
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)


def shown(view, width=100):
    page = console(False, width)
    page.print(view.render())
    return page.file.getvalue()


def done(metrics):
    return run_event(StepDone(step=int(metrics["step"]), total_steps=12, metrics=metrics))


def test_a_log_gets_one_line_for_each_step_and_event(synthetic):
    page = console(False, 80)
    with LiveView(12, page) as view:
        view.handle_event(run_event(PhaseStarted(phase="actors", detail="engines")))
        view.handle_event(run_event(PhaseStarted(phase="validation")))
        synthetic.play(stream_of(view), steps=4)
    lines = page.file.getvalue().splitlines()
    assert len(lines) == 1 + 4 + 2 + 1  # phase, steps, validations, checkpoint; no line is wrapped and no table drawn
    assert "starting engines" in lines[0] and "validation at step 0" in lines[1]
    for part in ("step 4/12", "valid grade 0.", "calls ", "parallel ", "1 tool_failed", "pause 0.", "left "):
        assert part in lines[-1]


def test_the_table_shows_progress_grades_calls_and_phases(synthetic):
    view = LiveView(12, console(True))
    synthetic.play(stream_of(view), steps=5)
    text = shown(view)
    for part in (
        "step 5 of 12",
        "step 6: rollouts and learning",
        "train grade",
        "validation reward",
        "tool calls per rollout",
        "turns with parallel calls",
        "sampled tokens",
        "1 tool_failed",
        "max 1",
        "pause per update",
        "waiting",
        "learning",
        "left",
    ):
        assert part in text, part
    assert max(map(len, text.splitlines())) <= 100
    assert max(map(len, shown(view, 80).splitlines())) <= 80


def test_after_a_validation_the_phase_is_the_next_step(synthetic):
    view = LiveView(12, console(True))
    stream = stream_of(view)
    stream.emit(PhaseStarted(phase="validation"))
    assert "grading the validation file" in shown(view)
    synthetic.validate(stream, 0, 0.0)
    assert "step 1: rollouts and learning" in shown(view)


def test_before_the_first_step_the_phase_is_shown():
    view = LiveView(12, console(True))
    view.show_phase("baseline validation")
    assert "baseline validation" in shown(view) and "None" not in shown(view)


GRADING = PhaseStarted(phase="grading", detail="16 rows (test-after)")
ROLLING = RolloutsProgressed(
    purpose="train",
    ended=17,
    total=32,
    in_flight=15,
    calls={"cat": 25.0, "search": 40.0},
    errors={"cat": 2.0},
    slowest_s=12.4,
    slowest_row="31-abc",
    newest_trace="trace_1",
    newest_row="12-def",
    newest_grade=0.5,
    newest_calls=('cat {"path": "x"}',),
    newest_answer="4427 [bold]\x1b",
)


def test_while_a_step_runs_its_rollouts_calls_and_newest_trace_are_shown(synthetic):
    view = LiveView(12, console(True))
    view.handle_event(run_event(ROLLING))
    text = shown(view, 80)
    assert "17/32 ended, 15 in flight, slowest 12 s (row 31)" in text
    assert "search 40, cat 25 (2 errors)" in text
    assert "row 12, grade 0.500: 4427 [bold]�, after cat {" in text and "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    view.handle_event(done({"step": 1.0, "time_step_s": 1.0}))
    assert "in flight" not in shown(view)
    for emit in (lambda: synthetic.validate(stream_of(view), 1, 0.0), lambda: view.handle_event(run_event(GRADING))):
        view.handle_event(run_event(ROLLING))
        emit()
        assert "in flight" not in shown(view), "what was counted is done"


def test_a_log_gets_a_line_about_rollouts_only_once_a_minute():
    now, page = [0.0], console(False)
    view = LiveView(12, page, lambda: now[0])
    for at in (1.0, 59.0, 60.0, 61.0, 119.0, 121.0):
        now[0] = at
        view.handle_event(run_event(ROLLING))
    lines = page.file.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["1:00", "2:01"]
    assert "rollouts: 17/32 ended" in lines[0] and "newest: row 12" in lines[0]


def test_a_terminal_keeps_events_above_the_table(synthetic):
    page = console(True)
    with LiveView(3, page) as view:
        view.handle_event(run_event(Notice(text="search answered 503")))
        synthetic.play(stream_of(view), steps=3, total=3)
    output = page.file.getvalue()
    assert "warn: search answered 503" in output and "step 3 of 3" in output
    assert "step 2/3:" not in output


def test_the_time_left_is_the_median_step_time_times_the_steps_left(synthetic):
    view = LiveView(10, console(True))
    assert view.remaining_s is None
    for step, seconds in enumerate((10.0, 12.0, 500.0), start=1):
        view.handle_event(done({"step": float(step), "time_step_s": seconds}))
    assert 83 < view.remaining_s <= 84


def test_steps_that_a_resumed_run_repeats_count_once():
    view = LiveView(12, console(True))
    for step in (1, 2, 3, 4, 5, 3, 4):  # resumed from the checkpoint of step 2
        view.handle_event(done({"step": float(step), "train_mean_grade": step / 10, "time_step_s": 1.0}))
    assert trend([1, 2, 3, 4]) + " " in shown(view)
    assert re.search(r"train grade +0.100 +0.400 ", shown(view))


def test_numbers_that_are_missing_or_not_finite_are_not_shown(synthetic):
    for terminal in (True, False):
        page = console(terminal)
        view = LiveView(2, page)
        view.handle_event(done({"step": 1.0, "loss": math.nan, "train_mean_reward": 0.5}))
        assert "nan" not in shown(view) + page.file.getvalue()


def test_untrusted_text_is_shown_without_markup_and_control_codes():
    page = console(False)
    LiveView(1, page).handle_event(run_event(Notice(text="[bold]no[/bold] \x1b]0;title\x07 [/] \ud800")))
    assert "[bold]no[/bold]" in page.file.getvalue() and "\x1b" not in page.file.getvalue()
    assert safe_text("a\r\nb\tc\x9b") == "a\nb\tc�"


def test_a_closed_pipe_does_not_end_the_training():
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as file:
        view = LiveView(2, Console(file=file, force_terminal=False))
        for step in (1.0, 2.0):
            view.handle_event(done({"step": step, "train_mean_reward": 0.5}))
        os.dup2(os.open(os.devnull, os.O_WRONLY), write)  # so that closing the file does not fail


def test_the_table_of_before_and_after_has_absolute_and_relative_changes(synthetic):
    groups = [synthetic.groups(20, 2, "test", 0, skill) for skill in (0.0, 1.0)]
    before, after = (summarize(g, 2, 1.0) for g in groups)
    page = console(False)
    page.print(before_after_table(before, after))
    text = page.file.getvalue()
    grade = next(line for line in text.splitlines() if line.strip().startswith("grade"))
    assert f"{before.grade:.3f}" in grade and f"{after.grade - before.grade:+.3f}" in grade
    assert f"{after.grade / before.grade - 1:+.0%}" in grade
    for name, form in (("grade", "{:.3f}"), ("pass_rate", "{:.1%}"), ("pass_at_k", "{:.1%}")):
        assert (
            before.get_interval(name).format_bounds(form) in text
            and after.get_interval(name).format_bounds(form) in text
        )
    assert "20 rows, 2 rollouts each" in text and "only 20 rows" in text
    assert max(map(len, text.splitlines())) <= 100
    assert "pass@2" in text and "points" in text
    alone = console(False)
    alone.print(before_after_table(before, None))
    assert "before" not in alone.file.getvalue() and f"{before.tool_calls:.2f}" in alone.file.getvalue()
    assert "measured" in alone.file.getvalue() and "95 % confidence" in alone.file.getvalue()


def test_the_table_has_the_held_out_grade_if_there_is_one():
    (made,) = group(group_request(0, 1, "test"), [1.0]).rollouts
    graded = [
        summarize([Group(group_request(0, 1, "test"), (replace(made, grade=Grade(1.0, held_out=value)),))], 1, 1.0)
        for value in (0.25, 0.75, None)
    ]
    page = console(False)
    page.print(before_after_table(*graded[:2]))
    (line,) = (line for line in page.file.getvalue().splitlines() if "held-out" in line)
    assert "0.250" in line and "0.750" in line and "+0.500" in line
    without = console(False)
    without.print(before_after_table(graded[2], graded[2]))
    assert "held-out" not in without.file.getvalue()


def test_a_file_in_which_nothing_was_right_is_not_known_to_be_hopeless():
    none_right = summarize([group(group_request(i, 1, "test"), [0.0]) for i in range(5)], 1, 1.0)
    page = console(False)
    page.print(before_after_table(none_right, None))
    assert "[0.000, 0.434]" in page.file.getvalue() and "[0.0%, 43.4%]" in page.file.getvalue()
    assert "± 0.000" not in str(Evaluated(name="eval-test", evaluation=none_right))


def test_a_file_without_a_graded_rollout_has_dashes(synthetic):
    nothing = summarize([], 1, 1.0)
    page = console(False)
    page.print(before_after_table(nothing, nothing))
    assert "nan" not in page.file.getvalue()


def test_trends_and_durations():
    assert trend([0.0, 1.0]) == "▁█" and trend([2.0, 2.0]) == "▄▄" and len(trend(list(range(1000)), 30)) == 30
    assert [format_duration(s) for s in (0, 61, 3661)] == ["0:00", "1:01", "1:01:01"]


def test_the_number_of_steps_is_updated_and_time_left_decreases_between_steps(synthetic):
    now = [100.0]
    page = console(False)
    view = LiveView(0, page, lambda: now[0])
    now[0] += 61
    view.handle_event(done({"step": 1.0, "total_steps": 10.0, "time_step_s": 7.0}))
    assert page.file.getvalue().startswith("1:01  step 1/10") and view.remaining_s == 63
    now[0] += 4
    assert view.remaining_s == 59


def test_the_table_names_the_rollouts_without_a_grade():
    before = summarize([group(group_request(i, 1, "test"), [1.0]) for i in range(4)], 1, 1.0)
    after = summarize([group(group_request(i, 1, "test"), [1.0 if i else None]) for i in range(4)], 1, 1.0)
    page = console(False, 200)
    page.print(before_after_table(before, after))
    text = " ".join(page.file.getvalue().split())
    bounds = "the mean grade is 0.750 if all missing rollouts count as wrong, and 1.000 if all count as right"
    assert f"after: 1 of 4 rollouts has no grade: {bounds}" in text and "before: " not in text
    alone = console(False, 200)
    alone.print(before_after_table(after, None))
    assert f"; 1 of 4 rollouts has no grade: {bounds}" in " ".join(alone.file.getvalue().split())
