"""Packed rollouts in a tiny model give the same results as transformers gives for each rollout alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from agent_rft.errors import UserError
from agent_rft.spec.job import AlgorithmSpec
from agent_rft.trainer.algorithm import objective
from agent_rft.trainer.model.micro_batches import WeightedSequence, pack_sequences
from agent_rft.trainer.model.policy import DeviceBatch, Policy, load_policy
from agent_rft.types import Segment
from tests.support.builders import group_request, rollout

CPU = torch.device("cpu")
LENGTHS = [9, 4, 14, 6]


def save_model(folder: Path, **changes: Any) -> Path:
    settings = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "tie_word_embeddings": True,
        "initializer_range": 0.5,
    }
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**(settings | changes))).save_pretrained(folder)
    return folder


def tokens(length: int) -> NDArray[np.int32]:
    return np.random.default_rng(length).integers(0, 50, length).astype(np.int32)


def batch_of(*lengths: int) -> DeviceBatch:
    sequences = [WeightedSequence(tokens(n), np.array([0] + [1] * (n - 1), np.float32)) for n in lengths]
    [[micro_batch]] = pack_sequences(sequences, num_ranks=1, budget=1000)
    return DeviceBatch.from_micro_batch(micro_batch, CPU)


@pytest.fixture(params=["full", "untied", "sliding"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    sliding = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    changes = {"full": {}, "untied": {"tie_word_embeddings": False}, "sliding": sliding}
    return save_model(tmp_path, **changes[request.param])


def test_log_probabilities_equal_those_of_transformers_for_each_rollout_alone(folder: Path) -> None:
    policy = load_policy(folder, torch.float32, temperature=0.8)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        packed = policy(batch_of(*LENGTHS))[0]
        expected = []
        for length in LENGTHS:
            ids = torch.tensor(tokens(length), dtype=torch.int64)[None]
            scores = (model(ids).logits[0, :-1] / 0.8).log_softmax(-1)
            expected.append(scores.gather(1, ids[0, 1:, None])[:, 0])
    torch.testing.assert_close(packed, torch.cat(expected), atol=1e-4, rtol=1e-4)


def test_a_rollout_in_two_segments_has_the_gradient_of_its_tokens_in_one(tmp_path: Path) -> None:
    """The second segment's prompt is here all that the first one holds, so no token has another context."""
    first, second, length = slice(4, 7), slice(9, 14), 14

    def segment(stop: int, *sampled: slice) -> Segment:
        mask = np.zeros(stop, np.bool_)
        for turn in sampled:
            mask[turn] = True
        logprobs, versions = np.where(mask, -3.0, 0).astype(np.float32), np.where(mask, 0, -1).astype(np.int32)
        return Segment(tokens(length)[:stop], mask, logprobs, versions)

    def gradients_with(*segments: Segment) -> dict[str, Tensor]:
        """Gradients of a mini-batch of two rollouts; the other one has one segment."""
        rollouts = [rollout(group_request(), segments=mine) for mine in (segments, (segment(6, slice(2, 6)),))]
        trained = [
            s for r, advantage in zip(rollouts, (1.0, -0.5), strict=True) for s in r.to_train_segments(advantage)
        ]
        [[micro_batch]] = pack_sequences(trained, num_ranks=1, budget=1000)
        assert micro_batch.total_weight == sum(r.num_sampled for r in rollouts) == 12
        batch, policy = (
            DeviceBatch.from_micro_batch(micro_batch, CPU),
            load_policy(model, torch.float32, temperature=1.0),
        )
        logprobs = policy(batch)[0]
        loss, _ = objective.rl_loss(batch, logprobs, logprobs.detach(), None, AlgorithmSpec(), 12.0)
        loss.backward()
        return {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}

    model = save_model(tmp_path)
    one = gradients_with(segment(length, first, second))
    two = gradients_with(segment(first.stop, first), segment(length, second))
    assert any(gradient.abs().max() > 0 for gradient in one.values())
    for name, gradient in one.items():
        torch.testing.assert_close(two[name], gradient, atol=1e-6, rtol=1e-4)


def test_no_gradient_crosses_from_one_rollout_to_another(folder: Path) -> None:
    policy = load_policy(folder, torch.float32, temperature=1.0)
    alone = gradients(policy, batch_of(LENGTHS[0]), slice(None))
    packed = gradients(policy, batch_of(*LENGTHS), slice(LENGTHS[0] - 1))
    for name, gradient in alone.items():
        torch.testing.assert_close(gradient, packed[name], atol=1e-4, rtol=1e-4, msg=name)


def gradients(policy: Policy, batch: DeviceBatch, rows: slice) -> dict[str, torch.Tensor]:
    policy.zero_grad()
    policy(batch)[0][rows].sum().backward()
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


def test_gradient_checkpointing_gives_the_same_gradients(tmp_path: Path) -> None:
    policy = load_policy(save_model(tmp_path), torch.float32, temperature=1.0).train()
    kept = gradients(policy, batch_of(*LENGTHS), slice(None))
    policy.model.gradient_checkpointing_enable({"use_reentrant": False})
    again = gradients(policy, batch_of(*LENGTHS), slice(None))
    assert all(torch.equal(gradient, again[name]) for name, gradient in kept.items())


def test_the_same_batch_gives_the_same_bits(tmp_path: Path) -> None:
    policy = load_policy(save_model(tmp_path), torch.float32, temperature=1.0)
    first, second = (policy(batch_of(*LENGTHS))[0] for _ in range(2))
    assert torch.equal(first, second)


def test_tied_weights_are_one_parameter(tmp_path: Path) -> None:
    policy = load_policy(save_model(tmp_path), torch.float32, temperature=1.0)
    names = [name for name, _ in policy.named_parameters()]
    assert "model.model.embed_tokens.weight" in names
    assert "model.lm_head.weight" not in names
    assert policy.model.get_output_embeddings().weight is policy.model.get_input_embeddings().weight


def test_weights_that_are_not_in_the_files_are_refused(tmp_path: Path) -> None:
    path = save_model(tmp_path) / "model.safetensors"
    weights = load_file(path)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lack 1 weights of the model, such as model\.layers\.1\.mlp\.up_proj\.weight"):
        load_policy(tmp_path, torch.float32, temperature=1.0)
