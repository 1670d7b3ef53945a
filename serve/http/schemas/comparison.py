"""Evaluations of jobs, and comparisons of them."""

from __future__ import annotations

from typing import Any, Literal

from agent_rft.serve.http.schemas.base import ResponseBody


class JobEvaluation(ResponseBody):
    """Rollouts of a whole file with one version of the model: an extension of OpenAI's API."""

    object: Literal["fine_tuning.job.evaluation"] = "fine_tuning.job.evaluation"
    fine_tuning_job_id: str
    """Id of its job."""
    id: str
    """Its name in the job, such as test-before or validation-000005."""
    file: Literal["test_file", "validation_file", "training_file"]
    """Which file was graded."""
    num_rows: int | None
    """Rows of the file; null: not recorded."""
    samples: int | None
    """Rollouts of each row; null: not recorded."""
    grade: float | None
    """Mean grade; null: nothing was graded, or it is not recorded."""
    reward: float | None
    """Mean reward; null likewise."""


class EvaluationList(ResponseBody):
    object: Literal["list"] = "list"
    data: list[JobEvaluation]
    """Those of the test file first, the oldest first."""


class ComparedSide(ResponseBody):
    """One evaluation: means over the rows that all sides have graded."""

    label: str
    """Job and evaluation, `ftjob-...:test-after`."""
    run: str
    """Id of the job."""
    name: str
    """The evaluation."""
    rows_of_this_side_only: list[str]
    """Ids of rows that another side does not have."""
    rows_not_graded: list[str]
    """Ids of rows that this side has not graded."""
    num_rollouts: int
    """Rollouts of the compared rows."""
    means: dict[str, float | None]
    """Means over rows: grade, reward, busy_s, completion_tokens, tool_calls, turns; held_out, the grade of the job's
    held-out grader, if it has one; best_of_k of k samples a row."""
    turns_p95: float
    busy_p95_s: float
    repeated: float
    """Calls per rollout that it had made before."""
    tools: dict[str, dict[str, float]]
    """Calls per rollout by tool, and shares of failed, repeated, first and last ones."""


class ComparedRowSide(ResponseBody):
    """A row at one side: the means of its rollouts."""

    grade: float | None
    held_out: float | None
    """Grade of the held-out grader; null: there is none, or it failed."""
    reward: float | None
    busy_s: float | None
    completion_tokens: float | None
    tool_calls: float | None
    turns: float | None
    trace_ids: list[str]
    """Its rollouts."""


class ComparedRow(ResponseBody):
    row_id: str
    """Id of the row."""
    sides: list[ComparedRowSide]
    """The row at each side, in their order."""
    question: str
    """The beginning of the last message of its prompt."""


class ComparisonBody(ResponseBody):
    """Evaluations row by row with the first: an extension of OpenAI's API."""

    object: Literal["fine_tuning.comparison"] = "fine_tuning.comparison"
    sides: list[ComparedSide]
    """In the order of the request."""
    changes: list[dict[str, Any]]
    """Each other side against the first: `measures` with interval and verdict, `quadrants`, and ids of the rows that
    `gained` and `lost` most."""
    rows: list[ComparedRow]
    """The rows that all sides have graded."""
