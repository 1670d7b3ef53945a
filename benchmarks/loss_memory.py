"""Peak memory of loss and log-probabilities, forward and backward, against full logits.

    python -m benchmarks.loss_memory [--tokens 2048] [--vocabulary 150000] [--hidden 896] [--device cpu]

Peak memory is counted without what both sides must hold anyway: hidden states, the head's weight and the gradients of
both. Each side runs in a separate process; its time is reported as well.
"""

from __future__ import annotations

import argparse
import multiprocessing
from pathlib import Path

import torch
from torch import Tensor, nn

from agent_rft.trainer.algorithm.loss import clipped_surrogate
from agent_rft.trainer.model.logprobs import TokenLogProbs
from benchmarks.common import Figure, report, seconds

MIB = 1 << 20


def in_full(hidden: Tensor, weight: nn.Parameter, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies in the straightforward way."""
    scores = (hidden @ weight.T).float().log_softmax(-1)
    entropies = -(scores.detach().exp() * scores.detach()).sum(-1)
    return scores.gather(1, targets[:, None])[:, 0], entropies


def peak_mib(chunked: bool, tokens: int, vocabulary: int, hidden_size: int, device: str) -> tuple[float, float]:
    """Peak memory in MiB without inputs and gradients, and the duration in seconds."""
    torch.set_num_threads(1)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    hidden = torch.randn(tokens, hidden_size, device=device, dtype=dtype, requires_grad=True)
    weight = nn.Parameter(torch.randn(vocabulary, hidden_size, device=device, dtype=dtype) / hidden_size**0.5)
    targets = torch.randint(vocabulary, (tokens,), device=device)
    advantages = torch.randn(tokens, device=device)
    head = TokenLogProbs(weight) if chunked else None

    def work() -> None:
        logprobs, _ = head(hidden, targets) if head else in_full(hidden, weight, targets)
        clipped_surrogate(logprobs, logprobs.detach(), advantages, 0.2, 0.28).sum().backward()

    start_counting(device)
    took = seconds(work)
    return peak_bytes(device) / MIB, took


def start_counting(device: str) -> None:
    if device == "cpu":
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, see proc(5)
    else:
        torch.cuda.reset_peak_memory_stats()


def peak_bytes(device: str) -> int:
    """The peak minus current memory, which at this point is only inputs and gradients."""
    if device == "cpu":
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return (int(status["VmHWM"].split()[0]) - int(status["VmRSS"].split()[0])) << 10
    return torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=150_000)
    parser.add_argument("--hidden", type=int, default=896)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    sides = []
    for chunked in (True, False):
        with context.Pool(1) as pool:
            shape = (options.tokens, options.vocabulary, options.hidden, options.device)
            sides.append(pool.apply(peak_mib, (chunked, *shape)))
    (ours, ours_s), (full, full_s) = sides
    logits = options.tokens * options.vocabulary * 4 / MIB
    report(
        [
            Figure("loss_memory", "MiB", ((ours, full),)),
            Figure("loss_memory_vs_logits", "MiB", ((ours, logits),)),
            Figure("loss_time", "s", ((ours_s, full_s),)),
        ]
    )


if __name__ == "__main__":
    main()
