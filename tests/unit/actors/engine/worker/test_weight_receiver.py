"""An update of a toy model in vLLM's worker: what its loaders take, what it copies by itself, and what it ignores."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.loaded = nn.Parameter(torch.zeros(2), requires_grad=False)
        self.loaded.weight_loader = lambda param, loaded_weight: param.data.copy_(loaded_weight)  # type: ignore[attr-defined]
        self.copied = nn.Parameter(torch.zeros(2, 3), requires_grad=False)
        self.register_buffer("scale", torch.zeros(1))
        self.register_buffer("shift", torch.zeros(1))


class Toy(nn.Module):
    """Loads as the models of vLLM: by a loader, by copies of a part or of `data`, and not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Layer(), Layer()

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        held = dict(self.named_parameters()) | dict(self.named_buffers())
        for name, tensor in weights:
            if name.endswith(("loaded", "shift")):
                held[name].weight_loader(held[name], tensor)  # type: ignore[operator]
            elif name.endswith("copied"):
                held[name].copy_(tensor.permute(1, 0).contiguous())
            elif name.endswith("scale"):
                held[name].data.copy_(tensor)


def tensors(number: float) -> dict[str, Tensor]:
    sizes = {"loaded": (2,), "copied": (3, 2), "scale": (1,), "shift": (1,)}
    each = {name: torch.full(size, number) for name, size in sizes.items()}
    named = {f"{layer}.{name}": tensor for layer in ("first", "second") for name, tensor in each.items()}
    return named | {"ignored": torch.zeros(2)}


def depth(loader: Any) -> int:
    return 1 + depth(loader.__wrapped__) if hasattr(loader, "__wrapped__") else 0


def transport(model: nn.Module) -> Any:
    from agent_rft.actors.engine.worker.weight_receiver import ShmWeightTransferEngine

    hf_text_config = SimpleNamespace(tie_word_embeddings=False)
    config: Any = SimpleNamespace(parallel_config=None, model_config=SimpleNamespace(hf_text_config=hf_text_config))
    return ShmWeightTransferEngine(None, config, torch.device("cpu"), model)


def receive(engine: Any, folder: Path, weights: dict[str, Tensor]) -> None:
    """Load each tensor as a bucket whose checksum is the tensor's index."""
    from agent_rft.actors.engine.worker.weight_receiver import ShmUpdateInfo

    for i, (name, tensor) in enumerate(weights.items()):
        (folder / str(i)).write_bytes(tensor.numpy().tobytes())
        engine.receive_weights(ShmUpdateInfo(str(folder / str(i)), i, [[name, "float32", list(tensor.shape)]]))


def test_updates_reach_every_weight_and_name_what_no_parameter_took(tmp_path: Path) -> None:
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

    model = Toy()
    record_metadata_for_reloading(model)
    engine = transport(model)
    held = [parameter.data_ptr() for parameter in model.parameters()]
    for number in (1.0, 2.0, 3.0):
        engine.start_weight_update()
        assert depth(model.first.loaded.weight_loader) <= 2, "each update must not wrap the loaders again"
        receive(engine, tmp_path, tensors(number))
        engine.finish_weight_update()
        assert engine.last_update_report() == (sum(range(9)), ["ignored"])
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            assert torch.equal(tensor, torch.full_like(tensor, number)), name
    assert [parameter.data_ptr() for parameter in model.parameters()] == held


def test_parameters_without_new_weights_are_kept_when_an_engine_discards_its_weights(tmp_path: Path) -> None:
    """The parameters of a vision tower are an example. vLLM keeps all buffers."""
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

    from agent_rft.actors.engine.worker.worker_extension import WorkerExtension

    model = Toy()
    record_metadata_for_reloading(model)
    worker = WorkerExtension()
    worker.weight_transfer_engine = engine = transport(model)
    worker.model_config = SimpleNamespace(sleep_preserve_parameter_names=[])
    for kept in ("first", "second"):
        engine.start_weight_update()
        receive(engine, tmp_path, {name: tensor for name, tensor in tensors(1.0).items() if kept not in name})
        engine.finish_weight_update()
        worker.keep_unloaded_parameters()
        assert worker.model_config.sleep_preserve_parameter_names == [f"{kept}.loaded", f"{kept}.copied"]
    engine.start_weight_update()
    receive(engine, tmp_path, tensors(1.0))
    engine.finish_weight_update()
    assert engine.unloaded_parameters == []
