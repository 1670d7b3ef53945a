"""The parts of the engine that need no vLLM."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agent_rft.actors.engine.engine_config import EngineConfig, choose_executor
from agent_rft.actors.engine.vllm_engine import Engine
from agent_rft.actors.engine.vllm_errors import find_last_error
from agent_rft.actors.engine.vllm_internals import CPU_EXECUTOR
from agent_rft.errors import EngineFailed

CONFIG = EngineConfig("model", "float32", context_length=64, max_num_seqs=4, seed=0)


def test_weights_that_do_not_fit_into_shared_memory_are_a_clear_error(tmp_path: Path) -> None:
    engine = Engine(CONFIG, shm=tmp_path / "missing")
    with pytest.raises(EngineFailed, match=r"cannot write 8 bytes of weights to .*missing"):
        engine.stage_bucket(np.zeros(8, np.uint8), [("x", "float32", (2,))])


def test_shutdown_removes_staged_buckets(tmp_path: Path) -> None:
    engine = Engine(CONFIG, shm=tmp_path)
    for _ in range(3):
        engine.stage_bucket(np.zeros(8, np.uint8), [("x", "float32", (2,))])
    assert len(list(tmp_path.iterdir())) == 3
    engine.shutdown()
    assert list(tmp_path.iterdir()) == []


def test_the_cause_of_an_engine_s_death_is_read_from_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "worker.err"
    assert find_last_error(log) is None
    log.write_text("loading\n")
    assert find_last_error(log) is None
    log.write_text(
        "KeyError: early\n" + "x" * 100_000 + "\nTraceback (most recent call last):\n"
        '  File "core.py", line 1, in load\n    raise torch.OutOfMemoryError\n'
        "torch.OutOfMemoryError: CUDA out of memory.\nLoading: 0%\n"
    )
    assert find_last_error(log) == "OutOfMemoryError: CUDA out of memory."
    log.write_text(
        "(EngineCore pid=24) ERROR 11-23 00:40:18 [core.py:1512] RuntimeError: Unsupported head_dim=16\n"
        "(MainProcess pid=23) ERROR 11-23 00:40:18 [async_llm.py:906] vllm.v1.exceptions.EngineDeadError: See above\n"
    )
    assert find_last_error(log) == "RuntimeError: Unsupported head_dim=16"


def test_an_engine_runs_its_own_workers_even_in_a_placement_group() -> None:
    assert [choose_executor(gpus) for gpus in (0, 1, 2, 8)] == [CPU_EXECUTOR, "uni", "mp", "mp"]
