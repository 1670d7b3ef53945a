"""Live view of a running job: an updating table on a terminal, plain lines everywhere else.

The view shows the metrics of the training loop; only the time left is computed here. Text from endpoints and models
never reaches the terminal as markup or control codes.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from statistics import fmean, median
from types import TracebackType

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from agent_rft.cluster.views.before_after import compare_before_after, few_rows_warning
from agent_rft.events import Evaluated, JobEnded, PhaseStarted, RolloutDiscarded, RolloutsProgressed, StepDone
from agent_rft.metrics import METRICS
from agent_rft.metrics.confidence_intervals import Interval
from agent_rft.stored_events import RunEvent
from agent_rft.types import Evaluation

TREND_WIDTH, PHASE_WIDTH = 30, 40
LOG_EVERY_S = 60.0
LEVEL_STYLES = {"info": "dim", "warn": "yellow", "error": "bold red"}
ROWS = {name: metric for name, metric in METRICS.items() if metric.in_live_view}
"""Metrics that are shown in the table or in log lines, in the order of METRICS."""
PHASES = {name: metric.series for name, metric in METRICS.items() if metric.chart == "step_time"}
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
PHASE_STYLES = ("cyan", "magenta", "yellow", "green")


def safe_text(text: str) -> str:
    """Replace control codes, text direction overrides and lone surrogates in the text.

    Untrusted text must not control the terminal, reverse words, or be unprintable.
    """
    return _UNSAFE.sub("�", text.replace("\r\n", "\n"))


class LiveView:
    """Sink and context manager that shows a table of metrics on a terminal, and prints lines elsewhere.

    `total_steps` is an estimated number of steps. The exact number from the metrics replaces it later. `clock` returns
    seconds.
    """

    def __init__(self, total_steps: int, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._now = clock
        self._total_steps = total_steps
        self._step = 0
        self._last: dict[str, float] = {}
        self._series: dict[str, dict[int, float]] = {}  # by step
        self._grade: Interval | None = None
        self._phase, self._running = "starting", True
        self._progress_event: RolloutsProgressed | None = None
        self._started = self._stepped = self._printed = clock()
        self._spinner = Spinner("dots", style="cyan")
        # Each refresh takes milliseconds of CPU time that rollouts need.
        self._live = Live(console=console, get_renderable=self.render, refresh_per_second=2)

    def __enter__(self) -> LiveView:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop updating the table; later events are printed below it."""
        self._running = False
        self._live.stop()

    def show_phase(self, text: str) -> None:
        """Show the phase of the run between steps: `starting engines`, `baseline validation`, ..."""
        self._phase = text
        if not self._live.is_started:
            self._print(Text(f"{self._elapsed()}  {safe_text(text)}"))

    # -- Sink ----------------------------------------------------------------------------------------------------------

    def handle_event(self, event: RunEvent) -> None:
        if isinstance(event.event, StepDone | Evaluated | PhaseStarted):
            self._progress_event = None
        match event.event:
            case StepDone(metrics=metrics):
                self._step_done(metrics)
            case RolloutsProgressed() as progressed:
                self._progressed(progressed)
            case PhaseStarted(is_quiet=True):
                self._phase = event.message
            case PhaseStarted():
                self.show_phase(event.message)
            case JobEnded() | RolloutDiscarded():
                pass  # the command prints the outcome; the table counts discarded rollouts
            case Evaluated(name="validation", evaluation=found, step=step):
                self._grade = found.get_interval("grade")
                grades = {"full_valid_mean_grade": found.grade, "full_valid_mean_reward": found.reward}
                self._add_metrics(self._step if step is None else step, grades)
                self._phase = f"step {self._step + 1}: rollouts and learning"
                self._print_event(event)
            case _:
                self._print_event(event)

    def close(self) -> None:
        """Do nothing; `stop` ends the view."""

    def _step_done(self, metrics: dict[str, float]) -> None:
        self._last, self._step, self._stepped = dict(metrics), int(metrics["step"]), self._now()
        self._total_steps = int(metrics.get("total_steps", self._total_steps))
        self._add_metrics(self._step, metrics)
        more = self._step < self._total_steps
        self._phase = f"step {self._step + 1}: rollouts and learning" if more else "finishing"
        if not self._live.is_started:
            self._print(Text(self._log_line()))

    def _progressed(self, event: RolloutsProgressed) -> None:
        """Show the progress of the rollouts.

        In a log, the progress is printed only if nothing else was printed for LOG_EVERY_S seconds.
        """
        self._progress_event = event
        if not self._live.is_started and self._now() - self._printed >= LOG_EVERY_S:
            newest = event.describe_newest()
            shown = f"{event}; newest: {newest}" if newest else str(event)
            self._print(Text(f"{self._elapsed()}  {safe_text(shown)}"))

    def _print_event(self, event: RunEvent) -> None:
        label = "" if event.level == "info" else f"{event.level}: "
        self._print(Text(f"{self._elapsed()}  {label}{safe_text(event.message)}", style=LEVEL_STYLES[event.level]))

    # -- what is shown -------------------------------------------------------------------------------------------------

    @property
    def remaining_s(self) -> float | None:
        """Estimated seconds left: remaining steps multiplied by the median step time; None before a step is done."""
        times = self._series.get("time_step_s")
        if not times:
            return None
        steps, each = self._total_steps - self._step, median(times.values())
        return max(0.0, steps * each - min(each, self._now() - self._stepped))

    def render(self) -> RenderableType:
        """Return the full panel; it fits 80 columns and is designed for 100."""
        table = Table(box=None, padding=(0, 1), header_style="dim", expand=True)
        table.add_column("", no_wrap=True)
        table.add_column("first", justify="right", style="dim", no_wrap=True)
        table.add_column("now", justify="right", style="bold", no_wrap=True)
        table.add_column("over the steps", style="cyan", no_wrap=True, min_width=TREND_WIDTH)
        table.add_column("", style="dim", no_wrap=True, ratio=1)
        for name, metric in ROWS.items():
            if values := list(self._series.get(name, {}).values()):
                ends = metric.format(values[0]), metric.format(values[-1])
                table.add_row(metric.label, *ends, trend(values), Text(self._row_note(name)))
        parts: list[RenderableType] = [self._progress_line(), *self._rollout_lines()]
        parts += [Text(), table] if table.row_count else []
        parts += [Text(), self._phase_bar()] if self._last else []
        left = f" · about {format_duration(self.remaining_s)} left" if self.remaining_s and self._running else ""
        return Panel(
            Group(*parts),
            box=box.ROUNDED,
            border_style="dim",
            padding=(0, 1),
            title=f"[bold]step {self._step} of {self._total_steps}[/bold]" if self._step else None,
            title_align="left",
            subtitle=f"{self._elapsed()} so far{left}",
            subtitle_align="right",
            width=min(100, self._console.width),
        )

    def _progress_line(self) -> RenderableType:
        self._spinner.update(text=Text(self._phase))
        phase: RenderableType = self._spinner if self._running else Text("ended", style="bold")
        if not self._step:
            return phase
        line = Table.grid(padding=(0, 2), expand=True)
        line.add_column()
        line.add_column(ratio=1)
        bar = ProgressBar(total=self._total_steps, completed=self._step, complete_style="cyan", finished_style="green")
        line.add_row(phase, bar)
        return line

    def _rollout_lines(self) -> Iterator[RenderableType]:
        """Yield the progress of the current step or evaluation: rollout counts, calls, the newest trace."""
        event = self._progress_event
        if event is None or not self._running:
            return
        lines = {"rollouts": event.describe_counts()}
        lines |= {"calls": event.describe_calls()} if event.calls else {}
        lines |= {"newest": newest} if (newest := event.describe_newest()) else {}
        for label, text in lines.items():
            line = Text(f"  {label:<9}", style="dim").append(safe_text(text).replace("\n", " "), style="not dim")
            line.truncate(min(100, self._console.width) - 4, overflow="ellipsis")
            yield line

    def _phase_bar(self) -> RenderableType:
        """Return the phases of the last step: a stacked bar and the seconds of each phase."""
        styled = zip(PHASES.items(), PHASE_STYLES, strict=True)
        times = [(self._last.get(name, 0.0), label, style) for (name, label), style in styled]
        rest = self._last.get("time_step_s", 0.0) - sum(seconds for seconds, _, _ in times)
        times = [*times, (max(0.0, rest), "other", "bright_black")]
        total = sum(seconds for seconds, _, _ in times) or 1.0
        bar, legend, filled, spent = Text(" "), Text(" "), 0, 0.0
        for seconds, label, style in times:
            spent += seconds
            width = round(spent / total * PHASE_WIDTH) - filled
            filled += width
            bar.append("━" * width, style=style)
            if seconds / total >= 0.005:
                legend.append("■ ", style=style).append(f"{label} {seconds:.1f} s   ")
        bar.append(f"  {self._last.get('time_step_s', spent):.1f} s for step {self._step}", style="dim")
        return Group(bar, legend)

    def _row_note(self, name: str) -> str:
        if name == "full_valid_mean_grade":
            return "" if self._grade is None else self._grade.format_bounds("{:.3f}")
        if name == "mean_unresponsive_rewards":
            return self._describe_discards()
        if name == "staleness_mean":
            return f"max {self._last.get('staleness_max', 0):.0f}"
        return ""

    def _describe_discards(self) -> str:
        reasons = {k.partition("/")[2]: v for k, v in self._last.items() if k.startswith("discarded/")}
        return ", ".join(f"{count:.0f} {reason}" for reason, count in sorted(reasons.items()))

    def _log_line(self) -> str:
        """Return the log line of the last step."""
        m = self._last
        shown = [
            f"{metric.short_label or metric.label} {metric.format(m[name])}"
            + (f" ({note})" if (note := self._row_note(name)) else "")
            for name, metric in ROWS.items()
            if math.isfinite(m.get(name, math.nan))
        ]
        shown += [f"{label} {m[name]:.1f} s" for name, label in PHASES.items() if name in m]
        shown += [f"left {format_duration(self.remaining_s)}"] if self.remaining_s else []
        return f"{self._elapsed()}  step {self._step}/{self._total_steps}: " + ", ".join(shown)

    def _elapsed(self) -> str:
        return format_duration(self._now() - self._started)

    def _add_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the metrics of a step. First drop later steps, because a resumed run repeats them."""
        for series in self._series.values():
            for undone in [later for later in series if later > step]:
                del series[undone]
        for name, value in metrics.items():
            if math.isfinite(value):
                self._series.setdefault(name, {})[step] = value

    def _print(self, text: Text) -> None:
        """Print above the table. A closed pipe or a full disk must not end the training."""
        self._printed = self._now()
        with suppress(OSError, ValueError, SystemExit):  # rich raises SystemExit on a broken pipe
            self._console.print(text, soft_wrap=not self._live.is_started, highlight=False)


def trend(values: Sequence[float], width: int = TREND_WIDTH) -> str:
    """Return a sparkline of block characters; each block is a mean if there are more values than blocks."""
    bins = min(width, len(values))
    edges = [i * len(values) // bins for i in range(bins + 1)]
    means = [fmean(values[a:b]) for a, b in pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    return "".join("▁▂▃▄▅▆▇█"[round((v - low) / span * 7) if span else 3] for v in means)


def format_duration(seconds: float) -> str:
    """Format seconds as h:mm:ss, or as m:ss below an hour."""
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def before_after_table(before: Evaluation, after: Evaluation | None) -> Table:
    """Return a table that compares two evaluations of a file, or shows only `before` if `after` is None."""
    last = after or before
    missing = [found.missing_note for found in (before, after) if found is not None]
    labels = ("",) if after is None else ("before: ", "after: ")
    notes = [few_rows_warning(last), *(label + note for label, note in zip(labels, missing, strict=True) if note)]
    what = "; ".join(["in brackets: 95 % confidence intervals", *filter(None, notes)])
    table = Table(box=box.SIMPLE_HEAD, caption=what, caption_justify="left")
    table.add_column(f"{last.num_rows} rows, {last.samples} rollout{'s' * (last.samples != 1)} each")
    headings = ("measured",) if after is None else ("before", "after", "change", "relative")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    styles = {"better": "green", "worse": "red", "same": "dim"}
    for row in compare_before_after(before, after or before):
        cells: list[str | Text] = [row.label, _with_bounds(row.before, row.before_bounds)]
        if after is not None:
            cells += [_with_bounds(row.after, row.after_bounds)]
            cells += [*(Text(text, style=styles[row.verdict]) for text in (row.change, row.relative))]
        table.add_row(*cells)
    return table


def _with_bounds(value: str, bounds: str) -> Text:
    """Return a value with its bounds on the next line. On the same line, they would make the table too wide."""
    return Text(value).append(f"\n{bounds}", style="dim") if bounds else Text(value)
