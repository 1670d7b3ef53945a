"""The examples' jobs for GPUs: each is valid, and marked as a draft in its file and on its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from agent_rft.cluster.planning.memory_estimates import GIB
from agent_rft.cluster.planning.model_folder import resolve_context
from agent_rft.cluster.planning.model_shape import ModelShape
from agent_rft.cluster.planning.plan_nodes import Node
from agent_rft.spec.job import JobSpec
from agent_rft.spec.job_file import load_job
from tests.support.paths import ROOT
from tests.support.plans import plan_placement

EXAMPLES = ROOT / "examples"
DRAFT = "Draft: this job has not run on a GPU yet."
HUB_NAME = re.compile(r"[\w-]+/[\w.-]+")
VARIABLE = re.compile(r"\$\{(\w+)\}")
QWEN3_8B = ModelShape(8_190_735_360, 36, 4096, 32, 8, 128, 12_288, 151_936)
QWEN3_CONTEXT = 40_960
EIGHT_GPUS = Node("gpu", cores=64, gpus=8, memory_bytes=512 * GIB, gpu_memory_bytes=80 * GIB)


def gpu_jobs() -> list[Path]:
    """Jobs that train a model from the Hugging Face Hub; the models of the others are folders or variables."""
    found = {path: yaml.safe_load(path.read_text()) for path in sorted(EXAMPLES.glob("*/*.yaml"))}
    return [path for path, job in found.items() if "method" in job and HUB_NAME.fullmatch(job["model"])]


def loaded(path: Path) -> JobSpec:
    return load_job(path, dict.fromkeys(VARIABLE.findall(path.read_text()), "http://127.0.0.1:8000"))


def test_every_example_with_a_gpu_job_is_found() -> None:
    found = {f"{path.parent.name}/{path.name}" for path in gpu_jobs()}
    others = {"code_research", "edit_planning", "filings", "finqa", "icd10", "kernels", "slides", "swe"}
    assert found == {"ledger/job_gpu.yaml", *(f"{name}/job.yaml" for name in others)}


@pytest.mark.parametrize("path", gpu_jobs(), ids=lambda path: path.parent.name)
def test_a_gpu_job_is_valid_and_marked_as_a_draft(path: Path) -> None:
    assert f"# {DRAFT}" in path.read_text().splitlines()
    assert DRAFT in (path.parent / "README.md").read_text()
    assert loaded(path).method.type == "reinforcement"


def test_the_swe_job_packs_two_of_the_longest_rollouts_on_eight_gpus_of_80_gib() -> None:
    """The figures are those of its README."""
    job = loaded(EXAMPLES / "swe" / "job.yaml")
    assert job.model == "Qwen/Qwen3-8B"
    context = resolve_context(job, QWEN3_CONTEXT)
    assert job.cluster.micro_batch_tokens == 2 * context == 2 * 16_384
    plan = plan_placement(job, [EIGHT_GPUS], QWEN3_8B, context)
    assert plan.fits, plan.problems or plan.resource_problems
    rank = next(place.memory for place in plan.assignments if place.role == "learner rank")
    assert rank is not None
    assert rank.gpu_bytes / GIB == pytest.approx(70, abs=0.5)
    assert plan.host_bytes[0] / GIB == pytest.approx(211, abs=0.5)
