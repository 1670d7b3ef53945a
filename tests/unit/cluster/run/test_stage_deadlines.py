"""Deadlines of a job's stages, from the timeouts of its endpoints."""

from __future__ import annotations

from agent_rft.actors.grading.grader_factory import LOCAL_DEADLINE_S
from agent_rft.cluster.run.run_actors import stage_deadlines_s
from agent_rft.spec.operator.operator_config import ModelEndpoint, OperatorConfig
from tests.support.builders import EXACT, job

URL = "https://tools.example.com"


def test_the_slowest_endpoint_of_a_stage_decides() -> None:
    judge = {
        "type": "score_model",
        "model": "judge",
        "input": [{"role": "user", "content": "{{ sample.output_text }}"}],
    }
    spec = job(
        {
            "tools": [
                {"name": "build", "server_url": URL, "timeout_s": 18_000},
                {"name": "search", "server_url": URL},
            ],
            "session": {"start_url": URL, "timeout_s": 300},
            "guards": [{"name": "safe", "grader": {"type": "endpoint", "url": URL, "timeout_s": 7_200}}],
            "held_out_grader": judge,
        }
    )
    operator = OperatorConfig(models={"judge": ModelEndpoint(base_url=URL, timeout_s=10_000)})
    found = stage_deadlines_s(spec.reinforcement, operator)
    assert found == {"session start": 305, "tool calls": 18_005, "grading": 10_005}


def test_a_job_without_tools_and_sessions_has_only_the_deadline_of_its_grader() -> None:
    found = stage_deadlines_s(job({"grader": EXACT}).reinforcement, OperatorConfig())
    assert found == {"session start": 0, "tool calls": 0, "grading": LOCAL_DEADLINE_S}
