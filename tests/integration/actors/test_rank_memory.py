"""A learner rank whose memory is on its node or on other ranks computes what a rank computes that holds all of it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from agent_rft.spec.job import AlgorithmSpec
from agent_rft.trainer.learner.host_buffer import HostBuffer
from agent_rft.trainer.learner.learner_rank import LearnerRank
from agent_rft.trainer.learner.memory_offload import CpuOffload, DeviceTensors
from agent_rft.trainer.learner.process_group import find_free_port, join_rank_group
from agent_rft.trainer.learner.rank_config import LearnerConfig, create_reference_model
from agent_rft.trainer.learner.training_model import TrainingModel, partition_on_read
from agent_rft.trainer.loop.checkpoint import TRAINING_STATE
from agent_rft.trainer.model.micro_batches import pack_sequences
from agent_rft.trainer.model.policy import DeviceBatch
from agent_rft.types import StepReport, TrainSegment
from tests.support.tiny_model import write_tiny_model

CANARY = np.arange(3, 40, dtype=np.int32)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> LearnerConfig:
    model = write_tiny_model(tmp_path_factory.mktemp("model") / "model")
    return LearnerConfig(model, steps=4, learning_rate=1e-2, algorithm=AlgorithmSpec(kl_coef=0.1))


def sequences(seed: int) -> list[TrainSegment]:
    random = np.random.default_rng(seed)
    made = []
    for length in (40, 25):
        mask = np.arange(length) > 5
        versions = np.where(mask, 0, -1).astype(np.int32)
        logprobs = np.where(mask, random.normal(-5, 1, length), 0).astype(np.float32)
        ids = random.integers(0, 250, length).astype(np.int32)
        made.append(TrainSegment(ids, mask, logprobs, versions, advantage=float(random.normal())))
    return made


def three_steps(config: LearnerConfig, sleeps: bool) -> tuple[list[StepReport], bytes]:
    """The reports of three updates, and what they led to; if it `sleeps`, all that the rank holds leaves after each."""
    rank, reports = LearnerRank(config), []
    cpu, many = torch.device("cpu"), lambda: 1 << 40
    asleep = CpuOffload(cpu, HostBuffer(), free_bytes=many, allocated_bytes=many)
    for seed in range(3):
        [[micro_batch]] = pack_sequences(sequences(seed), num_ranks=1, budget=512)
        reports.append(rank.step([[micro_batch]], version=seed))
        if sleeps:
            asleep.offload()  # searches for tensors only after the first step
            moved = asleep.num_bytes
            assert moved >= 8 * sum(p.numel() for p in rank.policy.parameters())  # Adam's moments at least
            asleep.reload()
            assert sum(storage.nbytes() for storage in DeviceTensors(cpu, many).find_storages()) - moved < 100
    return reports, rank.logprobs(CANARY).tobytes()


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    """A process for the ranks, since the group that DeepSpeed forms lasts as long as its process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize(
    ("stage", "dtype"),
    [
        (0, "float32"),
        pytest.param(1, "bfloat16", marks=pytest.mark.nightly),
        pytest.param(2, "bfloat16", marks=pytest.mark.nightly),
        (3, "bfloat16"),
    ],
)
def test_what_has_left_comes_back_bit_by_bit(
    process: ProcessPoolExecutor, config: LearnerConfig, stage: int, dtype: Literal["float32", "bfloat16"]
) -> None:
    layout = replace(config, zero_stage=stage, dtype=dtype)
    (reports, logprobs), (slept, again) = (
        process.submit(three_steps, layout, sleeps).result() for sleeps in (False, True)
    )
    assert all(report.applied for report in reports)
    assert reports == slept
    assert logprobs == again


def test_it_waits_for_a_process_that_was_killed_to_free_the_device() -> None:
    """Then it goes on; without room after the last wait, the allocation says so."""
    waits: list[float] = []
    free = iter([0, 0, 1 << 40])
    asleep = CpuOffload(torch.device("cpu"), HostBuffer(), lambda: next(free), waits.append, lambda: 0)
    kept = torch.arange(10)
    asleep.offload()
    assert asleep.num_bytes >= kept.numel() * 8
    asleep.reload()
    assert kept.tolist() == list(range(10)) and len(waits) == 2


def reference_logprobs(config: LearnerConfig, rank: int, address: str) -> tuple[list[bytes], list[bytes], int]:
    """Return the results of the complete and the shared model for four batches, and the rank's number of weights."""
    deepspeed = join_rank_group(False, 60, rank, 2, address)
    dtype, cpu = getattr(torch, config.dtype), torch.device("cpu")
    model = TrainingModel.from_folder(config.model, dtype, None)
    complete = model.load(1.0, 0, cpu, keeps_reference=True).eval()
    reading = partition_on_read(deepspeed, dtype, cpu)
    shared = create_reference_model(config, model.load(1.0, 0, reading, keeps_reference=True), deepspeed)
    expected, got = [], []
    for seed in range(4):  # DeepSpeed traces the first two, and gathers weights in advance in the others
        [[micro_batch]] = pack_sequences(sequences(2 * seed + rank), num_ranks=1, budget=512)
        batch = DeviceBatch.from_micro_batch(micro_batch, cpu)
        with torch.no_grad():
            expected.append(complete(batch)[0].numpy().tobytes())
            got.append(shared(batch=batch)[0].numpy().tobytes())
    parameters: list[Any] = list(shared.parameters())
    return expected, got, sum(parameter.ds_tensor.numel() + parameter.numel() for parameter in parameters)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_ranks_share_the_reference_model_and_compute_what_the_complete_one_does(
    config: LearnerConfig, tmp_path: Path, dtype: Literal["float32", "bfloat16"]
) -> None:
    model = write_tiny_model(tmp_path / "model", hidden_size=4096)  # DeepSpeed gathers small weights for good
    shared = replace(config, model=model, zero_stage=3, dtype=dtype)
    address = f"127.0.0.1:{find_free_port()}"
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        ranks = [pool.submit(reference_logprobs, shared, rank, address) for rank in range(2)]
    num_weights = sum(tensor.numel() for tensor in load_file(model / "model.safetensors").values())
    for rank in ranks:
        expected, got, stored = rank.result()
        assert got == expected and len(set(got)) == 4
        assert num_weights / 2 <= stored < 0.55 * num_weights


def saved_in(folder: Path, config: LearnerConfig, before: Path | None) -> Path:
    """The state that a rank saves after three updates, or after it loaded what another one saved `before`."""
    rank = LearnerRank(config)
    if before is not None:
        rank.load(before)
    for seed in range(3 if before is None else 0):
        [[micro_batch]] = pack_sequences(sequences(seed), num_ranks=1, budget=512)
        rank.step([[micro_batch]], version=seed)
    folder.mkdir()
    rank.snapshot()
    rank.write_snapshot(folder)
    return folder


@pytest.mark.parametrize(("stage", "dtype"), [(0, "float32"), (3, "bfloat16")])
def test_an_offloaded_optimizer_gives_the_same_updates_and_its_state_loads_anywhere(
    process: ProcessPoolExecutor,
    config: LearnerConfig,
    tmp_path: Path,
    stage: int,
    dtype: Literal["float32", "bfloat16"],
) -> None:
    """The norm of the gradient is summed in another order; what leaves with the activations comes back bit by bit."""
    none = replace(config, zero_stage=stage, dtype=dtype)
    optimizer, both = (replace(none, offload=what) for what in ("optimizer", "optimizer_and_activations"))
    assert optimizer.effective_stage == max(2, stage)
    (wanted, _), got, activations = (
        process.submit(three_steps, layout, False).result() for layout in (none, optimizer, both)
    )
    assert got == activations
    for report, other in zip(wanted, got[0], strict=True):
        assert other.metrics == pytest.approx(report.metrics, rel=1e-3, abs=1e-3)

    first = process.submit(saved_in, tmp_path / "first", optimizer, None).result()
    second = process.submit(saved_in, tmp_path / "second", none, first).result()
    third = process.submit(saved_in, tmp_path / "third", optimizer, second).result()
    states = [load_file(folder / TRAINING_STATE / "rank-00000.safetensors") for folder in (first, second, third)]
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        assert all(torch.equal(state[name], states[0][name]) for name in state)
