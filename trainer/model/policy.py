"""The learner's policy, which computes the log-probabilities of the trained tokens in packed sequences.

The policy has the same parameter objects as the transformers model, so tied weights stay tied. The names of the
parameters are also the same, with the prefix "model.".
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from agent_rft.errors import UserError
from agent_rft.trainer.model import packed_attention
from agent_rft.trainer.model.logprobs import LogitTransform, TokenLogProbs
from agent_rft.trainer.model.micro_batches import MicroBatch, TokenMasks
from agent_rft.trainer.model.packed_attention import Packing
from agent_rft.trainer.model.router_replay import replay_routers
from agent_rft.trainer.model.shared_prefix import PrefixTree
from agent_rft.trainer.model.stateful_layers import separate_sequences

STATE_LAYERS = {"linear_attention", "conv", "hybrid", "hybrid_sliding"}
"""Names of layer types that carry a state from token to token, as in transformers.

Such a layer processes the sequences of a batch one after another."""
LAYER_KINDS = {
    *("full_attention", "sliding_attention", "chunked_attention"),
    *STATE_LAYERS,
    *("mlp", "dense", "sparse", "moe"),
}
"""Transformers' names of the supported layer types: attention, stateful layers, and layers that see one token only."""


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """A `MicroBatch` as tensors on the learner's device, with the same shapes.

    If sequences share tokens (`PrefixTree`), N is the number of computed tokens, and `packing` describes the tree's
    segments. `masks` are (allowed, mask_index) of the batch's `TokenMasks`. They stay on the CPU until the batch is
    computed.
    """

    token_ids: Tensor
    positions: Tensor
    packing: Packing
    logits_indices: Tensor
    targets: Tensor
    weights: Tensor
    advantages: Tensor
    logprobs: Tensor
    versions: Tensor
    masks: tuple[Tensor, Tensor] | None = None

    @classmethod
    def from_micro_batch(
        cls, batch: MicroBatch, device: torch.device, masks: TokenMasks | None = None, *, share: bool = False
    ) -> DeviceBatch:
        def move(array: Any) -> Tensor:
            return torch.tensor(array, device=device)  # copies: arrays from Ray's object store are read-only

        token_ids, positions, logits_indices = batch.token_ids, batch.positions, batch.logits_indices
        experts = None if batch.experts is None else move(batch.experts.astype(np.int64))
        packing = Packing.from_lengths(batch.lengths, device, experts)
        # With experts nothing is shared: in another rollout, the engine may have sent the token to other experts.
        tree = PrefixTree.from_tokens_if_smaller(token_ids, batch.lengths) if share and experts is None else None
        if tree is not None:
            token_ids, positions = token_ids[tree.computed], positions[tree.computed]
            logits_indices = tree.state_indices[logits_indices]
            packing = Packing.from_lengths(tree.lengths, device, parents=tree.parents)
        return cls(
            token_ids=move(token_ids),
            positions=move(positions),
            packing=packing,
            logits_indices=move(logits_indices),
            targets=move(batch.targets),
            weights=move(batch.weights),
            advantages=move(batch.advantages),
            logprobs=move(batch.logprobs),
            versions=move(batch.versions),
            masks=None if masks is None else (torch.tensor(masks.allowed), torch.tensor(masks.mask_index)),
        )


class Policy(nn.Module):
    """A causal language model from transformers, with packed sequences and a `TokenLogProbs` head.

    Attributes:
        model: The transformers model. Its parameter names are the original ones. Without packing, it computes the
            same results as the original model.
        mixers: Modules that run once per sequence. Ranks can have different numbers of sequences, and then call the
            submodules of mixers different numbers of times.
    """

    def __init__(self, model: PreTrainedModel, temperature: float) -> None:
        super().__init__()
        head, transform = model.get_output_embeddings(), LogitTransform.from_config(model.config.get_text_config())
        bias = getattr(head, "bias", None)
        model.set_output_embeddings(TokenLogProbs(head.weight, temperature, bias=bias, transform=transform))
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0  # engines use no dropout, and log-probabilities must match
        self.mixers = tuple(separate_sequences(model))
        self.model = model
        replay_routers(self._decoder, model.config.get_text_config())
        trained = {id(p) for part in (self._decoder, model.get_output_embeddings()) for p in part.parameters()}
        for parameter in model.parameters():
            if id(parameter) not in trained:
                parameter.requires_grad = False  # the vision tower: rollouts have no images

    def forward(self, batch: DeviceBatch) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities [M] of the batch's targets, and the entropies [M], both in float32.

        The sampling temperature is applied. As in sampling, only tokens that the batch's masks allow have a probability
        above 0.
        """
        output = self._decoder(
            input_ids=batch.token_ids[None],
            position_ids=batch.positions[None],
            packing=batch.packing,
            use_cache=False,
        )
        hidden = output.last_hidden_state[0].index_select(0, batch.logits_indices)
        masks = batch.masks and tuple(tensor.to(hidden.device) for tensor in batch.masks)
        logprobs, entropies = self.model.get_output_embeddings()(hidden, batch.targets, masks)
        return logprobs, entropies

    @property
    def _decoder(self) -> PreTrainedModel:
        """The language model without its head; for a vision model, its language part."""
        decoder = self.model.get_decoder()
        return decoder if decoder is not self.model else self.model.model


def load_policy(folder: Path, dtype: torch.dtype, temperature: float) -> Policy:
    """Load the model in `folder` with packed attention, on torch's default device.

    Raises:
        UserError: The learner does not support the model's layers, or the folder lacks some of the model's weights.
    """
    check_layer_support(AutoConfig.from_pretrained(folder))
    model, found = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation=packed_attention.ATTENTION_NAME, output_loading_info=True
    )
    if lacking := found["missing_keys"]:
        what = f"the files in {folder} lack {len(lacking)} weights of the model, such as {min(lacking)}"
        raise UserError(f"{what}, which would get random values; copy or convert the model again")
    return Policy(model, temperature)


def check_layer_support(config: PreTrainedConfig) -> None:
    """Check that the learner supports the layers of a model, from the model's config alone.

    After loading, `model_probe.check_model` tests the model itself.

    Raises:
        UserError: The learner does not support one of the model's layers, or its attention.
    """
    if other := layer_kinds(config) - LAYER_KINDS:
        raise UserError(
            f"the model has layers of type {', '.join(sorted(other))}, which let packed rollouts attend to each other"
        )
    model = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if model is not None and not (model.is_backend_compatible() or model._is_stateful):
        raise UserError(f"{model.__name__} uses its own attention code, so packed rollouts could attend to each other")


def layer_kinds(config: PreTrainedConfig) -> set[str]:
    """Return the layer types of a model, as named by transformers; empty if the model's config does not list them."""
    return set(getattr(config.get_text_config(), "layer_types", None) or ())
