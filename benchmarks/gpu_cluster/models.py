"""Writes a random model: `python -m benchmarks.gpu_cluster.models FOLDER --shape qwen3-0.6b`.

With random weights speeds are those of a trained model of the same shape; log-probabilities differ less between engine
and learner than a trained model's, because nearly all tokens are equally likely.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.weight_sync import write_model

SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        **{"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8},
        **{"head_dim": 128, "vocab_size": 151_936, "max_position_embeddings": 40_960, "layers": 28},
    },
    "tiny": {
        **{"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2},
        **{"head_dim": 32, "vocab_size": 4096, "layers": 2},
    },
}
"""Shapes by name: settings of the config, `layers` and what differs from the ledger's base model."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    options = parser.parse_args(argv)
    unfinished = options.folder.with_name(options.folder.name + ".unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    write_model(unfinished, **SHAPES[options.shape])
    shutil.rmtree(options.folder, ignore_errors=True)
    unfinished.rename(options.folder)


if __name__ == "__main__":
    main()
