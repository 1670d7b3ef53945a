"""An example's small job with a tiny model, for one real step."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.paths import ROOT

CONTEXT: Final = 2_048
"""Tokens: those of the tiny model are bytes."""


def write_step_job(example: Path, folder: Path, **files: str) -> Path:
    """The small job on the rows of `data/step.jsonl`; `files` are its other files.

    A random model has no success: another grade tells its rollouts apart, and the example's is the held-out one.
    """
    (folder / "chat_template.jinja").write_text((ROOT / "examples/common/chat_template.jinja").read_text())
    (folder / "step.jsonl").write_text((example / "data" / "step.jsonl").read_text())
    job: dict[str, Any] = yaml.safe_load((example / "job_small.yaml").read_text())
    job |= {"training_file": "step.jsonl", **files}
    job["model_options"]["chat_template"] = "chat_template.jinja"
    job["cluster"] |= {"context_length": CONTEXT, "engine_cores": 1, "rank_cores": 1}
    method = job["method"]["reinforcement"]
    method["held_out_grader"] = method["grader"]
    says_e = {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "e", "operation": "like"}
    method["grader"] = says_e
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return path
