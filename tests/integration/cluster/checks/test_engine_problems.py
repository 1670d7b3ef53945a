"""Checks that ask the real vLLM, whose import takes longer than all other checks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_rft.cluster.checks.check_job import check_job
from agent_rft.cluster.planning.model_folder import ModelFolder
from agent_rft.errors import InvalidJob
from agent_rft.spec.job_file import load_job
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from tests.support.builders import EXACT
from tests.support.job_case import NODE, PLENTY, row
from tests.support.paths import BASE


def write_job(folder: Path, tool_parser: str) -> Path:
    """A job without tools or endpoints."""
    (folder / "train.jsonl").write_text(json.dumps(row() | {"tools": []}) + "\n")
    method = {"type": "reinforcement", "reinforcement": {"grader": EXACT}}
    job = {"model": str(BASE), "training_file": "train.jsonl", "method": method}
    (folder / "job.json").write_text(json.dumps(job | {"model_options": {"tool_parser": tool_parser}}))
    return folder / "job.json"


async def test_the_tool_parser_must_be_one_that_vllm_has(tmp_path: Path) -> None:
    async def check(tool_parser: str) -> None:
        job = load_job(write_job(tmp_path, tool_parser), {})
        await check_job(job, ModelFolder.find(job.model), [NODE], tmp_path / "runs", DEFAULT_CONFIG, free_space=PLENTY)

    await check("granite4")
    with pytest.raises(InvalidJob) as raised:
        await check("none")
    (problem,) = raised.value.problems
    assert (problem.code, problem.field) == ("unknown_parser", "model_options.tool_parser")
    assert "'none'" in problem.message
    assert "use auto or one of " in problem.fix and "granite4" in problem.fix
