"""Check that an adapter fits its base model, by the tensor sizes in the headers of the weight files.

The check is needed because vLLM accepts tensors that are too small.
"""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from agent_rft.trainer.learner.adapter import WEIGHTS_FILE

PREFIX = "base_model.model."


def find_adapter_problem(adapter: Path, base: Path) -> str | None:
    """Return a message if the adapter in a folder does not fit the base model.

    Returns None if the headers of the weight files show no problem. Base model tensors whose names differ from the
    adapter's module names, such as fused experts, are not compared.
    """
    try:
        adapted, shapes = _read_shapes([adapter / WEIGHTS_FILE]), _read_shapes(sorted(base.glob("*.safetensors")))
    except (SafetensorError, OSError) as error:
        return f"{WEIGHTS_FILE} cannot be read: {error}"
    for name, shape in adapted.items():
        module, _, kind = name.removeprefix(PREFIX).removesuffix(".weight").rpartition(".")
        weight = shapes.get(f"{module}.weight", [])
        axis = {"lora_A": 1, "lora_B": 0}.get(kind)
        if axis is not None and len(weight) == 2 and shape[axis] != weight[axis]:
            return f"{module} has size {shape[axis]} in the adapter, but {weight[axis]} in the base model"
    return None


def _read_shapes(files: list[Path]) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = {}
    for path in files:
        with safe_open(path, framework="np") as file:
            shapes |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    return shapes
