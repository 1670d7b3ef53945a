"""Phase 0 of the base model: training from scratch until values are looked up and copied reliably.

It ends on a look-up score, never on time alone: a model that stops early keeps its reading errors for good. It can
stall at a high learning rate and recover at a lower one, so the rate falls when the score is long in coming.
"""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional
from transformers import Qwen3ForCausalLM

from examples.ledger.lookup_samples import Sample
from examples.ledger.muon import Muon
from examples.ledger.vocabulary import PAD, TOKEN_OF

TARGET_SCORE: Final = 0.85
MATRIX_LR: Final = 0.02
OTHER_LR: Final = 3e-3
WARM_UP_STEPS: Final = 30
BATCH_TOKENS: Final = 4096
MAX_SAMPLE_TOKENS: Final = 560
"""Longer samples, very few, are left out: they would make small batches."""
SAMPLES_AT_ONCE: Final = 512
"""Drawn together and sorted by length, so that little of a batch is padding."""
OTHERS_WEIGHT: Final = 0.3
"""The loss weight of tokens that are not the assistant's, relative to those that are."""
SCORE_EVERY_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class LookupResult:
    """The score at the end, the tokens trained on with padding, and each step's loss over the assistant's tokens."""

    score: float
    num_tokens: int
    losses: list[float]


@dataclass(slots=True)
class LearningRate:
    """The factor on both learning rates.

    While the target is not reached: 1 for 40 % of the time limit, then falling to 0.1 at its end. From there on:
    falling to 0.05 within a quarter of the time that it took.
    """

    limit_s: float
    reached_s: float | None = None

    @property
    def end_s(self) -> float:
        """When training ends."""
        return self.limit_s if self.reached_s is None else 1.25 * self.reached_s

    def factor(self, step: int, elapsed_s: float) -> float:
        """The factor of a step (from 0), `elapsed_s` after the start."""
        warm_up = min(1.0, (step + 1) / WARM_UP_STEPS)
        if self.reached_s is None or elapsed_s <= self.reached_s:
            return warm_up * self._while_looking(elapsed_s)
        left = max(0.0, (self.end_s - elapsed_s) / (self.end_s - self.reached_s))
        return warm_up * max(0.05, left * self._while_looking(self.reached_s))

    def _while_looking(self, elapsed_s: float) -> float:
        return min(1.0, max(0.1, 1.0 - 0.9 * (elapsed_s / self.limit_s - 0.4) / 0.6))


def batches(draw: Callable[[], Sample], rng: random.Random, max_tokens: int) -> Iterator[list[Sample]]:
    """Samples of like length together, at most `max_tokens` with padding, without end."""
    while True:
        drawn = sorted((draw() for _ in range(SAMPLES_AT_ONCE)), key=lambda sample: len(sample.tokens))
        batch: list[Sample] = []
        ready = [batch]
        for sample in drawn:
            if len(sample.tokens) > min(MAX_SAMPLE_TOKENS, max_tokens):
                break
            if len(sample.tokens) * (len(batch) + 1) > max_tokens:
                batch = []
                ready.append(batch)
            batch.append(sample)
        rng.shuffle(ready)
        yield from ready


def pad(batch: list[Sample]) -> tuple[Tensor, Tensor]:
    """Token ids [B, T] and the tokens' weights in the loss [B, T], padded on the right with weight 0."""
    length = max(len(sample.tokens) for sample in batch)
    tokens = torch.full((len(batch), length), TOKEN_OF[PAD])
    weights = torch.zeros(len(batch), length)
    for i, sample in enumerate(batch):
        tokens[i, : len(sample.tokens)] = torch.tensor(sample.tokens)
        weights[i, : len(sample.tokens)] = torch.where(torch.tensor(sample.learned), 1.0, OTHERS_WEIGHT)
    return tokens, weights


def losses(model: Qwen3ForCausalLM, tokens: Tensor) -> Tensor:
    """The cross-entropy of each token but the first, [B, T - 1]. Padding on the right needs no attention mask."""
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")


@torch.no_grad()
def lookup_score(model: Qwen3ForCausalLM, conversations: list[Sample]) -> float:
    """The share of conversations in which greedy decoding would give the final answer, as it stands there."""
    num_right = 0
    for sample in conversations:
        end = max(i for i, learned in enumerate(sample.learned) if learned) + 1
        start = max(i for i, learned in enumerate(sample.learned[:end]) if not learned) + 1
        tokens = torch.tensor(sample.tokens[:end])
        logits = model(input_ids=tokens[None, :-1], use_cache=False).logits[0]
        num_right += torch.equal(logits[start - 1 :].argmax(-1), tokens[start:])
    return num_right / len(conversations)


def train_lookup(
    model: Qwen3ForCausalLM,
    draw: Callable[[], Sample],
    held_out: list[Sample],
    rng: random.Random,
    limit_s: float,
    *,
    batch_tokens: int = BATCH_TOKENS,
    clock: Callable[[], float] = time.monotonic,
) -> LookupResult:
    """Trains until the score on `held_out` has reached the target and the learning rate has come down.

    Where the target is not reached within `limit_s`, it returns what was reached. Prints a line at each score. `clock`
    gives seconds.
    """
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.dim() != 2 or "embed" in name]
    muon = Muon(matrices, lr=MATRIX_LR)
    adam = torch.optim.AdamW(others, lr=OTHER_LR, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    rate = LearningRate(limit_s)
    history: list[float] = []
    num_tokens = 0
    start_s = clock()
    next_score_s = SCORE_EVERY_S
    for step, batch in enumerate(batches(draw, rng, batch_tokens)):
        elapsed_s = clock() - start_s
        if elapsed_s >= rate.end_s:
            break
        if elapsed_s >= next_score_s:
            score = lookup_score(model, held_out)
            print(f"{elapsed_s:.0f} s, {num_tokens} tokens, loss {history[-1]:.3f}, score {score:.3f}", flush=True)
            if score >= TARGET_SCORE and rate.reached_s is None:
                rate.reached_s = elapsed_s
            next_score_s = elapsed_s + SCORE_EVERY_S
        factor = rate.factor(step, elapsed_s)
        muon.param_groups[0]["lr"] = factor * MATRIX_LR
        adam.param_groups[0]["lr"] = factor * OTHER_LR
        tokens, weights = pad(batch)
        each, weights = losses(model, tokens), weights[:, 1:]
        muon.zero_grad()
        adam.zero_grad()
        torch.autograd.backward((each * weights).sum() / weights.sum())
        muon.step()
        adam.step()
        num_tokens += tokens.numel()
        history.append(each.detach()[weights == 1].mean().item())
    return LookupResult(lookup_score(model, held_out), num_tokens, history)
