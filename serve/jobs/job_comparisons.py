"""Lists and comparisons of the evaluations of a server's jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rft.cluster.records.redaction import to_plain_json
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.views.comparison.comparison_stats import compare_evaluations, comparison_json, missing_json
from agent_rft.cluster.views.comparison.evaluation_selection import FILES, common_file, evaluation_names
from agent_rft.cluster.views.comparison.loaded_evaluation import LoadedEvaluation, load_evaluation
from agent_rft.errors import UserError
from agent_rft.types import Evaluation

SHOWN_ROWS = 10
"""Maximum number of rows in a list of the largest gains or losses."""


class NoSuchEvaluation(UserError):
    """The job has no evaluation with this name, or no evaluation at all."""


@dataclass(frozen=True, slots=True)
class ComparisonSide:
    """One side of a comparison: a job and the name of an evaluation.

    If `name` is None, the side is the job's newest evaluation of the compared data file. `common_file` selects this
    file.
    """

    job_id: str
    name: str | None

    @classmethod
    def parse(cls, text: str) -> ComparisonSide:
        """Parse `ftjob-...:test-after`, or a job id alone."""
        job_id, _, name = text.partition(":")
        return cls(job_id, name or None)


class JobComparisons:
    """Evaluations and comparisons, read from the run folders in `runs`.

    Methods block while they read files. A comparison reads complete files, so callers limit concurrent comparisons.
    """

    def __init__(self, runs: Path) -> None:
        self._runs = runs

    def list_evaluations(self, job_id: str) -> list[dict[str, Any]]:
        """Return the name, file and metrics of a job's evaluations, ordered by file (test file first) and age."""
        run = RunFolder(self._runs / job_id)
        known = run.evaluations() | {f"validation-{step:06d}": found for step, found in run.validations()}
        return [
            {"id": name, "file": file, **_select_metrics(known.get(name))}
            for file in FILES
            for name in evaluation_names(run, file)
        ]

    def compare(self, requested: Sequence[ComparisonSide]) -> dict[str, Any]:
        """Return the comparison in the format of `comparison_json`, with the question of each row added.

        Raises:
            NoSuchEvaluation: A job does not have the requested evaluation.
            UserError: The sides graded different rows.
        """
        comparison = compare_evaluations(self._sides(requested), SHOWN_ROWS)
        found = comparison_json(comparison)
        for row, compared in zip(found["rows"], comparison.rows, strict=True):
            row["question"] = compared.question
        public: dict[str, Any] = to_plain_json(found)
        return public

    def _sides(self, requested: Sequence[ComparisonSide]) -> list[LoadedEvaluation]:
        runs = [RunFolder(self._runs / side.job_id) for side in requested]
        file = common_file([side.name for side in requested], runs)
        return [_load_side(side, run, file) for side, run in zip(requested, runs, strict=True)]


def _load_side(requested: ComparisonSide, run: RunFolder, file: str) -> LoadedEvaluation:
    of_file = evaluation_names(run, file)
    names = [name for one in FILES for name in evaluation_names(run, one)]
    name = requested.name or (of_file[-1] if of_file else None)
    side = None
    if name is not None and name in names:
        side = load_evaluation(f"{requested.job_id}:{name}", requested.job_id, run, name)
    if side is None or not side.rows:
        what = f"no complete evaluation {name}" if name else f"no evaluation of its {file}"
        wait = "wait until the job's validation file or test file has been graded"
        has = f"use one of {', '.join(names)}" if names else wait
        raise NoSuchEvaluation(f"{requested.job_id} has {what}; {has}")
    return side


def _select_metrics(evaluation: Evaluation | None) -> dict[str, Any]:
    figures = ("num_rows", "samples", "num_rollouts", "grade", "reward")
    values = {name: None if evaluation is None else getattr(evaluation, name) for name in figures}
    return {name: None if value != value else value for name, value in values.items()} | missing_json(evaluation)
