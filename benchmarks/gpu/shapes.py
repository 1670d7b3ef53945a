"""Qwen3's shapes: sizes, floating-point operations, and the memory that `agent-rft plan` predicts. Without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_rft.cluster.planning.memory_estimates import GIB, MemoryEstimate, rank_memory
from agent_rft.cluster.planning.model_shape import ModelShape
from agent_rft.spec.offload import Offload

if TYPE_CHECKING:  # pydantic may be missing where this runs
    from agent_rft.spec.model_options import LoraSpec

BYTES_PER_PARAMETER = 18
"""bfloat16 weight (2), float32 sum of gradients (4), float32 master weight (4) and Adam's two moments (8). Gradients
in bfloat16 are added to the sum one by one. DeepSpeed keeps all of them until then, so `plan` predicts 20."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A dense Qwen3, as in its config.json."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    tied: bool
    kv_heads: int = 8
    head_dim: int = 128
    vocabulary: int = 151_936

    @property
    def config(self) -> dict[str, Any]:
        """The arguments of transformers' Qwen3Config."""
        return {
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": 131_072,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        }

    @property
    def matrices(self) -> int:
        """The parameters of all layers' matrices."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def parameters(self) -> int:
        norms = self.layers * (2 * self.hidden + 2 * self.head_dim) + self.hidden
        return self.vocabulary * self.hidden * (1 if self.tied else 2) + self.matrices + norms

    def flops(self, lengths: Sequence[int], trained: int, *, frozen: bool = False) -> float:
        """Operations of one forward and backward pass, without recomputation.

        Six per parameter of a matrix and token (four if the weights are `frozen`, as with LoRA: they have no
        gradients), the head only for the `trained` tokens, and causal attention: 12 x layers x width of queries x
        n (n + 1) / 2 for a sequence of n tokens.
        """
        products = (4 if frozen else 6) * (self.matrices * sum(lengths) + self.hidden * self.vocabulary * trained)
        pairs = sum(length * (length + 1) / 2 for length in lengths)
        return products + 12 * self.layers * self.heads * self.head_dim * pairs

    def flops_6n(self, lengths: Sequence[int]) -> float:
        """As published tables count: six per parameter and token, and attention as if it were not causal."""
        squares = sum(length**2 for length in lengths)
        return 6 * self.parameters * sum(lengths) + 12 * self.layers * self.heads * self.head_dim * squares

    def plan_memory(
        self, rank: OneRank, itemsize: int = 2, lora: LoraSpec | None = None, *, keeps_reference: bool = False
    ) -> MemoryEstimate:
        """Memory of a single rank on a GPU, as `agent-rft plan` estimates it for the same micro-batch."""
        shape = ModelShape(
            num_parameters=self.parameters,
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            intermediate=self.intermediate,
            vocabulary=self.vocabulary,
        )
        longest = rank.micro_batch_tokens
        return rank_memory(
            shape, rank, on_gpu=True, itemsize=itemsize, max_length=longest, keeps_reference=keeps_reference, lora=lora
        )

    def plan_gib(self, num_tokens: int) -> float:
        """GiB of tensors on the GPU of a single rank in bfloat16, without the CUDA context."""
        return tensors_gib(self.plan_memory(OneRank(num_tokens)))


def tensors_gib(memory: MemoryEstimate) -> float:
    """GiB that a plan expects on the GPU, without the CUDA context, which torch does not count."""
    return (memory.gpu_bytes - memory.gpu["context"]) / GIB


@dataclass(frozen=True, slots=True)
class OneRank:
    """The settings of a job's cluster that the memory of a single rank depends on."""

    micro_batch_tokens: int
    learner_ranks: int = 1
    zero_stage: int = 1
    max_num_seqs: int = 0
    offload: Offload = "none"


QWEN3 = {
    "0.6B": Shape(1024, 3072, 28, 16, tied=True),
    "1.7B": Shape(2048, 6144, 28, 16, tied=True),
    "4B": Shape(2560, 9728, 36, 32, tied=True),
    "8B": Shape(4096, 12288, 36, 32, tied=False),
}
TINY = Shape(32, 48, 2, 4, tied=True, kv_heads=2, head_dim=8, vocabulary=97)
