"""An adapter in a tiny policy: it begins as nothing, is alone trained, and PEFT computes the same with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from agent_rft.errors import UserError
from agent_rft.spec.model_options import LoraSpec
from agent_rft.trainer.model.lora import (
    add_adapter,
    as_reference,
    expand_targets,
    find_linear_shapes,
    get_adapter_tensors,
    tensor_shapes,
)
from agent_rft.trainer.model.policy import Policy, load_policy
from tests.support.architectures import with_vision
from tests.unit.trainer.model.test_policy import batch_of, save_model
from tests.unit.trainer.model.test_shapes import ALL, policy_of

LORA = LoraSpec(rank=4)
BATCH = batch_of(9, 4)


def policy_in(folder: Path) -> Policy:
    return load_policy(save_model(folder), torch.float32, 1.0)


def logprobs(policy: Policy) -> Tensor:
    with torch.no_grad():
        result: Tensor = policy(BATCH)[0]
    return result


def trained(policy: Policy) -> Policy:
    """The policy with an adapter that changes something."""
    with torch.no_grad():
        for tensor in get_adapter_tensors(policy).values():
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(3)))
    return policy


def test_a_new_adapter_changes_nothing_and_is_all_that_is_trained(tmp_path: Path) -> None:
    policy = policy_in(tmp_path)
    before, weights = logprobs(policy), {name: p.clone() for name, p in policy.named_parameters()}
    add_adapter(policy, LORA, seed=1)
    assert torch.equal(logprobs(policy), before)
    policy(BATCH)[0].sum().backward()
    changed = {name for name, p in policy.named_parameters() if p.grad is not None}
    assert changed == {name for name, p in policy.named_parameters() if ".lora_" in name}
    left = {name.replace(".base_layer", ""): p for name, p in policy.named_parameters() if ".lora_" not in name}
    assert left.keys() == weights.keys()


def test_a_new_adapter_is_drawn_from_the_seed_alone(tmp_path: Path) -> None:
    drawn = []
    for seed in (1, 1, 2):
        policy = policy_in(tmp_path)
        state = torch.get_rng_state()
        add_adapter(policy, LORA, seed)
        assert torch.equal(torch.get_rng_state(), state)
        drawn.append(torch.cat([tensor.detach().flatten() for tensor in get_adapter_tensors(policy).values()]))
        torch.rand(1)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_names_and_targets_are_those_of_peft(tmp_path: Path) -> None:
    policy = policy_in(tmp_path)
    add_adapter(policy, LORA, seed=1)
    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    theirs = get_peft_model(AutoModelForCausalLM.from_pretrained(tmp_path), config)
    names = {name.replace(".default", ""): p.shape for name, p in theirs.named_parameters() if ".lora_" in name}
    assert {name: tensor.shape for name, tensor in get_adapter_tensors(policy).items()} == names
    assert set(expand_targets(policy, LORA)) == {
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    }


def test_the_start_model_is_the_policy_without_its_adapter_or_with_the_one_that_it_began_with(tmp_path: Path) -> None:
    policy = policy_in(tmp_path)
    base = logprobs(policy)
    add_adapter(policy, LORA, seed=1)
    first = logprobs(trained(policy))
    with as_reference(policy):
        assert torch.equal(logprobs(policy), base)
    assert torch.equal(logprobs(policy), first)

    start = {name: tensor.detach() for name, tensor in get_adapter_tensors(policy).items()}
    again = policy_in(tmp_path)
    add_adapter(again, LORA, 2, start, keeps_reference=True)
    assert torch.equal(logprobs(again), first)
    for tensor in get_adapter_tensors(again).values():
        tensor.data.mul_(2)
    assert not torch.allclose(logprobs(again), first, atol=1e-3)
    with as_reference(again):
        torch.testing.assert_close(logprobs(again), first)
    again(BATCH)[0].sum().backward()
    assert {name.split(".")[-2] for name, p in again.named_parameters() if p.grad is not None} == {"default"}


def test_layers_that_are_computed_again_give_their_adapters_the_same_gradients(tmp_path: Path) -> None:
    """As on GPUs, where checkpointed layers get inputs that need no gradient from the frozen embedding."""
    gradients = []
    for checkpointed in (False, True):
        policy = policy_in(tmp_path)
        if checkpointed:
            policy.model.gradient_checkpointing_enable({"use_reentrant": False})
        add_adapter(policy, LORA, seed=1)
        trained(policy).train()(BATCH)[0].sum().backward()
        gradients.append([tensor.grad for tensor in get_adapter_tensors(policy).values()])
    for kept, again in zip(*gradients, strict=True):
        assert kept is not None and again is not None
        torch.testing.assert_close(again, kept)


def test_targets_are_names_of_layers_or_their_ends(tmp_path: Path) -> None:
    policy = policy_in(tmp_path)
    add_adapter(policy, LoraSpec(targets=("q_proj", "layers.1.mlp.up_proj")), seed=1)
    adapted = {name.removeprefix("base_model.model.model.").rsplit(".", 2)[0] for name in get_adapter_tensors(policy)}
    assert adapted == {"layers.0.self_attn.q_proj", "layers.1.self_attn.q_proj", "layers.1.mlp.up_proj"}


@pytest.mark.parametrize("target", ["query", "lm_head", "embed_tokens", "proj"])
def test_a_target_that_no_linear_layer_has_is_refused_with_the_names_there_are(tmp_path: Path, target: str) -> None:
    with pytest.raises(UserError, match=f"no linear layer of the model is named '{target}'; use q_proj, k_proj"):
        add_adapter(policy_in(tmp_path), LoraSpec(targets=("q_proj", target)), seed=1)


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    policy = policy_in(tmp_path / "one")
    add_adapter(policy, LORA, seed=1)
    start = {name: tensor.detach() for name, tensor in get_adapter_tensors(policy).items()}
    deeper = load_policy(save_model(tmp_path / "deeper", num_hidden_layers=3), torch.float32, 1.0)
    with pytest.raises(UserError, match="does not fit the model"):
        add_adapter(deeper, LORA, 1, start)
    wider = load_policy(save_model(tmp_path / "wider", hidden_size=64), torch.float32, 1.0)
    with pytest.raises(UserError, match="does not fit the model"):
        add_adapter(wider, LORA, 1, start)


@pytest.mark.filterwarnings("ignore:.*is falling back to its reference")
@pytest.mark.parametrize("shape", ALL)
def test_each_architecture_begins_as_it_is_and_each_of_its_adapters_learns(shape: str) -> None:
    policy = policy_of(shape)
    before = logprobs(policy)
    wanted = tensor_shapes(find_linear_shapes(policy.model.config, LORA), LORA.rank)
    add_adapter(policy, LORA, seed=1)
    assert torch.equal(logprobs(policy), before)
    policy(BATCH)[0].sum().backward()
    tensors = get_adapter_tensors(policy)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == wanted
    silent = [name for name, p in tensors.items() if ".lora_B." in name and (p.grad is None or not p.grad.any())]
    assert silent == []
    assert {name for name, p in policy.named_parameters() if p.grad is not None and ".lora_" not in name} == set()


def test_only_the_language_model_of_one_that_sees_is_adapted() -> None:
    names = find_linear_shapes(with_vision("gemma3"), LORA).keys()
    assert len(names) == 14
    assert not any("vision" in name or "projector" in name for name in names)
