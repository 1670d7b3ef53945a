"""Phase 0 of the base model: training from scratch until the model reliably looks up values and copies them.

Training ends at a look-up score and not only at a time limit, because a model that stops early never loses its reading
errors. A model can stall at a high learning rate and recover at a lower one, so the rate falls if the score stays low.
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
"""Maximum length of a sample. The few longer samples are left out, because their batches would be small."""
SAMPLES_AT_ONCE: Final = 512
"""Number of samples that are generated together and sorted by length, to reduce padding."""
OTHERS_WEIGHT: Final = 0.3
"""Loss weight of tokens that are not the assistant's. The assistant's tokens have weight 1."""
SCORE_EVERY_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class LookupResult:
    """Final score, number of tokens with padding, and loss of each step over the assistant's tokens."""

    score: float
    num_tokens: int
    losses: list[float]


@dataclass(slots=True)
class LearningRate:
    """Schedule of the factor by which both learning rates are multiplied.

    Until the score reaches the target, the factor is 1 for 40 % of the time limit, and then falls linearly to 0.1 at
    its end. After that, it falls to 0.05 within a quarter of the time that it took to reach the target.
    """

    limit_s: float
    reached_s: float | None = None

    @property
    def end_s(self) -> float:
        """End of training, in seconds after its start."""
        return self.limit_s if self.reached_s is None else 1.25 * self.reached_s

    def factor(self, step: int, elapsed_s: float) -> float:
        """Return the factor for a step, counted from 0, at `elapsed_s` seconds after the start."""
        warm_up = min(1.0, (step + 1) / WARM_UP_STEPS)
        if self.reached_s is None or elapsed_s <= self.reached_s:
            return warm_up * self._before_target(elapsed_s)
        left = max(0.0, (self.end_s - elapsed_s) / (self.end_s - self.reached_s))
        return warm_up * max(0.05, left * self._before_target(self.reached_s))

    def _before_target(self, elapsed_s: float) -> float:
        return min(1.0, max(0.1, 1.0 - 0.9 * (elapsed_s / self.limit_s - 0.4) / 0.6))


def batches(draw: Callable[[], Sample], rng: random.Random, max_tokens: int) -> Iterator[list[Sample]]:
    """Yield batches without end. A batch has samples of similar length and at most `max_tokens` tokens with padding."""
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
    """Return token ids [B, T] and loss weights [B, T]. The padding is on the right and has weight 0."""
    length = max(len(sample.tokens) for sample in batch)
    tokens = torch.full((len(batch), length), TOKEN_OF[PAD])
    weights = torch.zeros(len(batch), length)
    for i, sample in enumerate(batch):
        tokens[i, : len(sample.tokens)] = torch.tensor(sample.tokens)
        weights[i, : len(sample.tokens)] = torch.where(torch.tensor(sample.learned), 1.0, OTHERS_WEIGHT)
    return tokens, weights


def losses(model: Qwen3ForCausalLM, tokens: Tensor) -> Tensor:
    """Return the cross-entropy of each token except the first, [B, T - 1]. Right padding needs no attention mask."""
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")


@torch.no_grad()
def lookup_score(model: Qwen3ForCausalLM, conversations: list[Sample]) -> float:
    """Return the share of conversations whose final answer greedy decoding would reproduce exactly."""
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
    """Train until the score on `held_out` has reached the target and the learning rate has decayed.

    If the target is not reached within `limit_s`, training stops and returns the score so far. Prints a line for each
    score. `clock` returns seconds.
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
