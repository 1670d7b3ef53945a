"""The check of `router_replay`: it is for models with experts."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_rft.cluster.checks.model_checks.model_check import read_model
from agent_rft.cluster.planning.model_folder import ModelFolder
from agent_rft.spec.job import JobSpec
from tests.support.shapes import tiny_shape
from tests.support.tiny_model import write_tiny_model


@pytest.mark.parametrize(("shape", "codes"), [("qwen3", ["not_a_mixture"]), ("qwen3_moe", [])])
def test_a_model_without_experts_is_refused(shape: str, codes: list[str], tmp_path: Path) -> None:
    tiny_shape(shape).save_pretrained(write_tiny_model(tmp_path))
    settings = {"grader": {"type": "length", "max_chars": 100}, "algorithm": {"router_replay": True}}
    method = {"type": "reinforcement", "reinforcement": settings}
    job = JobSpec.model_validate({"model": str(tmp_path), "training_file": "", "method": method})
    folder = ModelFolder.find(job.model)
    problems = read_model(job, folder)[1]
    assert [problem.code for problem in problems] == codes
    assert all(problem.field == "method.reinforcement.algorithm.router_replay" for problem in problems)
    assert read_model(job, folder, trains=False)[1] == []
