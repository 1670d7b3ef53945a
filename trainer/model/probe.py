"""Shows on a few tokens that packed sequences do not see each other and that the head is the model's own.

Where this holds, an architecture can be trained: by a fact about the model, not by its name. `shares_prefixes` shows in
the same way whether its sequences can share what they begin with.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agent_rft.errors import UserError
from agent_rft.trainer.model.batch import WeightedSequence, pack
from agent_rft.trainer.model.policy import DeviceBatch, Policy

LENGTH = 9
"""Tokens of a sequence: more than a short convolution sees at once."""
LEAK = {torch.float32: 0.001, torch.bfloat16: 0.05}
"""How much another sequence may change a token's log-probability, as a share of what the first token of its own
changes. It should be nothing, but experts that get other tokens too may round their products differently."""
LOGIT_ERROR = {torch.float32: 0.001, torch.bfloat16: 0.5}
"""How far the head's log-probabilities may be from those by the model's own logits, which are rounded to its dtype."""
REMEDY = "use a model of an architecture that the manual lists"


def refuse_if_wrong(policy: Policy, device: torch.device) -> None:
    """Make four passes of some 16 tokens. Under ZeRO 3, all ranks take part.

    Raises:
        UserError: Packed sequences see each other, or the model changes its logits after the head.
    """
    name, training = type(policy.model).__name__, policy.training
    policy.eval()
    try:
        with torch.no_grad():
            leak, error = _leak(policy, device), _logit_error(policy, device)
    except (AttributeError, KeyError, TypeError) as failure:  # an argument that it does not hand on to its layers
        what = f"{name} takes no packed sequences ({type(failure).__name__}: {failure})"
        raise UserError(f"{what}; {REMEDY}") from failure
    finally:
        policy.train(training)
    dtype = policy.model.get_output_embeddings().weight.dtype
    if not leak <= LEAK[dtype]:
        what = f"{name} lets packed rollouts see each other: one changes another by {leak:.2g} of its own effect"
        raise UserError(f"{what}; {REMEDY}")
    if not error <= LOGIT_ERROR[dtype]:
        raise UserError(f"{name} changes its logits, by {error:.2g}, in a way that the learner does not know; {REMEDY}")


def shares_prefixes(policy: Policy, device: torch.device) -> bool:
    """Whether what two sequences begin with in common can be computed once, to the precision of float32.

    Makes two passes of some 50 tokens. Under ZeRO 3, all ranks take part.
    """
    first, second, other = _sequences(policy)
    prefix = np.concatenate([other, other])[1:]  # MIN_SHARED and one more, which no chunk of attention divides
    sequences = [np.concatenate([prefix, tail]) for tail in (first, second)]
    training = policy.training
    policy.eval()
    batches = [_batch(sequences, device, share=share) for share in (False, True)]
    with torch.no_grad():
        alone, shared = (policy(batch)[0] for batch in batches)
    policy.train(training)
    tried = batches[1].packing.parents is not None
    return tried and float((alone - shared).abs().max()) <= LOGIT_ERROR[torch.float32]


def _leak(policy: Policy, device: torch.device) -> float:
    """How much one sequence changes what is predicted in the next one, as a share of what its own first token does."""
    first, second, other = _sequences(policy)

    def predicted(*sequences: NDArray[np.int32]) -> Tensor:
        """Log-probabilities [LENGTH - 2] of the last sequence, without that of its second token."""
        logprobs: Tensor = policy(_batch(sequences, device))[0]
        return logprobs[2 - LENGTH :]

    packed = predicted(second, first)
    distances = partial(torch.dist, packed, p=torch.inf)
    by_other = float(distances(predicted(other, first)))
    by_own = float(distances(predicted(second, np.concatenate([other[:1], first[1:]]))))
    return by_other / by_own if by_other > 0 else by_other


def _logit_error(policy: Policy, device: torch.device) -> float:
    """How far log-probabilities are from those by the logits that the model itself returns for one sequence."""
    sequence = _sequences(policy)[0]
    batch = _batch((sequence,), device)
    ids, positions = batch.token_ids[None], batch.positions[None]
    output = policy.model(input_ids=ids, position_ids=positions, packing=batch.packing, use_cache=False)
    scores = output.logits[0].float() / policy.model.get_output_embeddings().temperature
    own = scores.log_softmax(-1).gather(1, batch.targets[:, None])[:, 0]
    return float((own - policy(batch)[0]).abs().max())


def _batch(sequences: Sequence[NDArray[np.int32]], device: torch.device, share: bool = False) -> DeviceBatch:
    rows = [WeightedSequence(s, (np.arange(len(s)) > 0).astype(np.float32)) for s in sequences]
    [[batch]] = pack(rows, num_ranks=1, budget=sum(map(len, sequences)))
    return DeviceBatch.of(batch, device, share=share)


def _sequences(policy: Policy) -> NDArray[np.int32]:
    """Three sequences [3, LENGTH], the same on all ranks."""
    vocabulary = policy.model.config.get_text_config().vocab_size
    return np.random.default_rng(0).integers(0, vocabulary, (3, LENGTH)).astype(np.int32)
