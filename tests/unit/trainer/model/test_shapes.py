"""Tiny models of today's architectures: packed sequences give what transformers gives for each alone, and no leak."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, Qwen3ForCausalLM

from agent_rft.errors import UserError
from agent_rft.trainer.model.micro_batches import WeightedSequence, pack_sequences
from agent_rft.trainer.model.model_probe import check_model
from agent_rft.trainer.model.packed_attention import ATTENTION_NAME, Packing
from agent_rft.trainer.model.policy import (
    STATE_LAYERS,
    DeviceBatch,
    Policy,
    check_layer_support,
    layer_kinds,
    load_policy,
)
from agent_rft.trainer.model.stateful_layers import separate_sequences
from docs.generator.architectures import COLUMNS, FOUND
from tests.support.architectures import ARCHITECTURES, with_vision
from tests.support.shapes import KINDS, SHAPES, shape_config, tiny_shape, write_shape

CPU = torch.device("cpu")
LENGTHS = (9, 4, 14, 6, 2)
ALL = [shape if shape in KINDS else pytest.param(shape, marks=pytest.mark.nightly) for shape in SHAPES]
pytestmark = pytest.mark.filterwarnings("ignore:.*is falling back to its reference")


def tokens(length: int) -> NDArray[np.int32]:
    return np.random.default_rng(length).integers(0, 256, length).astype(np.int32)


def batch_of(*lengths: int) -> DeviceBatch:
    sequences = [WeightedSequence(tokens(n), np.array([0] + [1] * (n - 1), np.float32)) for n in lengths]
    [[micro_batch]] = pack_sequences(sequences, num_ranks=1, budget=1000)
    return DeviceBatch.from_micro_batch(micro_batch, CPU)


def alone(model: PreTrainedModel, temperature: float) -> Tensor:
    """What transformers says about each sequence, one after the other, with its own attention."""
    logprobs = []
    for length in LENGTHS:
        ids = torch.tensor(tokens(length), dtype=torch.int64)[None]
        scores = (model(ids, use_cache=False).logits[0, :-1] / temperature).log_softmax(-1)
        logprobs.append(scores.gather(1, ids[0, 1:, None])[:, 0])
    return torch.cat(logprobs)


def policy_of(shape: str) -> Policy:
    model = tiny_shape(shape)
    model.set_attn_implementation(ATTENTION_NAME)
    return Policy(model, 1.0)


def gradients(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("shape", ALL)
def test_log_probabilities_are_those_of_each_sequence_alone(shape: str, tmp_path: Path) -> None:
    policy = load_policy(write_shape(shape, tmp_path), torch.float32, 0.8).eval()
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        torch.testing.assert_close(policy(batch_of(*LENGTHS))[0], alone(model, 0.8), atol=5e-5, rtol=1e-5)
    check_model(policy, CPU)


@pytest.mark.parametrize("shape", KINDS)
def test_gradients_are_those_of_the_sequences_alone(shape: str) -> None:
    model, policy = tiny_shape(shape), policy_of(shape)
    alone(model, 1.0).sum().backward()
    policy(batch_of(*LENGTHS))[0].sum().backward()
    expected, packed = gradients(model), gradients(policy.model)
    assert expected.keys() == packed.keys()
    for name, gradient in expected.items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(packed[name], gradient, atol=1e-4 * max(scale, 1e-3), rtol=1e-3, msg=name)


@pytest.mark.parametrize("shape", KINDS)
def test_a_leak_between_sequences_would_be_seen(shape: str) -> None:
    """As one sequence with positions that start again, the tokens see what was packed before them."""
    policy, batch = policy_of(shape), batch_of(*LENGTHS)
    joined = DeviceBatch(
        **{name: getattr(batch, name) for name in DeviceBatch.__slots__ if name != "packing"},
        packing=Packing.from_lengths([sum(batch.packing.lengths)], CPU),
    )
    with torch.no_grad():
        assert (policy(joined)[0] - policy(batch)[0]).abs().max() > 0.1


@pytest.mark.parametrize("shape", ["qwen3_next", "lfm2", "minimax"])
def test_a_layer_that_is_computed_again_gets_the_sequences_of_its_own_pass(shape: str) -> None:
    kept, again = policy_of(shape).train(), policy_of(shape).train()
    kept(batch_of(*LENGTHS))[0].sum().backward()
    again.model.gradient_checkpointing_enable({"use_reentrant": False})
    logprobs = again(batch_of(*LENGTHS))[0]
    again(batch_of(5, 20))
    logprobs.sum().backward()
    assert all(torch.equal(gradient, gradients(again)[name]) for name, gradient in gradients(kept).items())


def test_the_text_part_of_a_model_that_sees_is_trained() -> None:
    model = AutoModelForCausalLM.from_config(with_vision("gemma3"), attn_implementation="eager")
    text = tiny_shape("gemma3")
    model.get_decoder().load_state_dict(text.get_decoder().state_dict())
    model.tie_weights()
    expected = alone(text, 1.0)
    model.set_attn_implementation(ATTENTION_NAME)
    policy = Policy(model, 1.0).train()
    logprobs = policy(batch_of(*LENGTHS))[0]
    torch.testing.assert_close(logprobs, expected, atol=5e-5, rtol=1e-5)
    logprobs.sum().backward()
    trained = {name for name, parameter in policy.named_parameters() if parameter.requires_grad}
    assert trained == gradients(policy).keys()
    assert not any("vision" in name for name in trained)


def test_an_architecture_is_refused_by_what_its_layers_do() -> None:
    """RWKV keeps its state in a way of its own."""
    config = AutoConfig.for_model("rwkv", vocab_size=50, hidden_size=32, num_hidden_layers=2)
    check_layer_support(config)
    torch.manual_seed(0)
    with pytest.raises(UserError, match=r"RwkvForCausalLM does not separate packed rollouts: .* \d"):
        check_model(Policy(AutoModelForCausalLM.from_config(config), 1.0), CPU)


def test_an_architecture_that_hands_no_packing_to_its_layers_is_refused() -> None:
    config = AutoConfig.for_model("mamba", vocab_size=50, hidden_size=32, num_hidden_layers=2)
    with pytest.raises(UserError, match="MambaForCausalLM does not support packed sequences"):
        check_model(Policy(AutoModelForCausalLM.from_config(config), 1.0), CPU)


class Doubled(Qwen3ForCausalLM):
    """Its logits are changed in a way that no config names."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        return type(output)(logits=output.logits * 2)


def test_logits_that_are_changed_after_the_head_are_found() -> None:
    config = ARCHITECTURES["qwen3"](initializer_range=0.5, attn_implementation=ATTENTION_NAME)
    with pytest.raises(UserError, match=r"does not support Doubled, .* differ by \d"):
        check_model(Policy(Doubled(config), 1.0), CPU)


@pytest.mark.parametrize(
    ("model_type", "what"),
    [
        ("glm_moe_dsa", "layers of type indexed_attention"),
        ("deepseek_v4", "layers of type compressed_sparse_attention, heavily_compressed_attention"),
        ("bloom", "BloomForCausalLM uses its own attention code"),
    ],
)
def test_an_architecture_is_refused_by_its_config(model_type: str, what: str) -> None:
    with pytest.raises(UserError, match=what):
        check_layer_support(AutoConfig.for_model(model_type))


def test_the_manual_lists_the_architectures_that_are_tested() -> None:
    found = json.loads(FOUND.read_text(encoding="utf-8"))
    assert tuple(found) == SHAPES
    assert all(row.keys() == {"layers", *COLUMNS} and row["learner"] == "yes" for row in found.values())


@pytest.mark.parametrize("shape", SHAPES)
def test_the_config_says_which_models_have_layers_with_a_state(shape: str) -> None:
    """The check reads the config alone; the learner looks at the layers."""
    config = shape_config(shape)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert bool(layer_kinds(config) & STATE_LAYERS) == bool(separate_sequences(model))
