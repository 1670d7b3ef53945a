"""The part of reference/model-families.md on architectures: which layers learner and engine compute alike."""

from __future__ import annotations

import json
from pathlib import Path

from docs.generator.markdown import code, table

FOUND = Path(__file__).with_suffix(".json")
"""A row for each of `tests.support.shapes`. What nobody has tried is empty."""
COLUMNS = ("learner", "lora", "sync", "engine")
AGREES = "agrees"
_INTRO = """
## Architectures

Each row is a `model_type` in `config.json`; for a model with images, it is the type of the text model. Each
architecture was tested with a tiny random model of a few layers, not with real weights.

- **learner**: the log-probabilities of packed sequences equal those that transformers computes for each sequence alone.
  For one architecture per kind of layer, the gradients are equal too (`tests/unit/trainer/model/test_shapes.py`).
- **LoRA**: each adapter learns, and the merged model gives the same results as the base model with the adapter
  (`tests/unit/actors/weights/test_adapter_merge.py`). Experts have no adapters: see
  [LoRA](../models.md#layers-without-adapters). *supervised only*: vLLM does not support adapters for this architecture.
- **sync**: published weights have the names, dtypes, shapes and bytes that transformers writes. `yes`: a running engine
  on a CPU then computes with the new weights. `names`: this was not tested with an engine.
- **engine on a CPU**: vLLM's log-probabilities agree with the learner's; otherwise, the reason why not. Engines on GPUs
  were not tested.

Layers that carry a state from token to token (linear attention, Mamba, convolutions) process one packed sequence at a
time. This is exact on every device, but does not use the kernels that some GPUs have for packed sequences. Such models
need `cluster.zero_stage` 0, 1 or 2; the learner refuses stage 3 when it starts. On CPUs, an engine computes the prompts
of such models again in each turn, because vLLM caches states only with chunked prefill.

All other architectures are tested when the learner starts. They are refused if packed rollouts could attend to each
other. Indexed and compressed attention (`glm_moe_dsa`, `deepseek_v4`) is refused.

"""


def section() -> str:
    """The text and the table."""
    found: dict[str, dict[str, str]] = json.loads(FOUND.read_text(encoding="utf-8"))
    lines = [
        [code(name), row["layers"], *(row[column] or "not tried" for column in COLUMNS)] for name, row in found.items()
    ]
    return _INTRO + table(("model type", "layers", "learner", "LoRA", "sync", "engine on a CPU"), lines)
