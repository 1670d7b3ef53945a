"""Tests of a loaded model on a few tokens.

`check_model` tests that packed sequences stay separate. It also tests that the `TokenLogProbs` head gives the same
log-probabilities as the model's own logits. Every architecture that passes can be trained, whatever its name.
`can_share_prefixes` tests whether a common prefix of several sequences can be computed only once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agent_rft.errors import UserError
from agent_rft.trainer.model.micro_batches import WeightedSequence, pack_sequences
from agent_rft.trainer.model.policy import DeviceBatch, Policy

LENGTH = 9
"""Tokens per sequence. It exceeds the kernel size of short convolutions."""
MAX_LEAK = {torch.float32: 0.001, torch.bfloat16: 0.05}
"""Largest accepted result of `_measure_leak`. It is not 0, because experts may round differently in larger batches."""
MAX_LOGIT_ERROR = {torch.float32: 0.001, torch.bfloat16: 0.5}
"""Largest accepted result of `_measure_logit_error`. It is not 0, because the model rounds its own logits."""
FIX = "use a model whose architecture is in the manual's list"


def check_model(policy: Policy, device: torch.device) -> None:
    """Test the policy with four passes of about 16 tokens. Under ZeRO 3, all ranks must call this together.

    Raises:
        UserError: Packed sequences see each other, or the model changes its logits after the head.
    """
    name, training = type(policy.model).__name__, policy.training
    policy.eval()
    try:
        with torch.no_grad():
            leak, error = _measure_leak(policy, device), _measure_logit_error(policy, device)
    except (AttributeError, KeyError, TypeError) as failure:  # the model does not pass an argument to its layers
        what = f"{name} does not support packed sequences ({type(failure).__name__}: {failure})"
        raise UserError(f"{what}; {FIX}") from failure
    finally:
        policy.train(training)
    dtype = policy.model.get_output_embeddings().weight.dtype
    if not leak <= MAX_LEAK[dtype]:
        what = (
            f"{name} does not separate packed rollouts: a rollout depends on the preceding rollout {leak:.2g} times as "
            "much as on its own first token"
        )
        raise UserError(f"{what}; {FIX}")
    if not error <= MAX_LOGIT_ERROR[dtype]:
        what = (
            f"the learner does not support {name}, which changes the logits after the output head (the "
            f"log-probabilities differ by {error:.2g})"
        )
        raise UserError(f"{what}; {FIX}")


def can_share_prefixes(policy: Policy, device: torch.device) -> bool:
    """Return whether float32 log-probabilities stay equal if a common prefix is computed only once.

    Makes two passes of about 50 tokens. Under ZeRO 3, all ranks must call this together.
    """
    first, second, other = _sequences(policy)
    prefix = np.concatenate([other, other])[1:]  # MIN_SHARED + 1 tokens, not a multiple of a chunk size
    sequences = [np.concatenate([prefix, tail]) for tail in (first, second)]
    training = policy.training
    policy.eval()
    batches = [_batch(sequences, device, share=share) for share in (False, True)]
    with torch.no_grad():
        unshared, shared = (policy(batch)[0] for batch in batches)
    policy.train(training)
    has_shared = batches[1].packing.parents is not None
    return has_shared and float((unshared - shared).abs().max()) <= MAX_LOGIT_ERROR[torch.float32]


def _measure_leak(policy: Policy, device: torch.device) -> float:
    """Return how much the log-probabilities of a sequence depend on the sequence that is packed before it.

    The result is a ratio: the change if the earlier sequence changes, divided by the change if the first token of the
    sequence itself changes. 0 means no dependence.
    """
    first, second, other = _sequences(policy)

    def predict(*sequences: NDArray[np.int32]) -> Tensor:
        """Return log-probabilities [LENGTH - 2] of the last sequence, from its third token on."""
        logprobs: Tensor = policy(_batch(sequences, device))[0]
        return logprobs[2 - LENGTH :]

    packed = predict(second, first)
    distances = partial(torch.dist, packed, p=torch.inf)
    by_other = float(distances(predict(other, first)))
    by_own = float(distances(predict(second, np.concatenate([other[:1], first[1:]]))))
    return by_other / by_own if by_other > 0 else by_other


def _measure_logit_error(policy: Policy, device: torch.device) -> float:
    """Return the largest difference between log-probabilities from the head and from the model's own logits."""
    sequence = _sequences(policy)[0]
    batch = _batch((sequence,), device)
    ids, positions = batch.token_ids[None], batch.positions[None]
    output = policy.model(input_ids=ids, position_ids=positions, packing=batch.packing, use_cache=False)
    scores = output.logits[0].float() / policy.model.get_output_embeddings().temperature
    own = scores.log_softmax(-1).gather(1, batch.targets[:, None])[:, 0]
    return float((own - policy(batch)[0]).abs().max())


def _batch(sequences: Sequence[NDArray[np.int32]], device: torch.device, share: bool = False) -> DeviceBatch:
    rows = [WeightedSequence(s, (np.arange(len(s)) > 0).astype(np.float32)) for s in sequences]
    [[batch]] = pack_sequences(rows, num_ranks=1, budget=sum(map(len, sequences)))
    return DeviceBatch.from_micro_batch(batch, device, share=share)


def _sequences(policy: Policy) -> NDArray[np.int32]:
    """Return three random sequences [3, LENGTH], the same on all ranks."""
    vocabulary = policy.model.config.get_text_config().vocab_size
    return np.random.default_rng(0).integers(0, vocabulary, (3, LENGTH)).astype(np.int32)
