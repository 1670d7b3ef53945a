"""What the benchmarks on a GPU compute without one: sizes, the plan's memory, and the file of results."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agent_rft.cluster.planning.memory_estimates import GIB, rank_memory
from agent_rft.cluster.planning.model_shape import ModelShape
from agent_rft.cluster.planning.placement import Placement
from agent_rft.spec.job import AlgorithmSpec
from agent_rft.spec.model_options import LoraSpec
from benchmarks.gpu import worker
from benchmarks.gpu.__main__ import BENCHMARK
from benchmarks.gpu.figures import Figure, NotMeasured, Results, table
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.shapes import BYTES_PER_PARAMETER, QWEN3, TINY, OneRank, tensors_gib
from benchmarks.gpu.step import Algorithm, micro_batch
from benchmarks.gpu.supervisor import STOPPED

PLACEMENT = Placement(
    engines=1,
    engine_cores=1,
    engine_gpus=1,
    learner_ranks=1,
    rank_cores=1,
    rank_gpus=1,
    dtype="bfloat16",
    max_num_seqs=1,
    zero_stage=1,
    offload="none",
    micro_batch_tokens=16_384,
)


def here(folder: Path) -> Machine:
    return Machine(torch.device("cpu"), torch.float32, True, Results(folder))


@pytest.mark.parametrize("name", QWEN3)
def test_parameters_are_those_of_the_model(name: str) -> None:
    with torch.device("meta"):
        model = Qwen3ForCausalLM(Qwen3Config(**QWEN3[name].config))
    assert QWEN3[name].parameters == sum(parameter.numel() for parameter in model.parameters())


def test_the_plans_memory_is_that_of_a_job_with_one_rank() -> None:
    shape = QWEN3["1.7B"]
    sizes = ModelShape(shape.parameters, 28, 2048, 16, 8, 128, 6144, 151_936)
    memory = rank_memory(sizes, PLACEMENT, on_gpu=True, itemsize=2, max_length=16_384, keeps_reference=False)
    assert shape.plan_gib(16_384) * GIB == pytest.approx(memory.gpu_bytes - memory.gpu["context"])
    held = sum(memory.gpu[part] for part in ("weights", "gradients", "optimizer")) - 200_000_000 * 4
    assert held == (BYTES_PER_PARAMETER + 2) * shape.parameters


def test_the_plans_memory_depends_on_stage_offload_and_adapter() -> None:
    shape, lora = QWEN3["1.7B"], LoraSpec(rank=16)
    sizes = ModelShape(shape.parameters, 28, 2048, 16, 8, 128, 6144, 151_936)
    placement = replace(PLACEMENT, zero_stage=2, offload="optimizer")
    expected = rank_memory(
        sizes, placement, on_gpu=True, itemsize=2, max_length=16_384, keeps_reference=False, lora=lora
    )
    planned = shape.plan_memory(OneRank(16_384, zero_stage=2, offload="optimizer"), 2, lora)
    assert planned == expected
    assert tensors_gib(planned) < shape.plan_gib(16_384)


def test_the_algorithm_is_a_jobs_default() -> None:
    spec = AlgorithmSpec()
    assert asdict(Algorithm()) == {name: getattr(spec, name) for name in asdict(Algorithm())}


def test_operations_of_a_step() -> None:
    """Two layers of width 32 with 4 heads of 8, 2 key-value heads and 48 intermediate; a vocabulary of 97."""
    assert TINY.matrices == 2 * (2 * 32 * 8 * (4 + 2) + 3 * 32 * 48)
    products = 6 * (TINY.matrices * 5 + 97 * 32 * 2)
    assert TINY.flops([3, 2], trained=2) == products + 12 * 2 * 32 * (6 + 3)
    assert TINY.flops([1], 1) - TINY.flops([1], 1, frozen=True) == 2 * (TINY.matrices + 32 * 97)
    assert TINY.flops_6n([3, 2]) == 6 * TINY.parameters * 5 + 12 * 2 * 32 * (9 + 4)


@pytest.mark.parametrize("num_tokens", [64, 4096, 65_536])
def test_a_micro_batch_has_exactly_the_wanted_tokens(num_tokens: int) -> None:
    rollouts, one = micro_batch(num_tokens, "rollouts", 97), micro_batch(num_tokens, "one", 97)
    assert rollouts.num_tokens == one.num_tokens == num_tokens
    assert one.lengths == (num_tokens,) and len(rollouts.lengths) > 1
    assert 0.3 * num_tokens < rollouts.num_trained < 0.7 * num_tokens


def test_finished_figures_are_not_measured_again_and_failures_do_not_stop_the_others(tmp_path: Path) -> None:
    calls: list[str] = []

    def works() -> dict[str, float]:
        calls.append("works")
        return {"value": 2.0}

    def fails() -> dict[str, float]:
        raise RuntimeError("no such kernel")

    def is_full() -> dict[str, float]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def cannot() -> dict[str, float]:
        raise NotMeasured("too large")

    def figures(_: Machine) -> list[Figure]:
        functions = (fails, is_full, cannot, works)
        return [Figure(function.__name__, "s", function, 0, aim="<= 3") for function in functions]

    machine = here(tmp_path)
    for _ in range(2):
        assert worker.run(machine, ["own"], deadline=float("inf"), catalog={"own": figures}) == 0
    lines = machine.results.lines
    assert calls == ["works"] and machine.results.value("works") == 2.0
    assert lines["fails"]["error"] == "RuntimeError: no such kernel"
    assert (lines["is_full"]["error"], lines["cannot"]["not_measured"]) == ("out of memory", "too large")
    assert "| works | 2 s |" in table(lines) and "| is_full | out of memory |" in table(lines)
    machine.results.drop_failed()
    assert list(machine.results.lines) == ["works"]


def test_a_figure_is_not_started_without_the_time_for_it(tmp_path: Path) -> None:
    figure = Figure("slow", "s", lambda: {"value": 1.0}, takes_s=20)
    stopped = worker.run(here(tmp_path), ["own"], deadline=0.0, catalog={"own": lambda _: [figure]})
    assert stopped == STOPPED and here(tmp_path).results.lines == {}


def test_a_line_that_was_cut_off_is_ignored_and_the_lost_figure_is_known(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.add({"name": "a", "value": 1.0})
    results.start({"name": "b", "part": "copies"})
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"name": "b", "val')
    assert Results(tmp_path).lost() == {"name": "b", "part": "copies"}
    Results(tmp_path).add({"name": "c", "value": 2.0})
    assert list(Results(tmp_path).lines) == ["a", "c"] and Results(tmp_path).lost() is None
    assert json.loads((tmp_path / "results.jsonl").read_text().splitlines()[-1])["name"] == "c"


def test_both_processes_have_the_same_parts() -> None:
    assert tuple(worker.PARTS) == BENCHMARK.parts
