"""Response models of evaluations and their comparisons."""

from __future__ import annotations

from typing import Any, Literal

from agent_rft.serve.http.schemas.base import ResponseBody


class JobEvaluation(ResponseBody):
    """Evaluation of one version of a job's model on all rows of a file. Not part of OpenAI's API."""

    object: Literal["fine_tuning.job.evaluation"] = "fine_tuning.job.evaluation"
    fine_tuning_job_id: str
    """Id of the job."""
    id: str
    """Name of the evaluation in the job, such as test-before or validation-000005."""
    file: Literal["test_file", "validation_file", "training_file"]
    """File that was evaluated."""
    num_rows: int | None
    """Number of rows in the file; null if not recorded."""
    samples: int | None
    """Rollouts per row; null if not recorded."""
    grade: float | None
    """Mean grade; null if nothing was graded or the grade is not recorded."""
    reward: float | None
    """Mean reward; null if nothing was graded or the reward is not recorded."""
    num_rollouts: int | None
    """Number of graded rollouts; null if not recorded."""
    num_missing: int | None
    """Number of rollouts without a grade; null if not recorded."""
    grade_if_wrong: float | None
    """Mean grade if all missing rollouts had the lowest possible grade; null if no rollout is missing."""
    grade_if_right: float | None
    """Mean grade if all missing rollouts had the highest possible grade; null if no rollout is missing."""


class EvaluationList(ResponseBody):
    object: Literal["list"] = "list"
    data: list[JobEvaluation]
    """Evaluations, grouped by file (test file first); oldest first within each group."""


class ComparedSide(ResponseBody):
    """One of the compared evaluations. Its metrics include only the rows that all compared evaluations graded."""

    label: str
    """Job and evaluation, such as `ftjob-...:test-after`."""
    run: str
    """Id of the job."""
    name: str
    """Name of the evaluation."""
    rows_of_this_side_only: list[str]
    """Ids of rows that are not compared, because another evaluation does not have them."""
    rows_not_graded: list[str]
    """Ids of rows that this evaluation did not grade."""
    num_missing: int | None
    """Number of ungraded rollouts in all rows of the evaluation; null if not recorded."""
    grade_if_wrong: float | None
    """Mean grade over all rows if all missing rollouts had the lowest possible grade; null if none is missing."""
    grade_if_right: float | None
    """Mean grade over all rows if all missing rollouts had the highest possible grade; null if none is missing."""
    num_rollouts: int
    """Number of rollouts of the compared rows."""
    means: dict[str, float | None]
    """Means over rows: grade, reward, busy_s, completion_tokens, tool_calls, turns, held_out (grade of the held-out
    grader) and best_of_k (best grade of k rollouts per row)."""
    turns_p95: float
    """95th percentile of turns per rollout."""
    busy_p95_s: float
    """95th percentile of model and tool time per rollout, in seconds."""
    repeated: float
    """Number of calls per rollout that repeat an earlier call of the same rollout."""
    tools: dict[str, dict[str, float]]
    """Use of each tool: calls per rollout, the shares of failed and repeated calls, and the shares of rollouts in which
    the tool is called first and last."""


class ComparedRowSide(ResponseBody):
    """Results of one row in one of the compared evaluations: means over the row's rollouts."""

    grade: float | None
    held_out: float | None
    """Grade of the held-out grader; null if it failed or the job does not have one."""
    reward: float | None
    busy_s: float | None
    completion_tokens: float | None
    tool_calls: float | None
    turns: float | None
    trace_ids: list[str]
    """Trace ids of the rollouts."""


class ComparedRow(ResponseBody):
    """Results of one row in all compared evaluations."""

    row_id: str
    """Id of the row."""
    sides: list[ComparedRowSide]
    """Results of the row in each evaluation, in the order of the comparison's `sides`."""
    question: str
    """Beginning of the last message of the row's prompt."""


class ComparisonBody(ResponseBody):
    """Row-by-row comparison of evaluations; the first evaluation is the baseline. Not part of OpenAI's API."""

    object: Literal["fine_tuning.comparison"] = "fine_tuning.comparison"
    sides: list[ComparedSide]
    """The compared evaluations, in the order of the request."""
    changes: list[dict[str, Any]]
    """Comparisons of the other evaluations with the first one. `gained` and `lost` list the ids of the rows with the
    largest gains and losses in reward."""
    rows: list[ComparedRow]
    """The rows that all evaluations graded."""
