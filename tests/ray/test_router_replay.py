"""A mixture of experts on a real engine: the learner computes with the experts that the engine chose."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.vllm_engine import Engine, PromptScores
from agent_rft.trainer.model.policy import load_policy
from tests.support.experts import Sampled, gaps
from tests.support.shapes import ENGINE_SETTINGS, shape_config, tiny_shape
from tests.support.tiny_model import write_tiny_model

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]

PROMPT = np.random.default_rng(1).integers(0, 256, 70).tolist()
NUM_SAMPLED = 24
NOISE = 0.05


def gaps_of(folder: Path, sampled: Sequence[Sampled], noise: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The gaps without and with replay of a learner whose routers are changed by `noise`."""
    policy, generator = load_policy(folder, torch.float32, 1.0), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if name.endswith(("gate.weight", "router.weight", "router.layer.weight")):
                parameter.add_(noise * parameter.std() * torch.randn(parameter.shape, generator=generator))
    return gaps(policy, sampled, replayed=False), gaps(policy, sampled, replayed=True)


async def two_turns(folder: Path) -> tuple[list[Sampled], list[Sampled], PromptScores]:
    """Completions that share most of their prompts, a second one of each, and the scores of the first as a prompt.

    Most of the second prompts are in the cache.
    """
    engine = Engine(EngineConfig(str(folder), "float32", 1024, max_num_seqs=4, seed=0, reports_experts=True))

    async def sample(prompt: list[int], seed: int) -> Sampled:
        return prompt, await engine.generate(prompt, max_tokens=NUM_SAMPLED, seed=seed, temperature=1.0)

    try:
        await engine.start()
        first = await asyncio.gather(*(sample(PROMPT[: 64 + seed], seed) for seed in range(6)))
        second = await asyncio.gather(*(sample([*prompt, *one.token_ids, 7], 9) for prompt, one in first))
        prompt, completion = first[0]
        return first, second, await engine.score_prompt([*prompt, *completion.token_ids])
    finally:
        engine.shutdown()


@pytest.mark.parametrize(
    "shape",
    [
        "qwen3_moe",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("gpt_oss", "glm4_moe", "deepseek_v3", "granitemoe", "granitemoehybrid", "llama4")
        ),
    ],
)
async def test_the_learner_computes_with_the_engines_choices(shape: str, tmp_path: Path) -> None:
    settings = ENGINE_SETTINGS.get(shape, {})
    tiny_shape(shape, **settings).save_pretrained(write_tiny_model(tmp_path))
    first, second, scores = await two_turns(tmp_path)
    config = shape_config(shape, **settings).get_text_config()
    num_layers = config.num_hidden_layers
    for _, completion in (*first, *second):
        assert completion.experts is not None and completion.experts.shape[1] == num_layers
    for (_, before), (prompt, after) in zip(first, second, strict=True):
        assert before.experts is not None and after.experts is not None
        assert (after.experts[: len(prompt) - 2] == before.experts).all()
    # Read as a prompt, as the canary does, tokens get the experts and log-probabilities with which they were sampled.
    prompt, completion = first[0]
    assert scores.experts is not None and len(scores.experts) == len(prompt) + len(completion.token_ids)
    assert completion.experts is not None and (scores.experts[:-1] == completion.experts).mean() > 0.99
    assert scores.logprobs[len(prompt) - 1 :] == pytest.approx(completion.logprobs, abs=1e-4)
    # With its own routers the learner chooses the same, so layers and experts have the same numbers in both.
    without, replayed = gaps_of(tmp_path, [*first, *second], 0.0)
    assert without.max() < 0.01 and replayed.max() < 0.01
    # With others it would not, which is then no matter but for the weights of the experts.
    without, replayed = gaps_of(tmp_path, [*first, *second], NOISE)
    assert replayed.mean() < 0.8 * without.mean()
