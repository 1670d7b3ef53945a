"""The figures of `make real-model`: `python -m examples.orders.results` writes those in build/ to RESULTS.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
BUILD: Final = HERE.parents[1] / "build" / "orders"
HEADER: Final = """\
# Figures

Written by `python -m examples.orders.results` from the runs of `make real-model SEED=n` on this machine:
SmolLM2-135M-Instruct, two cores, no GPU. Grades are means over the {rows} unseen rows of `data/test.jsonl`, with the
half width of the 95 % confidence interval; calls and tokens are per rollout. The load is that of the machine before the
run and, as a mean of 15 minutes, after it: about 2 where nothing else ran.

"""
COLUMNS: Final = ("seed", "stage", "grade", "right", "tool calls", "sampled tokens", "minutes", "load")


def table(summaries: Iterable[dict[str, Any]]) -> str:
    """One line a stage of each seed, in Markdown."""
    lines = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
    for summary in summaries:
        for found in summary["stages"]:
            cells = [
                str(summary["seed"]),
                found["stage"],
                f"{found['grade']:.3f} ± {found['ci95']:.3f}",
                f"{found['pass_rate']:.0%}",
                f"{found['tool_calls']:.2f}",
                f"{found['completion_tokens']:.0f}",
                f"{found['minutes']:.1f}",
                "",
            ]
            lines.append(" | ".join(cells))
        load = " to ".join(f"{load:.1f}" for load in summary["load"])
        lines.append(f"{summary['seed']} | all |  |  |  |  | {summary['minutes']:.1f} | {load}")
    return "".join(f"| {line} |\n" for line in lines)


def main() -> None:
    summaries = [json.loads(path.read_text()) for path in sorted(BUILD.glob("seed-*/summary.json"))]
    if not summaries:
        raise SystemExit("there are no results: run make real-model first")
    header = HEADER.format(rows=summaries[0]["stages"][-1]["num_rows"])
    (HERE / "RESULTS.md").write_text(header + table(summaries), encoding="utf-8")


if __name__ == "__main__":
    main()
