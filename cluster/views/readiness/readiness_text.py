"""Terminal output of a readiness check."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.markup import escape

from agent_rft.cluster.readiness.readiness_report import Readiness
from agent_rft.cluster.readiness.rollout_behavior import RolloutBehavior
from agent_rft.cluster.views.live_view import format_duration
from agent_rft.cluster.views.readiness.readiness_page import TITLES
from agent_rft.problems.readiness_reasons import REASONS

VERDICT_COLORS = {"train": "green", "fix_first": "red", "sft_warm_up": "yellow"}


def print_readiness(console: Console, found: Readiness) -> None:
    """Print the verdict, the reasons with their fixes, the main figures and the recommended settings."""

    def print_line(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False)

    print_line(f"[bold {VERDICT_COLORS[found.verdict]}]{TITLES[found.verdict]}[/] ({found.verdict})")
    for entry in found.reasons:
        text = REASONS[entry.reason]
        note = "" if text.verdict else "note: "
        print_line(f"- {note}{escape(entry.words)} [dim]{escape(f'[{entry.reason}]')}[/]")
        if text.verdict != "train":
            print_line(f"    -> {escape(text.fix)}")
    shares = found.shares
    print_line(
        f"{len(found.rows)} rows, {found.samples} rollouts each: {shares.signal:.0%} with signal, "
        f"{shares.all_wrong:.0%} all wrong, {shares.all_right:.0%} all right, "
        f"{shares.equal:.0%} all equal but neither right nor wrong"
    )
    print_line(
        escape(f"grade {found.grade}; pass@k: " + ", ".join(f"{entry.k}: {entry.share}" for entry in found.pass_at))
    )
    sizes = (f"{e.size}: {e.low:.0%}" + (f" to {e.high:.0%}" if e.high > e.low else "") for e in found.group_signal)
    print_line("groups with signal by size: " + ", ".join(sizes))
    if found.behavior is not None:
        _print_behavior(print_line, found.behavior)
    for setting in found.settings:
        print_line(f"set {escape(setting.setting)}: {setting.value:g} ({escape(setting.why)})")
    took = (
        ""
        if found.estimate.sampling_s is None
        else f"; sampling takes about {format_duration(found.estimate.sampling_s)}"
    )
    useful = f"about {found.estimate.useful_groups:.1f} groups with signal per step"
    print_line(f"estimated training run: {found.estimate.steps} steps, {useful}{took}")


def _print_behavior(print_line: Callable[[str], None], behavior: RolloutBehavior) -> None:
    ended = ", ".join(f"{kind} {share:.0%}" for kind, share in behavior.ended.items())
    print_line(
        f"{behavior.calls.mean:.1f} tool calls, {behavior.turns.mean:.1f} turns, "
        f"{behavior.sampled_tokens.mean:.0f} sampled tokens, {behavior.busy_s.median:.1f} s "
        f"(P95 {behavior.busy_s.p95:.1f} s) per rollout; ended by {ended}"
    )
    for tool in behavior.tools:
        latency = f"{tool.latency_s.median:.2f} s, P95 {tool.latency_s.p95:.2f} s"
        print_line(f"tool {escape(tool.name)}: {tool.calls} calls, {tool.errors} errors, {latency}")
