"""Chunked log-probabilities against a plain log-softmax: values, entropies, gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agent_rft.trainer.algorithm.loss import clipped_surrogate
from agent_rft.trainer.model.logprobs import LogitTransform, TokenLogProbs

VOCABULARY, SIZE, NUM_ROWS = 13, 5, 7
ROW_BYTES = 4 * VOCABULARY
CHUNKS = [ROW_BYTES, 3 * ROW_BYTES, 1 << 20]


@pytest.fixture
def inputs() -> tuple[nn.Parameter, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(VOCABULARY, SIZE, dtype=torch.float64, generator=generator))
    hidden = torch.randn(NUM_ROWS, SIZE, dtype=torch.float64, generator=generator).requires_grad_()
    return weight, hidden, torch.randint(VOCABULARY, (NUM_ROWS,), generator=generator)


def plain(
    weight: Tensor, hidden: Tensor, targets: Tensor, temperature: float, allowed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    scores = hidden @ weight.T / temperature
    if allowed is not None:
        scores = scores.where(allowed, -torch.inf)
    scores = scores.log_softmax(-1)
    return scores.gather(1, targets[:, None])[:, 0], -(scores.exp() * scores).nan_to_num().sum(-1)


def masks_of(allowed: Tensor) -> tuple[Tensor, Tensor]:
    """The masks of `allowed` [M, V], and the row of each target."""
    bits = np.packbits(np.pad(allowed.numpy(), [(0, 0), (0, -allowed.shape[1] % 32)]), axis=1, bitorder="little")
    distinct, which = np.unique(bits, axis=0, return_inverse=True)
    return torch.tensor(distinct.view(np.int32)), torch.tensor(which)


@pytest.mark.parametrize("chunk_bytes", CHUNKS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_equal_those_of_full_logits(
    inputs: tuple[nn.Parameter, Tensor, Tensor], chunk_bytes: int, temperature: float
) -> None:
    weight, hidden, targets = inputs
    logprobs, entropies = TokenLogProbs(weight, temperature, chunk_bytes)(hidden, targets)
    expected, expected_entropies = plain(weight, hidden, targets, temperature)
    torch.testing.assert_close(logprobs, expected)
    torch.testing.assert_close(entropies, expected_entropies)
    outer = torch.linspace(-1, 1, NUM_ROWS, dtype=torch.float64)
    for ours, theirs in zip(
        torch.autograd.grad(logprobs @ outer, (hidden, weight)),
        torch.autograd.grad(expected @ outer, (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("chunk_bytes", CHUNKS)
def test_tokens_that_a_mask_forbids_have_no_probability_and_no_gradient(
    inputs: tuple[nn.Parameter, Tensor, Tensor], chunk_bytes: int
) -> None:
    weight, hidden, targets = inputs
    allowed = torch.rand(NUM_ROWS, VOCABULARY, generator=torch.Generator().manual_seed(3)) < 0.4
    allowed[0] = True
    allowed[1] = False  # only the target is left, and its logarithm is 0
    allowed[torch.arange(NUM_ROWS), targets] = True
    logprobs, entropies = TokenLogProbs(weight, 0.7, chunk_bytes)(hidden, targets, masks_of(allowed))
    expected, expected_entropies = plain(weight, hidden, targets, 0.7, allowed)
    assert (logprobs[1], entropies[1]) == (0, 0)
    torch.testing.assert_close(logprobs, expected)
    torch.testing.assert_close(entropies, expected_entropies)
    outer = torch.linspace(-1, 1, NUM_ROWS, dtype=torch.float64)
    for ours, theirs in zip(
        torch.autograd.grad(logprobs @ outer, (hidden, weight)),
        torch.autograd.grad(expected @ outer, (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_the_trained_gradient_is_that_of_the_policy_that_sampled() -> None:
    """Its mean over the masked policy's samples is the gradient of that policy's mean reward; unmasked it is not."""
    generator = torch.Generator().manual_seed(4)
    weight = nn.Parameter(torch.randn(VOCABULARY, SIZE, dtype=torch.float64, generator=generator))
    hidden = torch.randn(1, SIZE, dtype=torch.float64, generator=generator).expand(VOCABULARY, -1)
    rewards = torch.randn(VOCABULARY, dtype=torch.float64, generator=generator)
    allowed = torch.arange(VOCABULARY) % 3 == 0
    policy = (hidden[0] @ weight.T).where(allowed, -torch.inf).softmax(-1)
    [exact] = torch.autograd.grad(policy @ rewards, weight)
    tokens = torch.arange(VOCABULARY)[allowed]

    def trained(masks: tuple[Tensor, Tensor] | None) -> Tensor:
        logprobs, _ = TokenLogProbs(weight)(hidden[allowed], tokens, masks)
        losses = clipped_surrogate(logprobs, logprobs.detach(), rewards[allowed], 0.2, 0.28)
        [gradient] = torch.autograd.grad(losses @ policy[allowed].detach(), weight)
        return -gradient

    torch.testing.assert_close(trained(masks_of(allowed.expand(len(tokens), -1))), exact)
    assert (trained(None) - exact).norm() > 0.1 * exact.norm()


def test_gradients_agree_with_finite_differences(inputs: tuple[nn.Parameter, Tensor, Tensor]) -> None:
    weight, hidden, targets = inputs
    head = TokenLogProbs(weight, 1.3, 2 * ROW_BYTES)

    def of(hidden: Tensor, weight: Tensor) -> Tensor:
        return torch.func.functional_call(head, {"weight": weight}, (hidden, targets))[0]

    assert torch.autograd.gradcheck(of, (hidden, weight))


@pytest.mark.parametrize("change", [LogitTransform(0.3), LogitTransform(softcap=1.5), LogitTransform(2.0, 0.7)])
def test_a_bias_and_changed_logits_are_those_of_full_logits(
    inputs: tuple[nn.Parameter, Tensor, Tensor], change: LogitTransform
) -> None:
    weight, hidden, targets = inputs
    bias = nn.Parameter(torch.linspace(-2, 2, VOCABULARY, dtype=torch.float64))
    allowed = torch.rand(NUM_ROWS, VOCABULARY, generator=torch.Generator().manual_seed(3)) < 0.6
    allowed[torch.arange(NUM_ROWS), targets] = True
    logits = (hidden @ weight.T + bias) * change.scale
    if change.softcap is not None:
        logits = change.softcap * torch.tanh(logits / change.softcap)
    expected = (logits / 0.7).where(allowed, -torch.inf).log_softmax(-1).gather(1, targets[:, None])[:, 0]
    head = TokenLogProbs(weight, 0.7, 2 * ROW_BYTES, bias, change)
    logprobs, _ = head(hidden, targets, masks_of(allowed))
    torch.testing.assert_close(logprobs, expected)
    outer = torch.linspace(-1, 1, NUM_ROWS, dtype=torch.float64)
    for ours, theirs in zip(
        torch.autograd.grad(logprobs @ outer, (hidden, weight, bias)),
        torch.autograd.grad(expected @ outer, (hidden, weight, bias)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_without_targets_a_head_returns_its_logits(inputs: tuple[nn.Parameter, Tensor, Tensor]) -> None:
    weight, hidden, _ = inputs
    torch.testing.assert_close(TokenLogProbs(weight, 0.7)(hidden), hidden @ weight.T)


def test_no_gradient_flows_through_entropies(inputs: tuple[nn.Parameter, Tensor, Tensor]) -> None:
    weight, hidden, targets = inputs
    assert not TokenLogProbs(weight)(hidden, targets)[1].requires_grad


def test_half_precision_comes_out_in_float32_and_its_weight_gradient_is_summed_in_float32() -> None:
    generator = torch.Generator().manual_seed(1)
    exact = torch.randn(VOCABULARY, SIZE, generator=generator)
    weight = nn.Parameter(exact.bfloat16())
    hidden = torch.randn(256, SIZE, generator=generator).bfloat16()
    targets = torch.randint(VOCABULARY, (256,), generator=generator)
    logprobs, entropies = TokenLogProbs(weight, chunk_bytes=4 * ROW_BYTES)(hidden, targets)
    assert (logprobs.dtype, entropies.dtype) == (torch.float32, torch.float32)
    logprobs.sum().backward()
    reference = nn.Parameter(weight.detach().float())
    plain(reference, hidden.float(), targets, 1.0)[0].sum().backward()
    assert weight.grad is not None
    assert reference.grad is not None
    error = (weight.grad.float() - reference.grad).norm() / reference.grad.norm()
    assert error < 0.01  # 64 chunks summed in bfloat16 would be off by several times that


def test_logits_of_half_precision_factors_are_not_rounded_to_half_precision() -> None:
    generator = torch.Generator().manual_seed(2)
    weight = nn.Parameter(8 * torch.randn(VOCABULARY, 64, generator=generator).bfloat16())  # logits of about +-60
    hidden = torch.randn(256, 64, generator=generator).bfloat16().requires_grad_()
    targets = torch.randint(VOCABULARY, (256,), generator=generator)
    exact_weight, exact_hidden = (tensor.detach().double().requires_grad_() for tensor in (weight, hidden))
    exact, _ = plain(exact_weight, exact_hidden, targets, 1.0)
    ours, _ = TokenLogProbs(weight, chunk_bytes=32 * ROW_BYTES)(hidden, targets)
    rounded = (hidden @ weight.T).float().log_softmax(-1).gather(1, targets[:, None])[:, 0]
    assert (rounded - exact).abs().mean() > 0.01
    assert (ours - exact).abs().max() < 1e-4  # of 256 x 13 sums in float32
    for d_exact, d_ours, d_rounded in zip(
        torch.autograd.grad(exact.sum(), (exact_hidden, exact_weight)),
        torch.autograd.grad(ours.sum(), (hidden, weight)),
        torch.autograd.grad(rounded.sum(), (hidden, weight)),
        strict=True,
    ):
        error, before = ((found.double() - d_exact).norm() / d_exact.norm() for found in (d_ours, d_rounded))
        assert error < min(0.005, before / 2), "only the gradient itself is in bfloat16"


def test_a_batch_without_trained_tokens_has_a_gradient_of_zero(inputs: tuple[nn.Parameter, Tensor, Tensor]) -> None:
    weight, hidden, targets = inputs
    TokenLogProbs(weight)(hidden[:0], targets[:0])[0].sum().backward()
    assert weight.grad is not None
    assert weight.grad.abs().sum() == 0
