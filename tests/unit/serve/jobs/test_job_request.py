"""Requests are parsed into a JobSpec and echoed without secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_rft.cluster.records.redaction import REDACTED
from agent_rft.errors import InvalidJob
from agent_rft.serve.jobs.job_request import ApiJob, make_model_id, parse_api_job
from agent_rft.serve.stores.model_registry import ModelRegistry
from agent_rft.spec.job import EarlyStop, JobSpec
from agent_rft.spec.model_options import LoraSpec
from agent_rft.spec.operator.operator_config import OperatorConfig
from tests.support.jobs import KnownFiles, KnownModels, database_with_tables

TOOL = {
    "name": "search",
    "server_url": "https://tools.example/search?key=secret-2",
    "headers": {"Authorization": "Bearer secret-3"},
    "api_key": "secret-4",
}
GRADER = {"type": "endpoint", "url": "https://grader.example/grade", "headers": {"X-Key": "secret-5"}, "rate_limit": 50}
REINFORCEMENT = {"tools": [TOOL], "grader": GRADER, "hyperparameters": {"n_epochs": 2}, "response_format": None}


def parse(**changes: Any) -> ApiJob:
    method = {"type": "reinforcement", "reinforcement": REINFORCEMENT}
    body = {"model": "gpt-5", "training_file": "file-1", "method": method} | changes
    return parse_api_job(body, KnownModels(), KnownFiles(), OperatorConfig())


def reinforcement(**changes: Any) -> dict[str, Any]:
    return {"type": "reinforcement", "reinforcement": REINFORCEMENT | changes}


def refused(**changes: Any) -> tuple[str, str]:
    """The code and field of the first problem that parsing raises."""
    with pytest.raises(InvalidJob) as caught:
        parse(**changes)
    return caught.value.problems[0].code, caught.value.problems[0].field


def test_a_request_becomes_the_same_job_as_a_job_file() -> None:
    job = parse(validation_file="file-2", seed=3, suffix="x", cluster={"engines": 2}, metadata={"a": "b"})
    spec = job.spec
    assert (spec.model, spec.training_file, spec.validation_file) == ("/models/base", "file-1", "file-2")
    assert (spec.seed, spec.suffix, spec.cluster.engines) == (3, "x", 2)
    assert spec.reinforcement.hyperparameters.n_epochs == 2
    assert spec.reinforcement.tools[0].headers["Authorization"].get_secret_value() == "Bearer secret-3"
    assert JobSpec.model_validate_json(job.secret_spec) == spec


def test_a_request_may_ask_for_lora() -> None:
    asked = {"rank": 16, "targets": ["q_proj", "v_proj"]}
    job = parse(method=reinforcement(algorithm={"lora": asked}))
    assert job.spec.optimizer_settings.lora == LoraSpec(rank=16, targets=("q_proj", "v_proj"))
    assert JobSpec.model_validate_json(job.secret_spec) == job.spec
    assert job.method["reinforcement"]["algorithm"] == {"lora": asked}
    supervised = parse(method={"type": "supervised", "supervised": {"algorithm": {"lora": {}}}})
    assert supervised.spec.optimizer_settings.lora == LoraSpec()
    field = "method.reinforcement.algorithm.lora.rank"
    assert refused(method=reinforcement(algorithm={"lora": {"rank": 0}})) == ("invalid_greater_than_equal", field)


def test_early_stop_needs_a_validation_file_and_is_echoed() -> None:
    method = reinforcement(early_stop={"patience": 2, "min_gain": 0.01})
    assert refused(method=method) == ("early_stop_without_validation", "method.reinforcement.early_stop")
    job = parse(method=method, validation_file="file-2")
    assert job.spec.reinforcement.early_stop == EarlyStop(patience=2, min_gain=0.01)
    assert job.method["reinforcement"]["early_stop"] == {"patience": 2, "min_gain": 0.01}


def test_training_from_an_earlier_jobs_checkpoint_keeps_its_base_model() -> None:
    job = parse(model="ft:gpt-5:org:x:abc:ckpt-step-5")
    assert (job.spec.model, job.base) == ("/runs/abc/step-5", "gpt-5")


def test_a_job_may_name_an_alias_with_a_date(tmp_path: Path) -> None:
    database = database_with_tables(tmp_path)
    registry = ModelRegistry(database, {"o4-mini": "Qwen/Qwen3-4B"})
    method = {"type": "reinforcement", "reinforcement": REINFORCEMENT}
    body = {"model": "o4-mini-2025-04-16", "training_file": "file-1", "method": method}
    job = parse_api_job(body, registry, KnownFiles(), OperatorConfig())
    assert (job.request.model, job.spec.model, job.base) == (
        "o4-mini-2025-04-16",
        "Qwen/Qwen3-4B",
        "o4-mini-2025-04-16",
    )
    with pytest.raises(InvalidJob) as caught:
        parse_api_job(body | {"model": "o4-mimi"}, registry, KnownFiles(), OperatorConfig())
    (problem,) = caught.value.problems
    assert problem.message == "The model 'o4-mimi' does not exist" and "did you mean 'o4-mini'" in problem.fix
    database.close()


def test_null_fields_count_as_omitted() -> None:
    nulls = dict.fromkeys(("validation_file", "seed", "suffix", "metadata", "integrations", "hyperparameters"))
    hyperparameters = {"batch_size": None, "n_epochs": "auto", "reasoning_effort": None}
    grader = {"type": "string_check", "name": None, "input": "a", "reference": "b", "operation": "eq"}
    method = {"type": "reinforcement", "supervised": None, "dpo": None} | reinforcement(
        tools=None, grader=grader, hyperparameters=hyperparameters
    )
    spec = parse(method=method, **nulls).spec
    assert spec.reinforcement.tools == () and spec.reinforcement.hyperparameters.batch_size == "auto"


def test_nulls_in_a_schema_are_kept() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", None]}}}
    for form in (
        {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}},
        {"type": "json_schema", "name": "answer", "schema": schema},
    ):
        job = parse(method=reinforcement(response_format=form))
        assert job.spec.reinforcement.response_format == schema
        assert job.method["reinforcement"]["response_format"] == form


def test_the_older_form_of_supervised_jobs_is_accepted() -> None:
    for changes in (
        {"method": None, "hyperparameters": {"n_epochs": 3}},
        {"method": {"type": "supervised"}, "hyperparameters": {"n_epochs": 3}},
        {"method": {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 3}}}},
    ):
        job = parse(**changes)
        assert job.spec.supervised.hyperparameters.n_epochs == 3
        assert job.method["supervised"]["hyperparameters"]["n_epochs"] == 3


def test_the_echo_shows_the_request_with_all_hyperparameters_and_no_secrets() -> None:
    method = parse().method
    assert "secret-" not in json.dumps(method)
    shown = method["reinforcement"]
    assert shown["tools"][0]["name"] == "search" and shown["tools"][0]["api_key"] == REDACTED
    assert shown["grader"]["headers"] == {"X-Key": REDACTED} and shown["grader"]["rate_limit_per_s"] == 50
    assert shown["hyperparameters"]["n_epochs"] == 2 and shown["hyperparameters"]["batch_size"] == "auto"


def test_a_signing_secret_is_sealed_with_the_job_and_shown_nowhere() -> None:
    secrets = [f"whsec_{letter * 32}" for letter in "ab"]
    for given in (secrets[0], secrets):
        job = parse(method=reinforcement(signing_secret=given))
        assert json.loads(job.secret_spec)["method"]["reinforcement"]["signing_secret"] == given
        assert "whsec_" not in json.dumps(job.method) + repr(job.spec)
    with pytest.raises(InvalidJob) as refused:
        parse(method=reinforcement(signing_secret="whsec_short"))
    assert "invalid_signing_secret" in str(refused.value) and "whsec_short" not in str(refused.value)


def test_a_missing_seed_is_drawn_at_random_and_does_not_change_the_digest() -> None:
    one, two = parse(), parse()
    assert one.spec.seed != two.spec.seed and one.digest == two.digest != parse(suffix="x").digest


def test_the_servers_environment_variables_are_not_substituted() -> None:
    job = parse(method=reinforcement(tools=[TOOL | {"headers": {"A": "${HOME}"}}]))
    assert job.spec.reinforcement.tools[0].headers["A"].get_secret_value() == "${HOME}"


def test_the_parts_of_a_model_id_contain_no_separators() -> None:
    assert make_model_id("gpt-5", "org", "my: suffix/1", "ftjob-abc") == "ft:gpt-5:org:my-suffix-1:abc"
    assert make_model_id("Qwen/Qwen3-4B", "org", None, "ftjob-abc", 10) == "ft:Qwen/Qwen3-4B:org::abc:ckpt-step-10"


def test_a_problem_is_reported_with_its_path_in_the_request() -> None:
    assert refused(model="gpt-6") == ("model_not_found", "model")
    assert refused(training_file="file-9") == ("file_not_found", "training_file")
    assert refused(validation_file="file-3") == ("invalid_purpose", "validation_file")
    assert refused(method=reinforcement(grader={"type": "magic"}))[1] == "method.reinforcement.grader"
    assert refused(method=reinforcement(tools=[TOOL, {"name": "x"}]))[1] == "method.reinforcement.tools[1].server_url"
    assert refused(method=reinforcement(tools=[TOOL | {"server_url": "http://127.0.0.1/x"}])) == (
        "forbidden_address",
        "method.reinforcement.tools[0].server_url",
    )
    assert refused(model="/etc") == ("model_not_found", "model")
