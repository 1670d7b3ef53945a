"""A learner's mixture of experts computes with given experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode

from agent_rft.trainer.model.micro_batches import MicroBatch, pack_sequences
from agent_rft.trainer.model.packed_attention import ATTENTION_NAME
from agent_rft.trainer.model.policy import DeviceBatch, Policy
from agent_rft.trainer.model.router_replay import num_experts
from agent_rft.types import TrainSegment
from tests.support.shapes import tiny_shape

CPU = torch.device("cpu")
LENGTHS = (9, 4, 14)
MODELS = ["qwen3_moe", "gpt_oss", "deepseek_v3", "granitemoe", "nemotron_h", "llama4"]
"""Their routers choose by probabilities, by logits, in groups with a bias, before a softmax, and to scale inputs."""


class Recorded(TorchFunctionMode):
    """What the routers choose, layer by layer."""

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__()
        self._shape = shape
        self.choices: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.topk, Tensor.topk) and args[0].shape == self._shape:
            self.choices.append(result[1])
        return result


def policy_of(shape: str) -> Policy:
    model = tiny_shape(shape)
    model.set_attn_implementation(ATTENTION_NAME)
    return Policy(model, 1.0)


def sequences(experts: NDArray[np.uint8] | None = None) -> list[TrainSegment]:
    """Random sequences; `experts` [N, L, k] of their tokens but the last."""
    random, made, start = np.random.default_rng(0), [], 0
    for length in LENGTHS:
        mask = np.arange(length) > 0
        chosen = None
        if experts is not None:
            chosen = np.concatenate([experts[start : start + length - 1], experts[:1]])
            start += length - 1
        arrays = random.integers(0, 256, length).astype(np.int32), mask, np.zeros(length, np.float32)
        made.append(TrainSegment(*arrays, np.zeros(length, np.int32), 1.0, experts=chosen))
    return made


def packed(experts: NDArray[np.uint8] | None = None) -> MicroBatch:
    [[batch]] = pack_sequences(sequences(experts), num_ranks=1, budget=1000)
    return batch


def choices_of(policy: Policy) -> tuple[NDArray[np.uint8], list[int], Tensor]:
    """The experts [N, L, k] that the policy chooses by itself, its layers with a router, and its log-probabilities."""
    batch = packed()
    config = policy.model.config
    with torch.no_grad(), Recorded((batch.num_tokens, num_experts(config))) as recorded:
        logprobs = policy(DeviceBatch.from_micro_batch(batch, CPU))[0]
    routed = [number for number, layer in enumerate(policy.model.model.layers) if "router" in repr(layer).lower()]
    assert len(recorded.choices) == len(routed) > 0
    experts = np.zeros((batch.num_tokens, config.num_hidden_layers, recorded.choices[0].shape[1]), np.uint8)
    for number, chosen in zip(routed, recorded.choices, strict=True):
        experts[:, number] = chosen.numpy()
    return experts, routed, logprobs


@pytest.mark.parametrize("shape", MODELS)
def test_with_its_own_choices_a_policy_computes_what_it_computes_without(shape: str) -> None:
    policy = policy_of(shape)
    experts, _, expected = choices_of(policy)
    replayed = policy(DeviceBatch.from_micro_batch(packed(experts), CPU))[0]
    torch.testing.assert_close(replayed, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", MODELS)
def test_a_policy_that_would_choose_others_computes_with_the_given_experts(shape: str) -> None:
    policy, other = policy_of(shape), policy_of(shape)
    experts, routed, _ = choices_of(policy)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if name.endswith((".mlp.gate.weight", ".router.weight", ".router.layer.weight", ".mixer.gate.weight")):
                parameter.neg_()  # the worst experts look best
    own, _, logprobs = choices_of(other)
    assert (np.sort(own[:, routed]) != np.sort(experts[:, routed])).any()
    batch = packed(experts)
    with torch.no_grad(), Recorded((batch.num_tokens, num_experts(policy.model.config))) as recorded:
        replayed = other(DeviceBatch.from_micro_batch(batch, CPU))[0]
    assert recorded.choices == []
    assert (replayed - logprobs).abs().max() > 0.01


def test_gradients_reach_the_router_also_where_a_layer_is_computed_again() -> None:
    kept, again = policy_of("qwen3_moe").train(), policy_of("qwen3_moe").train()
    experts = (choices_of(kept)[0] + 1) % num_experts(kept.model.config)
    again.model.gradient_checkpointing_enable({"use_reentrant": False})
    for policy in (kept, again):
        policy(DeviceBatch.from_micro_batch(packed(experts.astype(np.uint8)), CPU))[0].sum().backward()
    pairs = zip(kept.named_parameters(), again.parameters(), strict=True)
    assert all(torch.equal(ours.grad, theirs.grad) for (_, ours), theirs in pairs if ours.grad is not None)
    router = kept.model.model.layers[0].mlp.gate.weight
    assert router.grad is not None and router.grad.abs().max() > 0


def test_sequences_whose_experts_are_unknown_have_the_learners_own_beside_others() -> None:
    policy = policy_of("qwen3_moe")
    own, _, expected = choices_of(policy)
    others = ((own + 1) % num_experts(policy.model.config)).astype(np.uint8)
    known = sequences(others)
    mixed = [known[0], *(replace(sequence, experts=None) for sequence in known[1:])]
    [[batch]] = pack_sequences(mixed, num_ranks=1, budget=1000)
    assert batch.experts is not None and (batch.experts < 0).sum() == batch.experts[LENGTHS[0] - 1 :].size
    with torch.no_grad():
        found = policy(DeviceBatch.from_micro_batch(batch, CPU))[0]
    first = LENGTHS[0] - 1
    assert (found[:first] - expected[:first]).abs().max() > 0.01
    torch.testing.assert_close(found[first:], expected[first:], atol=1e-5, rtol=1e-5)
    assert packed().experts is None
