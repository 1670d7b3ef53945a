"""Trained tokens per second of a learner rank against a plain torch step on the same tokens, and packing efficiency.

    python -m benchmarks.learner [--cores 2] [--runs 7] [--model FOLDER]

The baseline is what one would write by hand for this model: packed tokens like ours, full logits and plain AdamW,
without transformers or DeepSpeed. Both train on the same 64 rollouts of 80 to 400 tokens, two fifths of them sampled.

`shared_prefix` is a forward and a backward pass of 4 x 4 rollouts of 280 tokens, which begin with 75 tokens of
instructions and 30 of their row, against the same without sharing: by default of the same model, else of --model.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from agent_rft.trainer.learner.learner_rank import LearnerRank
from agent_rft.trainer.learner.rank_config import GRADIENT_NORM, LearnerConfig
from agent_rft.trainer.model.micro_batches import MicroBatch, WeightedSequence, pack_sequences
from agent_rft.trainer.model.policy import DeviceBatch, Policy, load_policy
from agent_rft.types import TrainSegment
from benchmarks.common import Figure, in_turn, report, seconds

MODEL = Path(__file__).parents[1] / "examples" / "ledger" / "base"
RATE = 1e-5


def make_sequences(count: int, vocabulary: int, seed: int) -> list[TrainSegment]:
    random = np.random.default_rng(seed)
    sequences = []
    for length in random.integers(80, 400, count):
        mask = random.random(length) < 0.4
        mask[0] = False
        sequences.append(
            TrainSegment(
                token_ids=random.integers(0, vocabulary, length).astype(np.int32),
                loss_mask=mask,
                logprobs=np.where(mask, -5.0, 0.0).astype(np.float32),
                versions=np.where(mask, 0, -1).astype(np.int32),
                advantage=float(random.normal()),
            )
        )
    return sequences


def sharing_runs(policy: Policy, runs: int) -> tuple[tuple[float, float], ...]:
    """Tokens per second with and without sharing what rollouts begin with in common."""
    random = np.random.default_rng(2)
    vocabulary = policy.model.config.vocab_size
    instructions, *questions = (random.integers(0, vocabulary, length) for length in (75, 30, 30, 30, 30))
    weights = (np.arange(280) >= 105).astype(np.float32)
    sequences = []
    for question in questions * 4:
        ids = np.concatenate([instructions, question, random.integers(0, vocabulary, 175)])
        sequences.append(WeightedSequence(ids.astype(np.int32), weights))
    [[micro_batch]] = pack_sequences(sequences, num_ranks=1, budget=280 * len(sequences))

    def speed(share: bool) -> float:
        batch = DeviceBatch.from_micro_batch(micro_batch, torch.device("cpu"), share=share)
        taken_s = seconds(lambda: policy(batch)[0].sum().backward())
        policy.zero_grad()
        return micro_batch.num_tokens / taken_s

    return in_turn(lambda: speed(True), lambda: speed(False), runs + 1)[1:]


class PlainModel(nn.Module):
    """A minimal Qwen3 with tied embeddings, over packed tokens."""

    def __init__(self, state: dict[str, Tensor], heads: int, head_dim: int, theta: float, eps: float) -> None:
        super().__init__()
        self.weights = nn.ParameterDict({name.replace(".", "/"): nn.Parameter(w.clone()) for name, w in state.items()})
        self.layers = 1 + max(int(name.split(".")[2]) for name in state if name.startswith("model.layers."))
        self.heads, self.head_dim, self.eps = heads, head_dim, eps
        self.frequencies = theta ** -(torch.arange(0, head_dim, 2) / head_dim)

    def forward(self, batch: DeviceBatch) -> Tensor:
        w = {name.removeprefix("model/"): weight for name, weight in self.weights.items()}
        angles = batch.positions[:, None] * self.frequencies
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        x = functional.embedding(batch.token_ids, w["embed_tokens/weight"])
        for layer in range(self.layers):
            p = {n.removeprefix(f"layers/{layer}/"): t for n, t in w.items() if n.startswith(f"layers/{layer}/")}
            x = x + self.attention(self.norm(x, p["input_layernorm/weight"]), p, cos, sin, batch.packing.lengths)
            y = self.norm(x, p["post_attention_layernorm/weight"])
            gated = functional.silu(y @ p["mlp/gate_proj/weight"].T) * (y @ p["mlp/up_proj/weight"].T)
            x = x + gated @ p["mlp/down_proj/weight"].T
        hidden = self.norm(x, w["norm/weight"])[batch.logits_indices]
        scores = (hidden @ w["embed_tokens/weight"].T).log_softmax(-1)
        logprobs: Tensor = scores.gather(1, batch.targets[:, None])[:, 0]
        return logprobs

    def attention(self, x: Tensor, p: dict[str, Tensor], cos: Tensor, sin: Tensor, lengths: tuple[int, ...]) -> Tensor:
        q, k, v = ((x @ p[f"self_attn/{n}_proj/weight"].T).unflatten(-1, (-1, self.head_dim)) for n in "qkv")
        q = rotate(self.norm(q, p["self_attn/q_norm/weight"]), cos, sin)
        k = rotate(self.norm(k, p["self_attn/k_norm/weight"]), cos, sin)
        rows = zip(*(t.transpose(0, 1)[None].split(lengths, 2) for t in (q, k, v)), strict=True)
        outputs = [functional.scaled_dot_product_attention(q, k, v, is_causal=True) for q, k, v in rows]
        joined: Tensor = torch.cat(outputs, 2)[0].transpose(0, 1).flatten(1)
        return joined @ p["self_attn/o_proj/weight"].T

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, weight.shape, weight, self.eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def plain_step(model: PlainModel, optimizer: torch.optim.Optimizer, micro_batches: list[MicroBatch]) -> None:
    total = sum(batch.num_trained for batch in micro_batches)
    for micro_batch in micro_batches:
        batch = DeviceBatch.from_micro_batch(micro_batch, torch.device("cpu"))
        ratio = (model(batch) - batch.logprobs).exp()
        clipped = ratio.clamp(0.8, 1.28)
        loss = -torch.minimum(ratio * batch.advantages, clipped * batch.advantages).sum() / total
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM)
    optimizer.step()
    optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--model", type=Path, default=MODEL)
    options = parser.parse_args()
    config = LearnerConfig(MODEL, steps=1000, learning_rate=RATE, rank_cores=options.cores)
    rank = LearnerRank(config)
    policy = rank.policy
    settings = policy.model.config
    state = {name: weight.detach() for name, weight in policy.model.named_parameters()}
    plain = PlainModel(
        state,
        settings.num_attention_heads,
        settings.head_dim,
        settings.rope_parameters["rope_theta"],
        settings.rms_norm_eps,
    )
    optimizer = torch.optim.AdamW(plain.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    micro_batches = pack_sequences(
        make_sequences(64, settings.vocab_size, seed=0), num_ranks=1, budget=config.micro_batch_tokens
    )
    batch = DeviceBatch.from_micro_batch(micro_batches[0][0], torch.device("cpu"))
    with torch.no_grad():
        gap = float((plain(batch) - policy(batch)[0]).abs().max())
    assert gap < 1e-3, f"the baseline computes another model: log-probabilities differ by {gap}"
    tokens = sum(micro_batch.num_trained for micro_batch in micro_batches[0])
    runs = in_turn(
        lambda: tokens / seconds(lambda: rank.step([micro_batches[0]], version=0)),
        lambda: tokens / seconds(lambda: plain_step(plain, optimizer, micro_batches[0])),
        options.runs + 1,
    )
    rank.close()
    sharing = sharing_runs(load_policy(options.model, torch.float32, temperature=1.0), options.runs)
    # A hard case for packing: few sequences for many micro-batches on four ranks.
    ranks = pack_sequences(make_sequences(61, settings.vocab_size, seed=1), num_ranks=4, budget=1024)
    packed = [batch for rank in ranks for batch in rank]
    padding = sum(batch.num_useful for batch in packed) / sum(batch.num_tokens for batch in packed)
    figures = [Figure("learner_speed", "tokens/s", runs[1:]), Figure("shared_prefix", "tokens/s", sharing)]
    report([*figures, Figure("padding", "share", ((padding, 1.0),))])


if __name__ == "__main__":
    main()
