"""A preflight reads each file of its model once, however many checks need it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer

from agent_rft.cluster.checks.check_job import check_job
from agent_rft.cluster.checks.disk_space import FreeSpace
from agent_rft.cluster.checks.offline_checks import check_offline
from agent_rft.cluster.planning.model_folder import ModelFolder
from agent_rft.cluster.planning.plan_nodes import Node
from agent_rft.spec.job import JobSpec
from tests.support.fakes_http import LOCAL
from tests.support.opened_files import opened_files
from tests.support.paths import BASE
from tests.unit.cluster.checks.model_checks.test_lora_check import adapter_in

MESSAGES = [{"role": "user", "content": "what was debt of vorzen?"}, {"role": "assistant", "content": "1234"}]


def read_once(model: Path, base: Path) -> None:
    """Read what a preflight needs of an adapter and its base."""
    for file in (model / "adapter_config.json", model / "agent_rft.json", base / "config.json"):
        file.read_bytes()
    AutoConfig.from_pretrained(base)
    AutoTokenizer.from_pretrained(model)


async def test_all_checks_together_read_each_file_of_the_model_once(tmp_path: Path) -> None:
    models, rows = tmp_path / "models", tmp_path / "rows.jsonl"
    base = Path(shutil.copytree(BASE, models / "base"))
    (models / "adapter").mkdir()
    model = adapter_in(models / "adapter", base)
    rows.write_text(json.dumps({"messages": MESSAGES}) + "\n")
    method = {"type": "supervised", "supervised": {"algorithm": {"lora": {"rank": 4}}}}
    job = JobSpec.model_validate({"model": str(model), "training_file": str(rows), "method": method})
    with opened_files(models) as expected:
        read_once(model, base)
    with opened_files(models) as opened:
        folder = ModelFolder.find(job.model)
        assert check_offline(job, folder, LOCAL) == []
        free = FreeSpace(disk_bytes=1 << 40, shm_bytes=1 << 34)
        await check_job(job, folder, [Node("a", cores=2.0)], tmp_path / "runs", LOCAL, free_space=free)
    assert expected["adapter/chat_template.jinja"] == 1
    assert opened == expected
