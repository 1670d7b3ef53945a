"""A learner rank with a mixture of experts computes log-probabilities with its own or with replayed experts."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agent_rft.trainer.learner.learner_rank import LearnerRank
from agent_rft.trainer.learner.rank_config import LearnerConfig
from tests.support.shapes import shape_config, tiny_shape
from tests.support.tiny_model import write_tiny_model

TOKENS = np.arange(3, 40, dtype=np.int32)


def compute_logprobs(model: Path, replayed: list[NDArray[np.int16] | None]) -> list[NDArray[np.float32]]:
    rank = LearnerRank(LearnerConfig(model, steps=1, learning_rate=1e-3))
    return [rank.logprobs(TOKENS, experts) for experts in replayed]


def test_replayed_experts_replace_the_learner_s_own_choices(tmp_path: Path) -> None:
    tiny_shape("qwen3_moe").save_pretrained(write_tiny_model(tmp_path))
    config = shape_config("qwen3_moe")
    shape = (len(TOKENS), config.num_hidden_layers, config.num_experts_per_tok)
    unknown = np.full(shape, -1, np.int16)  # the router's own choice
    others = np.broadcast_to(np.arange(shape[-1], dtype=np.int16), shape).copy()
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # its process group lasts as long as the process
        own, same, replayed = pool.submit(compute_logprobs, tmp_path, [None, unknown, others]).result()
    assert own.shape == (len(TOKENS) - 1,) and own.tobytes() == same.tobytes()
    assert np.abs(own - replayed).mean() > 1e-4
