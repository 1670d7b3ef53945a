"""Whether an adapter fits a base, by the headers of both files: vLLM takes tensors that are too small."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from agent_rft.trainer.learner.adapter import WEIGHTS_FILE

PREFIX = "base_model.model."


def misfit(adapter: Path, base: Path) -> str | None:
    """Why the adapter in a folder is not one of this base; None if nothing is wrong as far as the headers say.

    A base whose tensors have other names than the adapter's modules, such as fused experts, is not compared.
    """
    try:
        adapted, shapes = _shapes([adapter / WEIGHTS_FILE]), _shapes(sorted(base.glob("*.safetensors")))
    except (SafetensorError, OSError) as error:
        return f"{WEIGHTS_FILE} cannot be read: {error}"
    for name, shape in adapted.items():
        module, _, kind = name.removeprefix(PREFIX).removesuffix(".weight").rpartition(".")
        weight = shapes.get(f"{module}.weight", [])
        side = {"lora_A": 1, "lora_B": 0}.get(kind)
        if side is not None and len(weight) == 2 and shape[side] != weight[side]:
            return f"{module} has {shape[side]} values where that of the base has {weight[side]}"
    return None


def _shapes(files: list[Path]) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = {}
    for path in files:
        with safe_open(path, framework="np") as file:
            shapes |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    return shapes
