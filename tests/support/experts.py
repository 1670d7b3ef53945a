"""What an engine sampled, as the learner gets it, with or without the experts that the engine chose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from agent_rft.actors.engine.vllm_engine import Completion
from agent_rft.trainer.model.micro_batches import pack_sequences
from agent_rft.trainer.model.policy import DeviceBatch, Policy
from agent_rft.types import TrainSegment

Sampled = tuple[list[int], Completion]
"""A prompt and its completion."""


def sequence_of(sampled: Sampled, *, replayed: bool) -> TrainSegment:
    prompt, completion = sampled
    ids = np.array([*prompt, *completion.token_ids], np.int32)
    mask = np.arange(len(ids)) >= len(prompt)
    logprobs = np.concatenate([np.zeros(len(prompt), np.float32), completion.logprobs])
    experts = None
    if replayed:
        assert completion.experts is not None and len(completion.experts) == len(ids) - 1
        experts = np.concatenate([completion.experts, completion.experts[-1:]])
    return TrainSegment(ids, mask, logprobs, np.where(mask, 0, -1).astype(np.int32), 1.0, experts=experts)


def gaps(policy: Policy, sampled: Sequence[Sampled], *, replayed: bool) -> NDArray[np.float32]:
    """|log-probability of the learner - of the engine| of each sampled token."""
    [batches] = pack_sequences([sequence_of(one, replayed=replayed) for one in sampled], num_ranks=1, budget=2_000)
    found = []
    with torch.no_grad():
        for batch in batches:
            logprobs = policy(DeviceBatch.from_micro_batch(batch, torch.device("cpu")))[0].float().numpy()
            found.append(np.abs(logprobs - batch.logprobs))
    return np.concatenate(found)
