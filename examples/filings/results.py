"""The figures of `python -m examples.filings.real_model`: `python -m examples.filings.results` writes RESULTS.md."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

HERE: Final = Path(__file__).parent
BUILD: Final = HERE.parents[1] / "build" / "filings"
Z: Final = 1.959964
HEADER: Final = """\
# Figures

Written by `python -m examples.filings.results` from runs of `python -m examples.filings.real_model` on this machine:
a small model on two cores, no GPU. All are means over the {rows} unseen rows of `data/test.jsonl`. `held out` is the
grader that the model is not trained on; the gain is that of reinforcement, with its paired 95 % interval over rows.

"""
COLUMNS: Final = ("seed", "rubric", "stage", "grade", "held out", "false citations", "tool calls", "sampled tokens")


def held_out_part(traces: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What the lines of `agent-rft traces RUN --json` add to a stage.

    That is `held_out`, the grade of each row, and the mean of `false_citations`, None where the rubric does not count
    them. Discarded rollouts and failed held-out grades are left out.
    """
    grades = {line["row_id"]: line["grade"] for line in traces if line["kind"] == "rollout"}
    counted = [grade["scores"]["false_citations"] for grade in grades.values() if "false_citations" in grade["scores"]]
    return {
        "held_out": {row: grade["held_out"] for row, grade in grades.items() if grade["held_out"] is not None},
        "false_citations": fmean(counted) if counted else None,
    }


def paired_gain(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[float, float]:
    """The mean gain of the rows that both have, of which there must be two, and the half width of its 95 % interval."""
    gains = [after[row] - before[row] for row in before.keys() & after.keys()]
    return fmean(gains), Z * stdev(gains) / math.sqrt(len(gains))


def table(summaries: Iterable[Mapping[str, Any]]) -> str:
    """One line a stage of each seed and one for the gain, in Markdown."""
    lines = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
    for summary in summaries:
        of_seed = (str(summary["seed"]), summary["rubric"])
        for found in summary["stages"]:
            false = found["false_citations"]
            cells = (
                *of_seed,
                found["stage"],
                f"{found['grade']:.3f} ± {found['ci95']:.3f}",
                f"{fmean(found['held_out'].values()):.3f}",
                "" if false is None else f"{false:.2f}",
                f"{found['tool_calls']:.2f}",
                f"{found['completion_tokens']:.0f}",
            )
            lines.append(" | ".join(cells))
        gain, half = paired_gain(*(found["held_out"] for found in summary["stages"][-2:]))
        lines.append(" | ".join((*of_seed, "gain", "", f"{gain:+.3f} ± {half:.3f}", "", "", "")))
    return "".join(f"| {line} |\n" for line in lines)


def main() -> None:
    summaries = [json.loads(path.read_text()) for path in sorted(BUILD.glob("*/summary.json"))]
    if not summaries:
        raise SystemExit("there are no results: run python -m examples.filings.real_model first")
    header = HEADER.format(rows=summaries[0]["stages"][-1]["num_rows"])
    (HERE / "RESULTS.md").write_text(header + table(summaries), encoding="utf-8")


if __name__ == "__main__":
    main()
