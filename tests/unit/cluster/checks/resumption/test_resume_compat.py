"""For each setting of a job whether a resumed run may have another value. A new setting must be put into one list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from inspect import get_annotations
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from agent_rft.cluster.checks.resumption.resume_compat import ResumeComparison, may_differ
from agent_rft.spec.job import FILES, CheckpointInterval, JobSpec
from agent_rft.spec.legacy_job import load_legacy_job
from tests.support.builders import EXACT, job

URL = "https://tools.example/a"
JUDGE = {"model": "judge", "input": [{"role": "user", "content": "{{ item.x }}"}]}
CODE = {"type": "code_check", "check": "reference_returned", "reference": "x"}
GRADERS = {
    "a": EXACT,
    "b": {"type": "text_similarity", "input": "a", "reference": "b", "evaluation_metric": "bleu"},
    "c": {"type": "python", "source": "def grade(sample, item): return 1.0"},
    "d": JUDGE | {"type": "score_model"},
    "e": JUDGE | {"type": "label_model", "labels": ["x", "y"], "passing_labels": ["x"]},
    "f": {"type": "endpoint", "url": URL, "headers": {"A": "b"}},
    "g": CODE,
    "h": {"type": "length", "max_chars": 9},
}
EVERYTHING = job(
    {
        "tools": [{"name": "cat", "server_url": URL, "headers": {"A": "b"}, "own": "c"}],
        "session": {"start_url": URL},
        "grader": {"type": "multi", "graders": GRADERS, "calculate_output": "a"},
        "guards": [{"name": "short", "grader": GRADERS["h"]}],
        "held_out_grader": EXACT,
        "algorithm": {"lora": {}},
        "early_stop": {},
    },
    integrations=[{"type": "wandb", "wandb": {"project": "p"}}, {"type": "mlflow"}, {"type": "tensorboard"}],
)
SUPERVISED = job(method={"type": "supervised", "supervised": {}})
OTHER: Mapping[str, Any] = {
    "headers": {"B": SecretStr("c")},
    "signing_secret": SecretStr("whsec_a"),
    "method": SUPERVISED.method,
    "integrations": (),
}
"""Values of settings that need one of a certain form."""

MAY_DIFFER = """
    JobSpec: suffix integrations cluster
    WandbTrackerSpec: type wandb
    WandbSettings: project entity name tags
    MlflowTrackerSpec: type mlflow
    MlflowSettings: experiment name
    TensorboardTrackerSpec: type
    Reinforcement: session signing_secret early_stop
    EarlyStop: patience min_gain
    CommonHyperparameters: eval_interval
    Hyperparameters: eval_samples
    RolloutLimits: rollout_timeout_s max_rollout_retries straggler_wait_s max_failure_rate
    Endpoint: headers timeout_s attempt_timeout_s max_concurrency rate_limit_per_s max_retries
    ToolSpec: server_url idempotent hedge_after_s
    SessionSpec: start_url end_url max_open
    EndpointGrader: url hedge_after_s rate_limit_per_s
    PythonGrader: timeout_s
    ClusterSpec: engines learner_ranks engine_cores rank_cores colocated engine_gpus dtype zero_stage
    ClusterSpec: context_length max_num_seqs micro_batch_tokens offload weight_transport checkpoint_interval
    ClusterSpec: share_engines
    CheckpointInterval: minutes steps
"""
COVERED = """
    JobSpec: seed method model_options
    ModelOptions: chat_template template_arguments stop_tokens tool_parser tools_in_prompt
    Method: type reinforcement supervised
    Reinforcement: tools grader guards held_out_grader max_episode_steps response_format hyperparameters limits reward
    Reinforcement: algorithm
    CommonHyperparameters: batch_size n_epochs learning_rate_multiplier
    Hyperparameters: compute_multiplier reasoning_effort
    RolloutLimits: max_tool_calls max_completion_tokens max_tool_output_tokens on_timeout
    RewardSpec: tool_call_budget tool_call_penalty turn_penalty token_penalty time_penalty_per_s
    OptimizerSpec: learning_rate lr_schedule warm_up_steps lora
    LoraSpec: rank alpha targets
    AlgorithmSpec: advantage clip_low clip_high importance_cap max_divergence kl_coef max_staleness
    AlgorithmSpec: updates_per_batch temperature eval_temperature router_replay
    Supervised: hyperparameters algorithm
    ToolSpec: name max_output_bytes
    GraderBase: name pass_threshold
    StringCheckGrader: type input reference operation
    TextSimilarityGrader: type input reference evaluation_metric model
    PythonGrader: type source image_tag range
    JudgeGrader: model input sampling_params
    ScoreModelGrader: type range
    LabelModelGrader: type labels passing_labels
    EndpointGrader: type range
    CodeCheckGrader: type check code reference
    LengthGrader: type input max_chars
    MultiGrader: type graders calculate_output invalid_grade
    GuardSpec: name grader reward
"""
BY_CONTENTS = {f"JobSpec.{name}" for name in (*FILES, "model")}
"""See `RecordedRun`."""


def listed(table: str) -> set[str]:
    lines = (line.split(":") for line in table.strip().splitlines())
    return {f"{model.strip()}.{name}" for model, names in lines for name in names.split()}


Place = tuple[str | int, ...]


def parts(value: Any, at: Place = ()) -> Iterator[tuple[Place, BaseModel]]:
    """All models in a job, with the way to each."""
    if isinstance(value, BaseModel):
        yield at, value
        for name in type(value).model_fields:
            yield from parts(getattr(value, name), (*at, name))
    elif isinstance(value, dict | tuple):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from parts(item, (*at, key))


def declared(model: type[BaseModel], name: str) -> str:
    """The setting by the class that declares it."""
    return next(f"{base.__name__}.{name}" for base in model.__mro__ if name in get_annotations(base))


SETTINGS = {
    (*at, name): declared(type(part), name)
    for spec in (EVERYTHING, SUPERVISED)
    for at, part in parts(spec)
    for name in type(part).model_fields
}


def test_every_setting_is_in_one_of_the_lists() -> None:
    free, covered = listed(MAY_DIFFER), listed(COVERED)
    assert free & covered == set()
    assert set(SETTINGS.values()) - BY_CONTENTS == free | covered


def replaced(value: Any, at: Place, new: Any) -> Any:
    if not at:
        return new
    key, rest = at[0], at[1:]
    if isinstance(value, BaseModel):
        return value.model_copy(update={str(key): replaced(getattr(value, str(key)), rest, new)})
    if isinstance(value, dict):
        return value | {key: replaced(value[key], rest, new)}
    return tuple(replaced(item, rest, new) if i == key else item for i, item in enumerate(value))


def recorded(spec: JobSpec) -> JobSpec:
    """The job as the run folder has it."""
    record = spec.model_dump(mode="json")
    return load_legacy_job(record, "the run")[0]


@pytest.mark.parametrize("at", SETTINGS, ids=lambda at: ".".join(map(str, at)))
def test_a_setting_that_is_covered_is_refused_and_any_other_is_taken_and_shown(at: Place) -> None:
    if SETTINGS[at] in BY_CONTENTS:
        return
    spec = SUPERVISED if "supervised" in at or at == ("method", "reinforcement") else EVERYTHING
    changed = replaced(spec, at, OTHER.get(str(at[-1]), 12345))
    comparison = ResumeComparison({})
    kept = comparison.merge(changed, recorded(spec))
    if SETTINGS[at] in listed(COVERED):
        assert {problem.code for problem in comparison.problems} == {"setting_differs"} and comparison.changes == []
        assert "but the run began with" in comparison.problems[0].message
    else:
        assert comparison.problems == [] and len(comparison.changes) == 1
        assert kept == changed


def test_the_lists_are_those_of_the_program() -> None:
    settings = {(type(part), name) for _, part in parts(EVERYTHING) for name in type(part).model_fields}
    within = {"SessionSpec", "ClusterSpec", "CheckpointInterval", "EarlyStop"}
    within |= {f"{tracker}TrackerSpec" for tracker in ("Wandb", "Mlflow", "Tensorboard")}
    within |= {"WandbSettings", "MlflowSettings"}
    free = {declared(model, name) for model, name in settings if may_differ(model, name)}
    assert free == {name for name in listed(MAY_DIFFER) if name.split(".")[0] not in within}


NUMBERS = "method.reinforcement.hyperparameters"


@pytest.mark.parametrize(
    ("began", "now", "kept", "refused"),
    [
        ("auto", 8, 8, False),
        ("auto", 9, 9, True),
        ("auto", "auto", "auto", False),
        (8, "auto", 8, False),
        (8, 9, 9, True),
    ],
)
def test_auto_is_the_number_that_it_became(began: Any, now: Any, kept: Any, refused: bool) -> None:
    comparison = ResumeComparison({f"{NUMBERS}.batch_size": 8})
    before, given = (job({"hyperparameters": {"batch_size": value}}) for value in (began, now))
    assert comparison.merge(given, before).reinforcement.hyperparameters.batch_size == kept
    assert [problem.message for problem in comparison.problems] == ["is 9, but the run began with 8"] * refused


def test_a_part_of_the_cluster_that_is_not_named_keeps_its_value() -> None:
    before = job(cluster={"engines": 3, "checkpoint_interval": {"minutes": 2}})
    given = job(cluster={"checkpoint_interval": {"steps": 7}})
    comparison = ResumeComparison({})
    cluster = comparison.merge(given, before).cluster
    assert cluster.engines == 3 and cluster.checkpoint_interval == CheckpointInterval(minutes=2, steps=7)
    assert [(change.setting, change.new, change.old) for change in comparison.changes] == [
        ("cluster.checkpoint_interval.steps", "7", "not set")
    ]
