"""Jobs as OpenAI's API records them, built from the types of the `openai` package."""

from __future__ import annotations

import json
from typing import Any

from openai.types import fine_tuning, graders
from openai.types.fine_tuning import fine_tuning_job
from openai.types.fine_tuning.jobs import FineTuningJobCheckpoint, fine_tuning_job_checkpoint

from tests.support.openai_api import FakeOpenAI

JOB_ID = "ftjob-abc123"
TEXT, ANSWER = "{{ sample.output_text }}", "{{ item.reference_answer }}"
ASK: Any = [{"role": "user", "content": f"Is {TEXT} the same as {ANSWER}?"}]
SEARCH = {
    "type": "function",
    "function": {"name": "search", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}},
}
ROW = {"messages": [{"role": "user", "content": "What?"}], "tools": [SEARCH], "reference_answer": "42"}
TALK = {"messages": [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "42", "weight": 1}]}
PYTHON = """\
import json


def grade(sample, item):
    # a text with ${HOME}, a tab\t and a colon: it stays as it is
    return float(sample["output_text"] == item["reference_answer"])
"""
EXACT = graders.StringCheckGrader(name="exact", type="string_check", input=TEXT, reference=ANSWER, operation="eq")
ENDPOINT = {"type": "endpoint", "url": "https://tools.example.com/grade", "headers": {"Authorization": None}}
GRADERS: dict[str, Any] = {
    "string_check": EXACT,
    "text_similarity": graders.TextSimilarityGrader(
        name="near", type="text_similarity", input=TEXT, reference=ANSWER, evaluation_metric="fuzzy_match"
    ),
    "cosine": graders.TextSimilarityGrader(
        name="near", type="text_similarity", input=TEXT, reference=ANSWER, evaluation_metric="cosine"
    ),
    "python": graders.PythonGrader(name="code", type="python", source=PYTHON, image_tag="2025-05-08"),
    "score_model": graders.ScoreModelGrader(
        name="judge",
        type="score_model",
        model="gpt-4o-2024-08-06",
        input=ASK,
        range=[0, 10],
        sampling_params={"temperature": 0, "seed": 3, "max_completions_tokens": 500},  # type: ignore[arg-type]
    ),
    "label_model": graders.LabelModelGrader(
        name="label", type="label_model", model="o3", input=ASK, labels=["right", "wrong"], passing_labels=["right"]
    ),
    "multi": graders.MultiGrader.construct(
        name="both",
        type="multi",
        graders={"exact": EXACT.model_dump(), "server": ENDPOINT},
        calculate_output="0.2 * exact + 0.8 * server",
    ),
    "multi of one": graders.MultiGrader(name="one", type="multi", graders=EXACT, calculate_output="exact / 2"),
    "endpoint": ENDPOINT,
}
"""A grader of each kind."""


def reinforcement(grader: Any = EXACT, **more: Any) -> dict[str, Any]:
    """A method with this grader and one tool; `more` is added to it."""
    tools = [{"name": "search", "server_url": "https://tools.example.com/search", "headers": {"Authorization": None}}]
    hyperparameters = fine_tuning.ReinforcementHyperparameters(
        batch_size=8,
        n_epochs=2,
        compute_multiplier=1,
        learning_rate_multiplier=2,
        eval_interval=5,
        eval_samples=2,
        reasoning_effort="low",
    )
    method = fine_tuning.ReinforcementMethod.construct(
        grader=grader, hyperparameters=hyperparameters, tools=tools, max_episode_steps=10, response_format=None
    )
    dumped = method.model_dump(mode="json", warnings=False)
    return {"type": "reinforcement", "reinforcement": dumped | more}


def supervised() -> dict[str, Any]:
    hyperparameters = fine_tuning.SupervisedHyperparameters(batch_size=4, n_epochs=3, learning_rate_multiplier=1.8)
    method = fine_tuning.SupervisedMethod(hyperparameters=hyperparameters)
    return fine_tuning_job.Method(type="supervised", supervised=method).model_dump(mode="json")


def preferences() -> dict[str, Any]:
    hyperparameters = fine_tuning.DpoHyperparameters(beta=0.1)
    method = fine_tuning.DpoMethod(hyperparameters=hyperparameters)
    return fine_tuning_job.Method(type="dpo", dpo=method).model_dump(mode="json")


def recorded(method: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    """A job as the API answers with it."""
    job = fine_tuning.FineTuningJob.construct(
        id=JOB_ID,
        object="fine_tuning.job",
        created_at=1_760_000_000,
        finished_at=1_760_009_000,
        model="o4-mini-2025-04-16",
        fine_tuned_model="ft:o4-mini-2025-04-16:acme:shop:AbC123",
        organization_id="org-acme",
        status="succeeded",
        error=None,
        hyperparameters=fine_tuning_job.Hyperparameters(),
        result_files=["file-results"],
        training_file="file-train",
        validation_file="file-validation",
        seed=7,
        trained_tokens=123_456,
        integrations=[],
        metadata={"team": "search"},
    )
    return job.model_dump(mode="json") | {"method": method} | more


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def record(api: FakeOpenAI, job: dict[str, Any], row: Any = None) -> None:
    """Put a job into the stand-in, with files of this row, events and checkpoints."""
    if row is None:
        row = TALK if (job["method"] or {}).get("type", "supervised") == "supervised" else ROW
    api.jobs[job["id"]] = job
    api.files |= {"file-train": lines(*[row] * 12), "file-validation": lines(row, row)}
    api.events = [event(number) for number in range(250, 0, -1)]
    api.checkpoints = [checkpoint(step) for step in range(120, 0, -1)]


def event(number: int) -> dict[str, Any]:
    return fine_tuning.FineTuningJobEvent(
        id=f"ftevent-{number}",
        created_at=1_760_000_000 + number,
        level="info",
        message=f"Step {number}/250",
        object="fine_tuning.job.event",
        type="metrics",
        data={"step": number, "train_mean_reward": 0.5},
    ).model_dump(mode="json")


def checkpoint(step: int) -> dict[str, Any]:
    metrics = fine_tuning_job_checkpoint.Metrics.construct(step=step, full_valid_mean_reward=0.6)
    return FineTuningJobCheckpoint(
        id=f"ftckpt-{step}",
        created_at=1_760_000_000 + step,
        fine_tuned_model_checkpoint=f"ft:o4-mini-2025-04-16:acme:shop:AbC123:ckpt-step-{step}",
        fine_tuning_job_id=JOB_ID,
        metrics=metrics,
        object="fine_tuning.job.checkpoint",
        step_number=step,
    ).model_dump(mode="json")
