"""Table of an example's results: `python -m examples.common.results CASE` writes examples/CASE/RESULTS.md.

It reads `build/CASE/*/summary.json`, which `python -m examples.common.learn CASE MODEL` writes.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

EXAMPLES: Final = Path(__file__).parents[1]
BUILD: Final = EXAMPLES.parent / "build"
Z: Final = 1.959964
CASES: Final[Mapping[str, Mapping[str, str]]] = {
    "edit_planning": {"ROWS": "many", "EPOCHS": "1"},
    "filings": {"RUBRIC": "rubric", "WARM_START": "warm_start"},
    "finqa": {},
    "icd10": {},
    "kernels": {},
}
"""Cases of examples.common.learn, with their default settings. Only runs with these settings count for the verdict."""
ORDERS: Final = "orders"
HEADER: Final = """\
# Results

`python -m examples.common.results {case}` writes this file from runs of `{command}`, with {cores} cores and no GPU.

{verdict}

Values are means over the {rows} unseen rows of the test file. Turns, calls and tokens are counted per rollout.

{columns}

"""
GRADE: Final = "`grade`: mean grade with its 95 % interval"
RIGHT: Final = "`right`: share of rollouts that pass"
HELD_OUT: Final = "`held out`: grade by a grader that the model is not trained on"
SLOW: Final = "`slow`: share of rollouts with over {target_s:g} s of model and tool time, which depends on the load"
UNGATED: Final = "`ungated`: grade without guards"
LOAD: Final = "`load`: the machine's load average, over 1 minute before the run and over 15 minutes at its end"
GAIN: Final = "`gain`: gain through reinforcement, with its paired 95 % interval over rows"
SETTINGS: Final = "`NAME=value` after a seed: a setting of the run; such runs do not count for the verdict"
SEEDS_NEEDED: Final = 2
"""Minimum number of runs for a verdict."""
TARGETS_S: Final[Mapping[str, float]] = {"icd10": 20.0}
"""Target for a rollout's model and tool time in seconds, by case. The table shows the share of slower rollouts."""
Summary = Mapping[str, Any]


def rows_part(traces: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Compute a stage's results per row from the lines of `agent-rft traces RUN --name EVALUATION --json`.

    `grades`, `held_out` and `seconds` (model and tool time) are means over the rollouts of a row, by row id. `turns` is
    the mean number of turns per rollout, None without rollouts. `scores` has the mean of each part of the grade that
    all rollouts have and, if rows have k rollouts, `best of k`, the mean of the rows' best grades. Discarded rollouts
    and failed held-out grades are left out.
    """
    rows = defaultdict[str, list[Mapping[str, Any]]](list)
    for line in traces:
        if line["kind"] == "rollout":
            rows[line["row_id"]].append(line)
    graded = {row: [line["grade"] for line in found] for row, found in rows.items()}
    grades = [grade for found in graded.values() for grade in found]
    names = set.intersection(*(set(grade["scores"]) for grade in grades)) if grades else set()
    scores = {name: fmean(grade["scores"][name] for grade in grades) for name in sorted(names)}
    if (k := max(map(len, rows.values()), default=0)) > 1:
        scores[f"best of {k}"] = fmean(max(grade["value"] for grade in found) for found in graded.values())
    turns = [len(line["turns"]) for found in rows.values() for line in found]
    held_out = {row: [one["held_out"] for one in found if one["held_out"] is not None] for row, found in graded.items()}
    return {
        "grades": {row: fmean(grade["value"] for grade in found) for row, found in graded.items()},
        "held_out": {row: fmean(values) for row, values in held_out.items() if values},
        "seconds": {row: fmean(sum(map(_seconds, line["turns"])) for line in found) for row, found in rows.items()},
        "turns": fmean(turns) if turns else None,
        "scores": scores,
    }


def _seconds(turn: Mapping[str, Any]) -> float:
    """Return the model time of a turn plus the time of its slowest call, because the calls run concurrently."""
    return float(turn["model_s"]) + max((result["latency_s"] for result in turn["results"]), default=0.0)


def _slow(stage: Mapping[str, Any], target_s: float) -> dict[str, float]:
    """Return, for each row, 1 if its rollouts took longer than the target on average, else 0."""
    return {row: float(taken > target_s) for row, taken in stage["seconds"].items()}


def paired_gain(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[float, float]:
    """Return the mean gain over the rows in both mappings, at least two, and half the width of its 95 % interval."""
    gains = [after[row] - before[row] for row in before.keys() & after.keys()]
    return fmean(gains), Z * stdev(gains) / math.sqrt(len(gains))


def gain(summary: Summary) -> tuple[float, float]:
    """Return the gain of reinforcement and half its interval, by the held-out grader or, without one, by the grade."""
    before, after = summary["stages"][-2:]
    key = "held_out" if before["held_out"] and after["held_out"] else "grades"
    return paired_gain(before[key], after[key])


def verdict(summaries: Sequence[Summary]) -> str:
    """Return a sentence on whether the model has learned: two thirds of the gains must have an interval above 0.

    Runs whose settings differ from CASES are left out.
    """
    gains = [gain(summary) for summary in summaries if not summary["settings"]]
    above = sum(mean > half for mean, half in gains)
    if len(gains) < SEEDS_NEEDED:
        learned = "**Too few runs to tell**"
    elif 3 * above >= 2 * len(gains):
        learned = "**Learned**"
    else:
        learned = "**Not shown to be learned**"
    return f"{learned}: the interval of the gain lies above 0 in {above} of {len(gains)} runs."


def table(summaries: Sequence[Summary], target_s: float | None = None) -> str:
    """Return a Markdown table with a line for each stage of each run, and a line for each run's gain.

    With `target_s`, the table also has the share of rollouts that take longer.
    """
    stages = [stage for summary in summaries for stage in summary["stages"]]
    held_out = any(stage["held_out"] for stage in stages)
    scores = sorted({name for stage in stages for name in stage["scores"]})
    columns = ["seed", "stage", "grade", "right", *(["held out"] if held_out else [])]
    columns += [*(["slow"] if target_s is not None else []), *scores]
    columns += [*(["turns"] if _have_turns(summaries) else []), "tool calls", "sampled tokens", "minutes", "load"]
    lines = [columns, ["---"] * len(columns)]

    def add(summary: Summary, stage: str, **cells: str) -> None:
        found = {"seed": " ".join((str(summary["seed"]), *summary["settings"])), "stage": stage} | cells
        lines.append([found.get(column, "") for column in columns])

    for summary in summaries:
        for stage in summary["stages"]:
            cells = {name: f"{mean:.2f}" for name, mean in stage["scores"].items()} | {
                "grade": f"{stage['grade']:.3f} ± {stage['ci95']:.3f}",
                "right": f"{stage['pass_rate']:.0%}",
                "held out": f"{fmean(stage['held_out'].values()):.3f}" if stage["held_out"] else "",
                "slow": f"{fmean(_slow(stage, target_s).values()):.0%}" if target_s is not None else "",
                "turns": f"{stage['turns']:.2f}" if stage.get("turns") is not None else "",
                "tool calls": f"{stage['tool_calls']:.2f}",
                "sampled tokens": f"{stage['completion_tokens']:.0f}",
                "minutes": f"{stage['minutes']:.1f}",
            }
            add(summary, stage["stage"], **cells)
        mean, half = gain(summary)
        load = " to ".join(f"{load:.1f}" for load in summary["load"])
        gained = {"held out" if held_out else "grade": f"**{mean:+.3f} ± {half:.3f}**"}
        if target_s is not None:
            slower, half = paired_gain(*(_slow(stage, target_s) for stage in summary["stages"][-2:]))
            gained["slow"] = f"**{slower:+.0%} ± {half:.0%}**"
        add(summary, "gain", **gained, minutes=f"{summary['minutes']:.1f} in all", load=load)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _have_turns(summaries: Sequence[Summary]) -> bool:
    """Return whether the stages have numbers of turns; summaries of older runs do not."""
    return any("turns" in stage for summary in summaries for stage in summary["stages"])


def _command(case: str) -> str:
    return "make real-model SEED=n" if case == ORDERS else f"python -m examples.common.learn {case} MODEL --seed n"


def results(case: str, summaries: Sequence[Summary]) -> str:
    """Return the text of RESULTS.md."""
    last = summaries[0]["stages"][-1]
    target_s = TARGETS_S.get(case)
    columns = [
        GRADE,
        RIGHT,
        *([HELD_OUT] if last["held_out"] else []),
        *([SLOW.format(target_s=target_s)] if target_s is not None else []),
        *([UNGATED] if "ungated" in last["scores"] else []),
        LOAD,
        GAIN,
        *([SETTINGS] if any(summary["settings"] for summary in summaries) else []),
    ]
    header = HEADER.format(
        case=case,
        command=_command(case),
        cores=summaries[0]["cores"],
        rows=last["num_rows"],
        verdict=verdict(summaries),
        columns="\n".join(f"- {column}" for column in columns),
    )
    return header + table(summaries, target_s)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.common.results")
    parser.add_argument("case", choices=[*CASES, ORDERS])
    case = parser.parse_args().case
    summaries = [json.loads(path.read_text()) for path in sorted((BUILD / case).glob("*/summary.json"))]
    if not summaries:
        raise SystemExit(f"there are no results of {case}: run {_command(case)} first")
    (EXAMPLES / case / "RESULTS.md").write_text(results(case, summaries), encoding="utf-8")


if __name__ == "__main__":
    main()
