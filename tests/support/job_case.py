"""A job on disk that is valid until a test changes it, and its check. Tools and graders are servers on localhost."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent_rft.cluster.checks.check_job import CheckedJob, check_job
from agent_rft.cluster.checks.disk_space import FreeSpace
from agent_rft.cluster.checks.resumption.recorded_run import RecordedRun
from agent_rft.cluster.planning.model_folder import ModelFolder
from agent_rft.cluster.planning.plan_nodes import Node
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.errors import InvalidJob, Problem
from agent_rft.spec.job_file import load_job
from agent_rft.spec.operator.operator_config import OperatorConfig
from tests.support.fakes_http import LOCAL, FakeEndpoint
from tests.support.paths import BASE

FEW_ROWS = "the model will memorize the answers"
SECRET = "sk-very-secret-4711"
NODE = Node("a", cores=2.0)
HEAD, GPU_NODE = Node("head", cores=0.0), Node("gpu", cores=32.0, gpus=4.0)
PLENTY = FreeSpace(disk_bytes=1 << 40, shm_bytes=1 << 34)
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def tool(name: str = "cat", parameters: Any = PARAMETERS) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def row(text: str = "what was debt of vorzen in 2015?", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "tools": [tool()], "reference_answer": "1", **more}


@dataclass
class Case:
    """A job on disk that is valid until a test changes it."""

    folder: Path
    tool: FakeEndpoint
    grader: FakeEndpoint
    rows: list[Any] = field(default_factory=lambda: [row(), row("what was costs of lumtra in 2018?")])
    job: dict[str, Any] = field(default_factory=dict)
    reinforcement: dict[str, Any] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=lambda: [NODE])
    free: FreeSpace = PLENTY
    operator: OperatorConfig = LOCAL

    def write(self, name: str = "train.jsonl", rows: list[Any] | None = None) -> str:
        lines = [r if isinstance(r, str) else json.dumps(r) for r in (self.rows if rows is None else rows)]
        (self.folder / name).write_text("".join(f"{line}\n" for line in lines))
        return name

    def raw(self) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {SECRET}"}
        reinforcement = {
            "tools": [{"name": "cat", "server_url": self.tool.url, "headers": headers, "max_retries": 0}],
            "grader": {"type": "endpoint", "url": self.grader.url, "headers": headers},
            **self.reinforcement,
        }
        method = {"type": "reinforcement", "reinforcement": reinforcement}
        return {"model": str(BASE), "training_file": self.write(), "method": method, **self.job}

    async def prepare(
        self, learner: bool = True, accepted: bool = False, began: RecordedRun | None = None
    ) -> CheckedJob:
        path = self.folder / "job.json"
        path.write_text(json.dumps(self.raw()))
        job = load_job(path, {})
        job, accepted = (job, accepted) if began is None else (began.apply_to(job), True)
        return await check_job(
            job,
            ModelFolder.find(job.model),
            self.nodes,
            self.folder / "runs",
            self.operator,
            free_space=self.free,
            trains=learner,
            was_accepted=accepted,
            recorded_run=began,
        )

    def began(self, prepared: CheckedJob) -> RecordedRun:
        """A run that has begun with this job."""
        run = RunFolder(self.folder / "run")
        run.write_job(prepared.job, prepared.plan, prepared.values_to_record())
        return RecordedRun.load(run)

    async def warnings(self) -> tuple[str, ...]:
        """Without that of a test's few rows."""
        return tuple(warning for warning in (await self.prepare()).warnings if FEW_ROWS not in warning)

    async def problems(self) -> list[Problem]:
        with pytest.raises(InvalidJob) as raised:
            await self.prepare()
        assert SECRET not in str(raised.value)
        assert all(problem.fix and problem.message for problem in raised.value.problems)
        return raised.value.problems

    async def only_problem(self) -> Problem:
        (problem,) = await self.problems()
        return problem


def copy_of_base(folder: Path) -> Path:
    model = folder / "model"
    shutil.copytree(BASE, model)
    return model
