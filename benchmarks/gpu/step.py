"""A learner step without DeepSpeed: the trainer's own model, packing and loss, and AdamW as one ZeRO rank holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM, Qwen3Config

from agent_rft.trainer.algorithm import objective
from agent_rft.trainer.model import packed_attention
from agent_rft.trainer.model.logprobs import TokenLogProbs
from agent_rft.trainer.model.micro_batches import MicroBatch, pack_sequences
from agent_rft.trainer.model.policy import DeviceBatch, Policy
from agent_rft.types import TrainSegment
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.shapes import Shape

Mix = Literal["rollouts", "one"]
GRADIENT_NORM = 1.0
TRAINED_SHARE = 0.5
"""The share of tokens that the model sampled; the others are prompts and results of tools."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """The defaults of a job, as `agent_rft.spec.job.AlgorithmSpec`."""

    clip_low: float = 0.2
    clip_high: float = 0.28
    importance_cap: float = 2.0
    max_divergence: float | None = 0.2
    kl_coef: float = 0.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be chosen without a change of the result. The defaults are what the learner does on a GPU today.

    `checkpoint_every` n: every n-th layer is computed again in the backward pass (0: none).
    """

    attention: str = packed_attention.ATTENTION_NAME
    checkpoint_every: int = 1
    compiled: bool = False
    adamw: str = "fused"
    chunk_bytes: int | None = None


def micro_batch(num_tokens: int, mix: Mix, vocabulary: int, seed: int = 0) -> MicroBatch:
    """`num_tokens` packed tokens: rollouts of log-normal lengths (median 1,200, p99 7,700), or one sequence."""
    random = np.random.default_rng([num_tokens, seed])
    lengths: list[int] = []
    while sum(lengths) < num_tokens:
        length = num_tokens if mix == "one" else int(random.lognormal(np.log(min(1200, num_tokens / 4)), 0.8))
        lengths.append(min(max(length, 2), num_tokens - sum(lengths)))
    [[batch]] = pack_sequences(
        [_sequence(length + 1, vocabulary, random) for length in lengths], num_ranks=1, budget=num_tokens
    )
    return batch


def _sequence(length: int, vocabulary: int, random: np.random.Generator) -> TrainSegment:
    mask = random.random(length) < TRAINED_SHARE
    mask[0], mask[-1] = False, True
    return TrainSegment(
        token_ids=random.integers(0, vocabulary, length).astype(np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, -np.log(vocabulary), 0.0).astype(np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        advantage=float(random.normal()),
    )


def build_policy(machine: Machine, shape: Shape, settings: Settings, dtype: torch.dtype | None = None) -> Policy:
    """A policy with random weights, made on the device, in training mode."""
    torch.manual_seed(0)
    with torch.device(machine.device):
        model = AutoModelForCausalLM.from_config(
            Qwen3Config(**shape.config), dtype=dtype or machine.dtype, attn_implementation=settings.attention
        )
    policy = Policy(model, temperature=1.0).train()
    if settings.chunk_bytes:
        weight = policy.model.get_output_embeddings().weight
        policy.model.set_output_embeddings(TokenLogProbs(weight, 1.0, settings.chunk_bytes))
    if settings.checkpoint_every:
        policy.model.gradient_checkpointing_enable({"use_reentrant": False})
    for index, layer in enumerate(policy.model.model.layers):
        layer.gradient_checkpointing = settings.checkpoint_every > 0 and index % settings.checkpoint_every == 0
        if settings.compiled:
            layer.compile(dynamic=True, backend="eager" if machine.device.type == "cpu" else "inductor")
    if settings.compiled:
        policy.model.set_attn_implementation(_outside_the_graph(settings.attention))
    return policy


def _outside_the_graph(attention: str) -> str:
    """The attention as one call for the compiler, which would compile it again for every packing."""
    if attention.endswith("_flex"):
        return attention  # has a compiled kernel of its own
    name = f"{attention}_outside"
    AttentionInterface.register(name, torch.compiler.disable(AttentionInterface()[attention]))
    return name


def loss_of(policy: Policy, batch: DeviceBatch) -> tuple[Tensor, Tensor]:
    """The loss of reinforcement, and the log-probabilities [M]."""
    logprobs, _ = policy(batch)
    return loss_from(logprobs, batch), logprobs.detach()


def loss_from(logprobs: Tensor, batch: DeviceBatch) -> Tensor:
    loss, _ = objective.rl_loss(batch, logprobs, logprobs.detach(), None, Algorithm(), float(len(logprobs)))
    return loss


class MasterAdamW:
    """AdamW on float32 copies of the weights, with gradients summed in float32 as soon as each is computed."""

    def __init__(self, policy: nn.Module, kind: str, rate: float = 1e-6) -> None:
        self._weights: list[Tensor] = list(policy.parameters())
        self._masters = [weight.detach().to(torch.float32, copy=True) for weight in self._weights]
        for weight, master in zip(self._weights, self._masters, strict=True):
            master.grad = torch.zeros_like(master)
            weight.register_post_accumulate_grad_hook(_adds_to(master.grad))
        options: dict[str, Any] = {"fused": kind == "fused", "foreach": kind == "foreach"}
        self._adamw = torch.optim.AdamW(self._masters, lr=rate, betas=(0.9, 0.95), weight_decay=0.0, **options)

    @torch.no_grad()
    def step(self) -> None:
        nn.utils.clip_grad_norm_(self._masters, GRADIENT_NORM)
        self._adamw.step()
        torch._foreach_copy_(self._weights, self._masters)
        self._adamw.zero_grad(set_to_none=False)


def _adds_to(total: Tensor) -> Callable[[Tensor], None]:
    def add(weight: Tensor) -> None:
        assert weight.grad is not None
        total.add_(weight.grad)
        weight.grad = None

    return add
