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

By `model_type` of `config.json`, of a model that sees that of its text part. Each was tried with a tiny random model of
a few layers, never with its real weights unless said elsewhere.

- **learner**: its log-probabilities of packed sequences are those that transformers computes for each sequence alone,
  and for one architecture of each kind of layers the gradients too (`tests/unit/trainer/model/test_shapes.py`).
- **LoRA**: each adapter learns, and a merged model computes what its base with the adapter does
  (`tests/unit/actors/weights/test_adapter_merge.py`). Not of experts: see [LoRA](../models.md#layers-without-adapters).
  *supervised only*: vLLM has no adapters for it.
- **sync**: weights are published as transformers writes them: names, dtypes, shapes and bytes. `yes`: a running engine
  on a CPU then computes with them; `names`: this was not tried with an engine.
- **engine on a CPU**: vLLM's log-probabilities agree with the learner's; else why not. On GPUs nothing was tried.

Layers that carry a state from token to token (linear attention, Mamba, convolutions) run one packed sequence at a time,
which is exact on any device; the kernels that some GPUs have for packed ones are not used. Such models are trained with
`cluster.zero_stage` 0, 1 or 2; stage 3 is refused when the learner starts. On CPUs an engine computes
the prompts of such models again in each turn, since vLLM caches states only with chunked prefill. Other architectures
are tested when the learner starts, by what their layers do, and are refused if packed rollouts would see each other.
Indexed and compressed attention (`glm_moe_dsa`, `deepseek_v4`) is refused.

"""


def section() -> str:
    """The text and the table."""
    found: dict[str, dict[str, str]] = json.loads(FOUND.read_text(encoding="utf-8"))
    lines = [
        [code(name), row["layers"], *(row[column] or "not tried" for column in COLUMNS)] for name, row in found.items()
    ]
    return _INTRO + table(("model type", "layers", "learner", "LoRA", "sync", "engine on a CPU"), lines)
