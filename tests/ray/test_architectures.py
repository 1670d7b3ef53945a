"""Engine and learner agree, also about published weights, for each architecture that vLLM has on CPUs."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.vllm_engine import Engine
from agent_rft.actors.weights.weight_bucket import MASK, compute_checksum
from agent_rft.trainer.learner.checkpoint_weights import CheckpointWeights
from agent_rft.trainer.learner.host_buffer import HostBuffer
from agent_rft.trainer.model.micro_batches import WeightedSequence, pack_sequences
from agent_rft.trainer.model.policy import DeviceBatch, load_policy
from docs.generator.architectures import AGREES, FOUND
from tests.support.shapes import ENGINE_SETTINGS, shape_config
from tests.support.tiny_model import write_tiny_model

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]

IDS = np.random.default_rng(1).integers(0, 256, 40).tolist()
BUCKET_BYTES = 50_000
WITH_ENGINE = [name for name, row in json.loads(FOUND.read_text()).items() if row["engine"] in ("", AGREES)]
"""All but those of which the manual says why vLLM cannot run them on a CPU, and without models that see: vLLM needs
torchvision for them, which its build for CPUs has not."""
REWRITTEN = {"llama4": ("q_proj.weight", "k_proj.weight")}
"""Tensors of which no parameter takes the values as they are, since vLLM changes their order first."""


def trained(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """The model with all weights changed by much, those too that no training changes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in {id(tensor): tensor for tensor in model.state_dict(keep_vars=True).values()}.values():
            tensor.add_(0.05 * torch.randn(tensor.shape, generator=generator))
    return model


def logprobs(model: PreTrainedModel) -> NDArray[np.float32]:
    ids = torch.tensor([IDS])
    with torch.no_grad():
        scores = model(ids).logits[0, :-1].log_softmax(-1)
    found: NDArray[np.float32] = scores.gather(1, ids[0, 1:, None])[:, 0].numpy()
    return found


def learners(folder: Path, ids: list[int]) -> NDArray[np.float32]:
    """The log-probabilities [T - 1] of a learner that has loaded the folder."""
    weights = (np.arange(len(ids)) > 0).astype(np.float32)
    [[batch]] = pack_sequences([WeightedSequence(np.array(ids, np.int32), weights)], num_ranks=1, budget=1000)
    with torch.no_grad():
        found: Tensor = load_policy(folder, torch.float32, 1.0)(
            DeviceBatch.from_micro_batch(batch, torch.device("cpu"))
        )[0]
    return found.numpy()


@pytest.mark.parametrize("name", WITH_ENGINE)
async def test_an_engine_computes_with_the_published_weights(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    new = AutoModelForCausalLM.from_config(shape_config(name, **ENGINE_SETTINGS.get(name, {})))
    trained(new, 1).save_pretrained(write_tiny_model(tmp_path))
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    engine = Engine(EngineConfig(str(tmp_path), "float32", 1024, max_num_seqs=8, seed=0))
    try:
        await engine.start()
        await engine.init_transport({})
        before = await engine.prompt_logprobs(IDS)
        sampled = await engine.generate(IDS, max_tokens=40, seed=1, temperature=1.0)
        found = [*before, *sampled.logprobs]
        np.testing.assert_allclose(found, learners(tmp_path, [*IDS, *sampled.token_ids]), atol=0.01)
        weights, total = CheckpointWeights(trained(model, 2), torch.float32, lambda _: nullcontext()), 0
        for part in weights.split(BUCKET_BYTES):
            data = weights.copy_bucket(part, HostBuffer())
            assert data is not None
            engine.stage_bucket(data, weights.describe(part))
            total = (total + compute_checksum(torch.from_numpy(data))) & MASK
        loaded = await engine.load_staged(1)
        assert loaded.checksums == (total,)
        assert [missed for missed in loaded.unmatched_tensors if not missed.endswith(REWRITTEN.get(name, ()))] == []
        after = await engine.prompt_logprobs(IDS)
        np.testing.assert_allclose(after, logprobs(model), atol=1e-3)
        assert abs(after - before).max() > 0.1
    finally:
        engine.shutdown()
