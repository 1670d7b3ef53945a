"""Parts of the engine that need no running vLLM."""

from __future__ import annotations

from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
from vllm.config import SchedulerConfig
from vllm.logprobs import append_logprobs_for_next_position, create_prompt_logprobs

from agent_rft.actors.engine.engine_config import EngineConfig, build_engine_args, choose_executor
from agent_rft.actors.engine.vllm_engine import Engine, _read_logprobs
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


@pytest.mark.parametrize(
    ("context", "sequences", "gpus", "expected"),
    [
        (1024, 64, 1, 8192),
        (16_384, 64, 1, 8192),
        (16_384, 10_000, 1, 10_000),  # vLLM refuses a budget below the number of sequences
        (1024, 64, 0, 8192),
        (16_384, 64, 0, 16_384),  # without chunks, vLLM refuses a budget below the context
    ],
)
def test_a_step_of_a_gpu_engine_does_not_grow_with_the_context(
    context: int, sequences: int, gpus: int, expected: int
) -> None:
    args = build_engine_args(EngineConfig("model", "float32", context, sequences, 0, gpus=gpus), "model", None, None)
    assert args.max_num_batched_tokens == expected
    SchedulerConfig(  # raises for budgets that vLLM refuses
        max_model_len=context,
        is_encoder_decoder=False,
        max_num_batched_tokens=expected,
        max_num_seqs=sequences,
        enable_chunked_prefill=args.enable_chunked_prefill,
    )


def test_benchmarks_set_another_step_budget() -> None:
    config = EngineConfig("model", "float32", 16_384, 64, 0, gpus=1, batched_tokens=16_384)
    assert build_engine_args(config, "model", None, None).max_num_batched_tokens == 16_384


@pytest.mark.parametrize("num_likely", [0, 3])
def test_flat_log_probabilities_are_those_of_the_tokens_to_the_last_bit(num_likely: int) -> None:
    """With dicts, each position has the own token's log-probability before the most likely tokens'."""
    random = np.random.default_rng(0)
    values = random.normal(-5, 3, (40, 1 + num_likely)).astype(np.float32)
    tokens = np.argsort(random.random((40, 100)))[:, : 1 + num_likely]
    flat, dicts = create_prompt_logprobs(True), create_prompt_logprobs(False)
    for logprobs in (flat, dicts):
        for row, ids in zip(values.tolist(), tokens.tolist(), strict=True):
            append_logprobs_for_next_position(logprobs, ids, row, repeat(None), 1, num_likely)
    expected = np.array([entry[ids[0]].logprob for entry, ids in zip(dicts[1:], tokens.tolist(), strict=True)])
    own = tokens[:, 0].tolist()
    found = _read_logprobs(flat, own, first=1)
    assert found.dtype == np.float32 and found.tobytes() == expected.astype(np.float32).tobytes()
    assert _read_logprobs(create_prompt_logprobs(True), [], first=1).shape == (0,)
    for others in (own[:-1], [*own, 1], [own[0] + 1, *own[1:]]):
        with pytest.raises(EngineFailed, match="log-probabilities of other tokens"):
            _read_logprobs(flat, others, first=1)
