"""The policy as the learner sees it: packed tokens in, log-probabilities of the trained tokens out.

Parameters keep their names in transformers (with the prefix "model.") and their identity, so tied weights stay tied.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from trainer.errors import UserError
from trainer.model import packed_attention
from trainer.model.batch import MicroBatch, TokenMasks
from trainer.model.logprobs import TokenLogProbs
from trainer.model.packed_attention import Packing

LOGIT_CHANGES = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Model settings that change logits after the head, which `TokenLogProbs` would miss."""
ATTENTION_KINDS = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """A `MicroBatch` as tensors on the learner's device, with the same shapes.

    `masks` are (allowed, which) of its `TokenMasks`, still on the CPU: they are needed only in its own passes.
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
    def of(cls, batch: MicroBatch, device: torch.device, masks: TokenMasks | None = None) -> DeviceBatch:
        def move(array: Any) -> Tensor:
            return torch.tensor(array, device=device)  # copies: arrays from Ray's object store are read-only

        return cls(
            token_ids=move(batch.token_ids),
            positions=move(batch.positions),
            packing=Packing.of(batch.lengths, device),
            logits_indices=move(batch.logits_indices),
            targets=move(batch.targets),
            weights=move(batch.weights),
            advantages=move(batch.advantages),
            logprobs=move(batch.logprobs),
            versions=move(batch.versions),
            masks=None if masks is None else (torch.tensor(masks.allowed), torch.tensor(masks.which)),
        )


class Policy(nn.Module):
    """A causal language model from transformers whose head is replaced by `TokenLogProbs`."""

    def __init__(self, model: PreTrainedModel, temperature: float) -> None:
        super().__init__()
        model.set_output_embeddings(TokenLogProbs(model.get_output_embeddings().weight, temperature))
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0  # engines have none, and log-probabilities must match theirs
        self.model = model

    def forward(self, batch: DeviceBatch) -> tuple[Tensor, Tensor]:
        """Log-probabilities [M] of the batch's targets and entropies [M], float32, at the sampling temperature.

        Both are of the policy that sampled: of the tokens that the batch's masks allow.
        """
        output = self.model.base_model(
            input_ids=batch.token_ids[None],
            position_ids=batch.positions[None],
            packing=batch.packing,
            use_cache=False,
        )
        hidden = output.last_hidden_state[0].index_select(0, batch.logits_indices)
        masks = batch.masks and tuple(tensor.to(hidden.device) for tensor in batch.masks)
        logprobs, entropies = self.model.get_output_embeddings()(hidden, batch.targets, masks)
        return logprobs, entropies


def load_policy(folder: Path, dtype: torch.dtype, temperature: float) -> Policy:
    """Load the model in `folder` on the CPU, with packed attention.

    Raises:
        UserError: The learner would compute this model's attention or logits incorrectly.
    """
    refuse_unsupported(AutoConfig.from_pretrained(folder))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=packed_attention.NAME)
    if not model.is_backend_compatible():
        raise UserError(f"{type(model).__name__} has its own attention, in which packed rollouts would see each other")
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        raise UserError(f"the output head of {type(model).__name__} has a bias, which the learner does not support")
    return Policy(model, temperature)


def refuse_unsupported(config: PreTrainedConfig) -> None:
    """Check by its config that the learner can reproduce the engine's log-probabilities of a model.

    Raises:
        UserError: It cannot.
    """
    text = config.get_text_config()
    for name in LOGIT_CHANGES:
        if getattr(text, name, None) not in (None, 1, 1.0):
            raise UserError(f"the model changes its logits by {name}, which the learner does not support")
    other = set(getattr(text, "layer_types", None) or ()) - ATTENTION_KINDS
    if other:
        raise UserError(
            f"the model has layers of type {', '.join(sorted(other))}, in which packed rollouts would see each other"
        )
