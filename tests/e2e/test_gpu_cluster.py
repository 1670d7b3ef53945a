"""`make gpu` with tiny sizes: all parts run here as they will on a GPU, and a second run continues."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import ray

from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.rollout.episode import EpisodeSpec
from agent_rft.actors.rollout.rollout_worker import WorkerConfig
from agent_rft.actors.weights.shared_memory import SHM, SharedFile
from agent_rft.chat.dialect import DEFAULT_DIALECT
from agent_rft.cluster.ray_cluster.ray_session import ray_session
from agent_rft.spec.job import RewardSpec, RolloutLimits
from benchmarks.gpu_cluster.parts import parts_for
from benchmarks.gpu_cluster.results import Results
from benchmarks.local import gpus_here
from benchmarks.weight_sync import Source, VllmsClient
from benchmarks.worker import MeasuredWorker, as_actor
from tests.e2e.command import marked, processes_left
from tests.support.paths import BASE, ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3000)]


def test_all_parts_run_and_a_second_run_skips_what_is_finished(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_cluster", "--tiny", "--out", str(tmp_path)]
    environment = marked(os.environ)
    subprocess.run(command, cwd=ROOT, check=True, env=environment)
    results, parts = Results(tmp_path / "results.jsonl"), parts_for(tmp_path, None, tiny=True)
    assert [line for line in results.lines if "failed" in line] == []
    missing = {part.name for part in parts if results.missing(part)}
    assert missing == {part.name for part in parts if "not possible" in results.why_not(part)}
    if gpus_here() == 0:
        assert missing == {"weight_sync_vllm_nccl", "weight_sync_vllm_ipc"}
    assert (tmp_path / "job" / "metrics.jsonl").exists()
    page = (tmp_path / "RESULTS-gpu.md").read_text()
    assert all(row.name.replace("|", "\\|") in page for part in parts for row in part.rows)
    assert processes_left() == []
    again = subprocess.run(command, cwd=ROOT, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout
    assert again.count("finished before") == len(parts) - len(missing)


def test_an_update_that_vllm_s_sender_drives_changes_the_engine(tmp_path: Path) -> None:
    """The steps of vLLM's own transports, with buckets from shared memory instead of a GPU's."""
    tokens = list(range(3, 40))
    with ray_session(None):
        engine = EngineConfig(str(BASE), "float32", 256, max_num_seqs=4, seed=0)
        spec = EpisodeSpec("0", RolloutLimits(), RewardSpec(), 8, 256)
        worker = as_actor(MeasuredWorker, num_cpus=1, max_concurrency=1000).remote(
            WorkerConfig(engine, spec, DEFAULT_DIALECT, dispatchers=[], graders=None)
        )
        assert ray.get(worker.start.remote()) is None
        source = as_actor(Source, num_cpus=1).remote(str(BASE), "float32")
        before = ray.get(worker.score_prompt.remote(tokens)).logprobs
        [layout] = ray.get(source.plan.remote(1 << 30))
        data = np.array(ray.get(ray.get(source.put.remote(0))[0]))
        client = VllmsClient(worker)
        client.init_weight_transfer_engine({})
        for factor in (2.0, 0.5):
            data = (data.view(np.float32) * np.float32(factor)).view(np.uint8)
            file = SharedFile(SHM, data)
            client.start_weight_update()
            client.update_weights({"path": str(file.path), "tensors": json.loads(json.dumps(layout))})
            client.finish_weight_update()
            file.remove()
            after = ray.get(worker.score_prompt.remote(tokens)).logprobs
            assert (np.abs(after - before).mean() < 1e-4) == (factor == 0.5)
            assert ray.get(worker.last_pause_s.remote()) > 0
        ray.get(worker.shutdown.remote())
