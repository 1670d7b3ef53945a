"""DeepSpeed ranks on a local Ray: equal updates for all ZeRO stages and ranks, exact replay and resume, clean exit."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import numpy as np
import psutil
import pytest
import pytest_asyncio
import ray
import torch
from numpy.typing import NDArray
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_rft.actors.engine.grammar.structural_tags import build_turn_structure
from agent_rft.actors.learner.learner_group import LearnerGroup
from agent_rft.actors.weights.weight_bucket import compute_checksum
from agent_rft.chat.families.hermes import HERMES
from agent_rft.chat.renderer import Renderer
from agent_rft.errors import RftError, TrainingHalted, UserError
from agent_rft.metrics import find_metric
from agent_rft.spec.job import AlgorithmSpec
from agent_rft.spec.model_options import LoraSpec
from agent_rft.trainer.learner.rank_config import LearnerConfig
from agent_rft.trainer.learner.rank_memory_sizes import snapshot_bytes
from agent_rft.trainer.learner.weight_buckets import num_bytes
from agent_rft.trainer.model.micro_batches import WeightedSequence
from agent_rft.types import LayoutConversion, LearnerLayout, StepReport, TrainSegment
from tests.support.architectures import ARCHITECTURES
from tests.support.paths import BASE
from tests.support.processes import our_processes
from tests.support.shapes import write_shape
from tests.support.tiny_model import write_tiny_model

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    # Warnings of Ray at its start, and about its open sockets at its end.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning"),
]

ONCE = AlgorithmSpec(updates_per_batch=1)
CONFIG = LearnerConfig(BASE, steps=10, learning_rate=1e-3, algorithm=ONCE, micro_batch_tokens=200)
TWICE = replace(CONFIG, algorithm=AlgorithmSpec(updates_per_batch=2))
LORA = LoraSpec(rank=4)
ALL_AND_LORA = pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "lora"])
CANARY = np.arange(3, 40, dtype=np.int32)
ROUNDING = 1e-4


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
    gc.collect()  # Ray's process handles warn when they are collected: here the warnings are expected


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def groups() -> AsyncIterator[tuple[LearnerGroup, LearnerGroup]]:
    """A group of one rank and one of two; each test builds its model in their processes."""
    alone, pair = await asyncio.gather(
        LearnerGroup.start(CONFIG, [{"num_cpus": 1}]),
        LearnerGroup.start(CONFIG, [{"num_cpus": 1}] * 2),
    )
    yield alone, pair
    await asyncio.gather(alone.shutdown(), pair.shutdown())


def rollouts(seed: int, version: int = 0) -> list[TrainSegment]:
    """Five rollouts with one prompt; three of them fill a micro-batch of 200 tokens each.

    These make one mini-batch, so one of two ranks gets a filler.
    """
    random = np.random.default_rng(seed)
    prompt = random.integers(3, 298, 25)
    sequences = []
    for length in [180, 60, 170, 50, 150]:
        mask = random.random(length) < 0.4
        mask[: len(prompt)], mask[-1] = False, True
        sequences.append(
            TrainSegment(
                token_ids=np.concatenate([prompt, random.integers(3, 298, length - len(prompt))]).astype(np.int32),
                loss_mask=mask,
                logprobs=np.where(mask, random.normal(-6, 1, length), 0).astype(np.float32),
                versions=np.where(mask, version, -1).astype(np.int32),
                advantage=float(random.normal()),
            )
        )
    return sequences


def constrained(structure: str | None) -> list[TrainSegment]:
    """Rollouts whose turns are answers of a response format; the last one is not, as if another version sampled it."""
    renderer = Renderer(AutoTokenizer.from_pretrained(BASE))
    sequences = []
    for answer in ["1234", "56", "7a"]:
        ids = [
            *renderer.encode_untrusted("what was debt of"),
            *renderer.encode_untrusted(answer),
            renderer.tokenizer.eos_token_id,
        ]
        mask = np.arange(len(ids)) >= len(renderer.encode_untrusted("what was debt of"))
        logprobs, versions = np.where(mask, -1, 0).astype(np.float32), np.where(mask, 0, -1).astype(np.int32)
        sequences.append(TrainSegment(np.array(ids, np.int32), mask, logprobs, versions, 1.0, structure))
    return sequences


def broken_rollouts() -> list[TrainSegment]:
    """They give a gradient that is not finite, on one rank only."""
    return [*rollouts(0)[1:], replace(rollouts(0)[0], advantage=float("nan"))]


def conversations() -> list[WeightedSequence]:
    weights = [np.where(s.loss_mask, 1, 0.2).astype(np.float32) for s in rollouts(5)]
    return [
        WeightedSequence(s.token_ids, w * (np.arange(len(w)) > 0)) for s, w in zip(rollouts(5), weights, strict=True)
    ]


async def save(group: LearnerGroup, folder: Path) -> None:
    await group.snapshot()
    await group.write_snapshot(folder)


async def two_steps(group: LearnerGroup, config: LearnerConfig) -> tuple[list[StepReport], NDArray[np.float32]]:
    """The reports of two steps from the base model, and the canary's log-probabilities after them."""
    await group.build(config)
    return [await group.step(rollouts(step), version=step) for step in range(2)], await group.logprobs(CANARY)


@ALL_AND_LORA
async def test_an_update_does_not_depend_on_ranks_and_zero_stage(
    groups: tuple[LearnerGroup, LearnerGroup], lora: LoraSpec | None
) -> None:
    alone, pair = groups
    config = replace(TWICE, lora=lora)
    expected, expected_logprobs = await two_steps(alone, config)
    assert [report.applied for report in expected] == [True, True]
    assert all(find_metric(name) for report in expected for name in report.metrics)
    # One rank computes the prompt of two rollouts once; two ranks have one of them each.
    assert [report.metrics["computed_tokens"] for report in expected] == [605 - 25] * 2
    for stage in range(4):
        reports, logprobs = await two_steps(pair, replace(config, zero_stage=stage))
        np.testing.assert_allclose(logprobs, expected_logprobs, atol=ROUNDING)
        for report, wanted in zip(reports, expected, strict=True):
            for name in set(wanted.metrics) - {"num_micro_batches", "computed_tokens", "padding_efficiency"}:
                assert report.metrics[name] == pytest.approx(wanted.metrics[name], abs=ROUNDING, rel=ROUNDING), name
            assert 0.99 < report.metrics["padding_efficiency"] < 1  # the filler


async def test_the_policy_under_a_response_format_is_trained_the_same_on_all_ranks(
    groups: tuple[LearnerGroup, LearnerGroup],
) -> None:
    """Also the proximal and the start policy's probabilities are masked: before an update their gaps are 0."""
    alone, pair = groups
    structure = build_turn_structure((), {"type": "integer"}, HERMES.call_syntaxes)
    config = replace(CONFIG, algorithm=AlgorithmSpec(updates_per_batch=1, kl_coef=0.1))
    metrics = {}
    for name, group, stage, which in (
        ("free", alone, 0, None),
        ("alone", alone, 0, structure),
        ("pair", pair, 3, structure),
    ):
        await group.build(replace(config, zero_stage=stage))
        metrics[name] = (await group.step(constrained(which), version=0)).metrics
    for name in ("loss", "grad_norm", "entropy", "logprob_gap", "kl_reference", "tokens_without_loss"):
        assert metrics["pair"][name] == pytest.approx(metrics["alone"][name], abs=ROUNDING, rel=ROUNDING), name
    assert metrics["alone"]["tokens_without_loss"] == 2  # the letter, and the end after it
    assert metrics["alone"]["kl_reference"] == pytest.approx(0, abs=1e-6)
    assert metrics["alone"]["entropy"] != pytest.approx(metrics["free"]["entropy"], rel=0.1)
    assert "tokens_without_loss" not in metrics["free"]


async def test_layers_that_run_per_sequence_train_alike_on_ranks_with_different_numbers_of_sequences(
    groups: tuple[LearnerGroup, LearnerGroup], tmp_path: Path
) -> None:
    alone, pair = groups
    config = replace(CONFIG, model=write_shape("qwen3_next", tmp_path))
    sequences = [replace(s, token_ids=s.token_ids % 256) for s in rollouts(0)]
    reports, logprobs = {}, {}
    for stage, group in ((0, alone), (2, pair)):
        await group.build(replace(config, zero_stage=stage))
        reports[stage] = await group.step(sequences, version=0)
        logprobs[stage] = await group.logprobs(CANARY % 256)
    np.testing.assert_allclose(logprobs[2], logprobs[0], atol=ROUNDING)
    for name in ("loss", "grad_norm", "entropy", "logprob_gap"):
        assert reports[2].metrics[name] == pytest.approx(reports[0].metrics[name], abs=ROUNDING, rel=ROUNDING), name


@pytest.mark.nightly
async def test_bfloat16_trains_as_float32_does_up_to_its_rounding(groups: tuple[LearnerGroup, LearnerGroup]) -> None:
    """What GPUs use: float32 master weights and sums of gradients, which DeepSpeed keeps differently in each stage."""
    alone, pair = groups
    expected, expected_logprobs = await two_steps(alone, TWICE)
    for stage in (1, 2, 3):
        reports, logprobs = await two_steps(pair, replace(TWICE, dtype="bfloat16", zero_stage=stage))
        assert np.abs(logprobs - expected_logprobs).mean() < 0.1
        for report, wanted in zip(reports, expected, strict=True):
            assert report.applied
            assert report.metrics["grad_norm"] == pytest.approx(wanted.metrics["grad_norm"], rel=0.1)
            assert report.metrics["entropy"] == pytest.approx(wanted.metrics["entropy"], rel=0.05)


async def test_replaying_the_same_rollouts_gives_bitwise_equal_weights(
    groups: tuple[LearnerGroup, LearnerGroup],
) -> None:
    for group in groups:
        (first, logprobs), (second, again) = [await two_steps(group, TWICE) for _ in range(2)]
        assert first == second
        assert logprobs.tobytes() == again.tobytes()


@pytest.mark.parametrize(
    ("ranks", "stage", "lora"), [(1, 0, None), (2, 1, None), (2, 3, None), (1, 0, LORA), (2, 1, LORA), (2, 3, LORA)]
)
async def test_training_resumes_bitwise_equally_from_a_snapshot_written_while_it_went_on(
    groups: tuple[LearnerGroup, LearnerGroup], tmp_path: Path, ranks: int, stage: int, lora: LoraSpec | None
) -> None:
    group, config = groups[ranks - 1], replace(TWICE, zero_stage=stage, lr_schedule="linear", lora=lora)
    await two_steps(group, config)
    await group.snapshot()
    writing = asyncio.create_task(group.write_snapshot(tmp_path))
    wanted = await two_more(group)
    await writing
    await group.build(config)
    assert await group.load(tmp_path) is None
    assert await two_more(group) == wanted


async def two_more(group: LearnerGroup) -> tuple[list[StepReport], bytes]:
    """The reports of the next two steps, and the canary's log-probabilities after them."""
    reports = [await group.step(rollouts(step), version=step) for step in (2, 3)]
    return reports, (await group.logprobs(CANARY)).tobytes()


WAYS = [
    [(1, 0, "float32"), (2, 2, "float32"), (2, 3, "bfloat16"), (1, 1, "bfloat16"), (1, 0, "float32")],
    pytest.param(
        [
            *[(2, 1, "bfloat16"), (1, 3, "float32"), (2, 0, "float32"), (1, 2, "bfloat16"), (2, 1, "float32")],
            *[(1, 3, "bfloat16"), (2, 2, "bfloat16"), (2, 3, "float32"), (1, 0, "float32")],
        ],
        marks=pytest.mark.nightly,
    ),
]


@ALL_AND_LORA
@pytest.mark.parametrize("way", WAYS, ids=["usual", "rare"])
async def test_a_checkpoint_of_one_layout_loads_into_any_other(
    groups: tuple[LearnerGroup, LearnerGroup], tmp_path: Path, way: list[tuple[int, int, str]], lora: LoraSpec | None
) -> None:
    """Weights and moments are the same float32 numbers; the next update differs by the rounding of its layout."""
    layouts = [LearnerLayout(*layout) for layout in way]
    configs = [replace(CONFIG, zero_stage=layout.zero_stage, dtype=layout.dtype, lora=lora) for layout in layouts]
    at = [groups[layout.ranks - 1] for layout in layouts]
    await two_steps(at[0], configs[0])
    await at[0].step(broken_rollouts(), version=2)
    await save(at[0], new(tmp_path / "0"))
    wanted, state = (await at[0].step(rollouts(3), version=3)).metrics["loss"], saved_state(tmp_path / "0")
    assert state.pop("step") == 2
    parameters = sum(tensor.numel() for name, tensor in state.items() if name.startswith("weight "))
    if layouts[0].ranks == 1:  # more ranks round up
        [model] = (tmp_path / "0").glob("*.safetensors")
        copied = sum(t.nbytes for t in (*state.values(), *load_file(model).values()))
        assert copied == snapshot_bytes(parameters, rank=0, ranks=1, stage=0, in_bfloat16=False)
    for i in range(1, len(way)):
        await at[i].build(configs[i])
        assert await at[i].load(tmp_path / str(i - 1)) == LayoutConversion(layouts[i - 1], layouts[i])
        await save(at[i], new(tmp_path / str(i)))
        converted = saved_state(tmp_path / str(i))
        assert converted.pop("step") == 2
        assert converted.keys() == state.keys()
        assert all(torch.equal(converted[name], tensor) for name, tensor in state.items())
        progress = json.loads((tmp_path / str(i) / "learner.json").read_text())
        assert (progress["step"], progress["skipped"]) == (3, 1)
        loss = (await at[i].step(rollouts(3), version=3)).metrics["loss"]
        assert loss == pytest.approx(wanted, abs=ROUNDING if {way[0][2], way[i][2]} == {"float32"} else 0.02)


def new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def saved_state(folder: Path) -> dict[str, torch.Tensor]:
    """The optimizer's state of all ranks, each parameter's in one piece."""
    pieces: dict[str, list[tuple[int, torch.Tensor]]] = {}
    whole: dict[str, torch.Tensor] = {}
    for file in (folder / "state").iterdir():
        for key, tensor in load_file(file).items():
            if key == "step":
                whole[key] = tensor
            else:
                kind, start, name = key.split(":")
                pieces.setdefault(f"{kind} of {name}", []).append((int(start), tensor))
    return whole | {name: torch.cat([t for _, t in sorted(found, key=itemgetter(0))]) for name, found in pieces.items()}


async def test_saved_weights_equal_those_of_engines_and_load_in_transformers(
    groups: tuple[LearnerGroup, LearnerGroup], tmp_path: Path
) -> None:
    _, pair = groups
    _, logprobs = await two_steps(pair, replace(CONFIG, zero_stage=3))
    await save(pair, tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    plan = await pair.bucket_layouts(max_bytes=300_000)
    assert len(plan) > 2
    assert "lm_head.weight" not in saved  # tied
    assert [name for bucket in plan for name, *_ in bucket] == list(
        AutoModelForCausalLM.from_pretrained(BASE).state_dict()
    )[: len(saved)]
    for index, bucket in enumerate(plan):
        reference, number = await pair.publish_bucket(index)
        data, start = await await_ref(reference), 0
        assert number == compute_checksum(torch.tensor(data))
        for name, dtype, shape in bucket:
            size = 4 * int(np.prod(shape))
            assert dtype == "float32"
            assert data[start : start + size].tobytes() == saved[name].numpy().tobytes()
            start += size
        assert start == len(data)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        scores = model(torch.tensor(CANARY, dtype=torch.int64)[None]).logits[0, :-1].log_softmax(-1)
    theirs = scores.gather(1, torch.tensor(CANARY[1:, None], dtype=torch.int64))[:, 0]
    np.testing.assert_allclose(logprobs, theirs, atol=ROUNDING)
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template == AutoTokenizer.from_pretrained(BASE).chat_template


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["qwen3_moe", "gemma3"])
async def test_ranks_that_read_their_parts_publish_what_the_files_have(
    groups: tuple[LearnerGroup, LearnerGroup], tmp_path: Path, name: str
) -> None:
    """Experts are merged as they are read; embeddings may be tied."""
    _, pair = groups
    AutoModelForCausalLM.from_config(ARCHITECTURES[name]()).save_pretrained(write_tiny_model(tmp_path))
    saved = load_file(tmp_path / "model.safetensors")
    await pair.build(replace(CONFIG, model=tmp_path, zero_stage=3))
    published = {}
    for index, bucket in enumerate(await pair.bucket_layouts(max_bytes=100_000)):
        reference, _ = await pair.publish_bucket(index)
        data = await await_ref(reference)
        for tensor, start in zip(bucket, np.cumsum([0, *(num_bytes([each]) for each in bucket)]), strict=False):
            published[tensor[0]] = data[start : start + num_bytes([tensor])].tobytes()
    assert published == {name: tensor.numpy().tobytes() for name, tensor in saved.items()}


async def await_ref(reference: ray.ObjectRef) -> NDArray[np.uint8]:
    data: NDArray[np.uint8] = await reference
    return data


async def test_log_probabilities_of_the_learner_s_version_show_no_gap(
    groups: tuple[LearnerGroup, LearnerGroup],
) -> None:
    alone, _ = groups
    await alone.build(CONFIG)
    sequences = []
    for sequence in rollouts(0, version=7):
        logprobs = np.append(0, await alone.logprobs(sequence.token_ids)).astype(np.float32)
        sequences.append(replace(sequence, logprobs=np.where(sequence.loss_mask, logprobs, 0)))
    metrics = (await alone.step(sequences, version=7)).metrics
    assert metrics["logprob_gap"] < ROUNDING
    assert metrics["importance_ratio_same_version"] == pytest.approx(1, abs=ROUNDING)
    assert metrics["logprob_gap_tokens"] == metrics["trained_tokens"] == sum(s.loss_mask.sum() for s in sequences)
    assert (await alone.step(sequences, version=8)).metrics["logprob_gap_tokens"] == 0


@ALL_AND_LORA
@pytest.mark.parametrize(("ranks", "stage"), [(1, 0), (2, 3)])
async def test_the_start_model_is_not_updated(
    groups: tuple[LearnerGroup, LearnerGroup], ranks: int, stage: int, lora: LoraSpec | None
) -> None:
    """With LoRA it is the policy without its adapter, not a second copy."""
    group, algorithm = groups[ranks - 1], AlgorithmSpec(kl_coef=0.1, updates_per_batch=1)
    await group.build(replace(CONFIG, algorithm=algorithm, learning_rate=1e-2, zero_stage=stage, lora=lora))
    first, second = [(await group.step(rollouts(0), version=0)).metrics["kl_reference"] for _ in range(2)]
    assert first == pytest.approx(0, abs=1e-9)
    assert second > 0.01


async def test_an_adapter_is_published_and_saved_under_pefts_names_and_trained_on_from_its_folder(
    groups: tuple[LearnerGroup, LearnerGroup], tmp_path: Path
) -> None:
    alone, pair = groups
    config = replace(CONFIG, learning_rate=1e-2, zero_stage=3, lora=LORA)
    _, trained = await two_steps(pair, config)
    await save(pair, new(tmp_path / "adapter"))
    saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    [bucket] = await pair.bucket_layouts(max_bytes=1 << 30)
    assert {name: (dtype, shape) for name, dtype, shape in bucket} == {
        name: ("float32", tuple(tensor.shape)) for name, tensor in saved.items()
    }
    data = await await_ref((await pair.publish_bucket(0))[0])
    assert data.tobytes() == b"".join(saved[name].numpy().tobytes() for name, *_ in bucket)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(BASE), str(tmp_path / "adapter"))
    with torch.no_grad():
        scores = model(torch.tensor(CANARY, dtype=torch.int64)[None]).logits[0, :-1].log_softmax(-1)
    theirs = scores.gather(1, torch.tensor(CANARY[1:, None], dtype=torch.int64))[:, 0]
    np.testing.assert_allclose(trained, theirs, atol=ROUNDING)
    again = replace(config, model=tmp_path / "adapter", algorithm=AlgorithmSpec(kl_coef=0.1, updates_per_batch=1))
    for group, stage in ((alone, 0), (pair, 3)):
        await group.build(replace(again, zero_stage=stage))
        np.testing.assert_allclose(await group.logprobs(CANARY), trained, atol=ROUNDING)
        first, second = [(await group.step(rollouts(0), version=0)).metrics["kl_reference"] for _ in range(2)]
        assert first == pytest.approx(0, abs=1e-9)  # the start model is the adapter, not its base
        assert second > 0.001
        await save(group, new(tmp_path / f"again-{stage}"))
        names = load_file(tmp_path / f"again-{stage}" / "adapter_model.safetensors").keys()
        assert names == saved.keys()


async def test_a_checkpoint_of_another_lora_is_refused(
    groups: tuple[LearnerGroup, LearnerGroup], tmp_path: Path
) -> None:
    alone, _ = groups
    await alone.build(replace(CONFIG, lora=LORA))
    await save(alone, tmp_path)
    for other, named in ((None, "all weights"), (LoraSpec(rank=8), "rank 8")):
        await alone.build(replace(CONFIG, lora=other))
        with pytest.raises(UserError, match=f"trained with LoRA of rank 4, .*, not with .*{named}.*the same `lora`"):
            await alone.load(tmp_path)
        for model, lora in ((tmp_path, other),):
            with pytest.raises(UserError, match="agent-rft models merge"):
                await alone.build(replace(CONFIG, model=model, lora=lora))


@ALL_AND_LORA
async def test_supervised_training_lowers_the_loss_of_its_conversations(
    groups: tuple[LearnerGroup, LearnerGroup], lora: LoraSpec | None
) -> None:
    _, pair = groups
    await pair.build(replace(CONFIG, method="supervised", lora=lora))
    before = await pair.supervised_loss(conversations())
    losses = [(await pair.step(conversations(), version=0)).metrics["loss"] for _ in range(3)]
    assert losses[0] == pytest.approx(before, rel=ROUNDING)
    assert losses[0] > losses[1] > losses[2] > await pair.supervised_loss(conversations())


async def test_a_non_finite_gradient_skips_the_update_on_all_ranks_and_three_halt_the_job(
    groups: tuple[LearnerGroup, LearnerGroup],
) -> None:
    alone, pair = groups
    broken = broken_rollouts()
    for group, config in ((alone, CONFIG), (pair, replace(CONFIG, zero_stage=2))):
        await group.build(config)
        before = await group.logprobs(CANARY)
        assert [(await group.step(broken, version=0)).applied for _ in range(2)] == [False, False]
        assert (await group.logprobs(CANARY)).tobytes() == before.tobytes()
        assert (await group.step(rollouts(0), version=0)).applied
        assert not (await group.step(broken, version=0)).applied
    await alone.step(broken, version=0)
    with pytest.raises(TrainingHalted, match="3 updates in a row"):
        await alone.step(broken, version=0)


async def test_a_damaged_checkpoint_and_an_untrainable_model_are_rejected(
    groups: tuple[LearnerGroup, LearnerGroup], tmp_path: Path
) -> None:
    shutil.copytree(BASE, tmp_path / "model")
    config = json.loads((BASE / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"final_logit_softcapping": 30.0}))
    alone, pair = groups
    with pytest.raises(UserError, match="changes the logits after the output head"):
        await alone.build(replace(CONFIG, model=tmp_path / "model"))
    await pair.build(replace(CONFIG, zero_stage=1))
    await save(pair, tmp_path)
    (tmp_path / "state" / "rank-00001.safetensors").unlink()
    with pytest.raises(UserError, match=r"state lacks a part of .* restore this checkpoint"):
        await pair.load(tmp_path)


async def test_a_lost_group_starts_again_from_its_checkpoint_bitwise_equally(
    groups: tuple[LearnerGroup, LearnerGroup], tmp_path: Path
) -> None:
    _, pair = groups
    await two_steps(pair, TWICE)
    plan = await pair.bucket_layouts(1 << 30)
    await save(pair, tmp_path)
    wanted, before = await two_more(pair), set(rank_processes())
    await pair.watch_targets()[1].give_up("it is silent")
    with pytest.raises(RftError, match=r"learner rank 1 of 2 failed in step: it is silent"):
        await pair.step(rollouts(0), version=0)
    await pair.restart()
    assert [len(before & set(rank_processes())), len(rank_processes()), len(pair.watch_targets())] == [1, 3, 2]
    assert await pair.bucket_layouts(1 << 30) == plan
    await pair.load(tmp_path)
    assert await two_more(pair) == wanted


async def test_a_late_rank_is_killed_and_leaves_no_process_behind(groups: tuple[LearnerGroup, LearnerGroup]) -> None:
    alone, _ = groups
    assert len(rank_processes()) == 3
    await alone.build(replace(CONFIG, collective_timeout_s=0.001))
    with pytest.raises(RftError, match=r"learner ranks \[0\] of 1 did not finish step in 0.001 s"):
        await alone.step(rollouts(0), version=0)
    for _ in range(100):
        if len(rank_processes()) == 2:
            return
        await asyncio.sleep(0.1)
    pytest.fail("the rank's process is still there after 10 s")


async def test_a_lost_rank_ends_the_group_and_the_error_names_it(groups: tuple[LearnerGroup, LearnerGroup]) -> None:
    _, pair = groups
    first, second = rank_processes()
    second.kill()
    with pytest.raises(RftError, match=r"learner rank [01] of 2 failed in step: its process was lost"):
        await pair.step(rollouts(0), version=0)
    _, alive = psutil.wait_procs([first, second], timeout=10)
    assert not alive


def rank_processes() -> list[psutil.Process]:
    return our_processes("RankProcess")
