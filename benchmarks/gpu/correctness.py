"""The packed path against transformers' own eager model with full logits, each sequence alone: loss, values, gradients.

The reference computes in float32 without TF32, with the same weights. Log-probabilities are compared after their mean
was subtracted, which for random weights is most of them.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3Config

from agent_rft.trainer.model.micro_batches import MicroBatch
from agent_rft.trainer.model.packed_attention import ATTENTION_NAME
from agent_rft.trainer.model.policy import DeviceBatch
from benchmarks.gpu.attention import backends_on
from benchmarks.gpu.figures import Figure, NotMeasured
from benchmarks.gpu.machine import Machine, error
from benchmarks.gpu.shapes import QWEN3, TINY, Shape
from benchmarks.gpu.step import MasterAdamW, Settings, build_policy, loss_from, loss_of, micro_batch

FLOAT32_ERROR = 1e-4
TIMES_EAGER = 1.5
"""A variant in bfloat16 is exact if its error is at most this many times that of the eager model in bfloat16."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one way to compute a batch gives."""

    loss: float
    logprobs: Tensor
    gradients: list[Tensor]

    def errors(self, reference: Outcome) -> dict[str, float]:
        centered = [outcome.logprobs - reference.logprobs.mean() for outcome in (self, reference)]
        return {
            "logprobs": error(centered[:1], centered[1:]),
            "gradients": error(self.gradients, reference.gradients),
            "loss": abs(self.loss - reference.loss) / abs(reference.loss),
        }


def shape_of(machine: Machine) -> Shape:
    """The model that is compared: four layers of 0.6B."""
    return TINY if machine.tiny else dataclasses.replace(QWEN3["0.6B"], layers=4)


def batch_of(machine: Machine) -> MicroBatch:
    """The tokens that are compared."""
    return micro_batch(60 if machine.tiny else 2048, "rollouts", shape_of(machine).vocabulary)


def _batch(machine: Machine) -> DeviceBatch:
    return DeviceBatch.from_micro_batch(batch_of(machine), machine.device)


def packed(machine: Machine, settings: Settings, dtype: torch.dtype) -> Outcome:
    """The learner's way."""
    policy = build_policy(machine, shape_of(machine), settings, dtype)
    policy.model.load_state_dict(weights_of(machine))
    loss, logprobs = loss_of(policy, _batch(machine))
    loss.backward()
    return Outcome(float(loss.detach()), logprobs, [p.grad.float() for p in policy.parameters() if p.grad is not None])


def weights_of(machine: Machine) -> dict[str, Tensor]:
    """The weights in the device's precision, so that float32 and bfloat16 compute with the same ones."""
    weights: dict[str, Tensor] = build_policy(machine, shape_of(machine), Settings()).model.state_dict()
    return weights


@functools.cache
def eager(machine: Machine, dtype: torch.dtype) -> Outcome:
    """Transformers' own way: no packing, full logits."""
    batch, shape = _batch(machine), shape_of(machine)
    with torch.device(machine.device):
        model = AutoModelForCausalLM.from_config(Qwen3Config(**shape.config), dtype=dtype, attn_implementation="eager")
    model.load_state_dict(weights_of(machine))
    scores = [
        model(input_ids=ids[None], use_cache=False).logits[0] for ids in batch.token_ids.split(batch.packing.lengths)
    ]
    chosen = torch.cat(scores)[batch.logits_indices].float().log_softmax(-1)
    logprobs = chosen.gather(1, batch.targets[:, None])[:, 0]
    loss = loss_from(logprobs, batch)
    loss.backward()
    return Outcome(float(loss.detach()), logprobs.detach(), [p.grad.float() for p in model.parameters()])


def verdict(machine: Machine, settings: Settings) -> dict[str, Any]:
    """Errors of a variant in the device's precision, and whether it is exact."""
    reference = eager(machine, torch.float32)
    own = packed(machine, settings, machine.dtype).errors(reference)
    allowed = eager(machine, machine.dtype).errors(reference)
    exact = all(own[key] <= max(TIMES_EAGER * allowed[key], FLOAT32_ERROR) for key in ("logprobs", "gradients"))
    return {"exact": exact, "errors": own, "errors_eager": allowed}


def figures(machine: Machine) -> list[Figure]:
    """Errors in float32, and in the device's precision for each attention."""

    def in_float32() -> dict[str, Any]:
        errors = packed(machine, Settings(), torch.float32).errors(eager(machine, torch.float32))
        exact = max(errors["logprobs"], errors["gradients"]) <= FLOAT32_ERROR
        return {"value": errors["gradients"], "exact": exact, "more": errors}

    def with_attention(name: str) -> dict[str, Any]:
        found = verdict(machine, Settings(attention=name))
        own, theirs = (found[key]["gradients"] for key in ("errors", "errors_eager"))
        return found | {"value": own, "baseline": theirs, "more": found["errors"] | {"exact": found["exact"]}}

    def optimizer(kind: str) -> dict[str, Any]:
        """Weights after five steps, against torch's plain loop over the weights."""
        ours, theirs = (_after_five_steps(machine, name) for name in (kind, "loop"))
        value = error(ours, theirs)
        return {"value": value, "exact": value <= FLOAT32_ERROR, "more": {"exact": value <= FLOAT32_ERROR}}

    backends = [ATTENTION_NAME, *(f"{ATTENTION_NAME}_{name}" for name in backends_on(machine.device.type))]
    half = str(machine.dtype).removeprefix("torch.")
    return [
        Figure("gradients, float32, packed against eager", "relative error", in_float32, 20, f"<= {FLOAT32_ERROR:g}"),
        *(
            Figure(
                f"gradients, {half}, {name} against eager in float32",
                "relative error",
                functools.partial(with_attention, name),
                15,
                f"<= {TIMES_EAGER} x eager in {half}",
            )
            for name in backends
        ),
        *(
            Figure(f"AdamW {kind} against loop", "relative error", functools.partial(optimizer, kind), 5)
            for kind in ("fused", "foreach")
        ),
    ]


def _after_five_steps(machine: Machine, kind: str) -> list[Tensor]:
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 64, device=machine.device)
    start = [weight.detach().clone() for weight in layer.parameters()]
    adamw = MasterAdamW(layer, kind, rate=1e-3)
    for _ in range(5):
        layer(torch.randn(8, 64, device=machine.device)).square().sum().backward()
        adamw.step()
    if not layer.weight.isfinite().all():
        raise NotMeasured("the weights are not finite")
    return [after.detach() - before for after, before in zip(layer.parameters(), start, strict=True)]
