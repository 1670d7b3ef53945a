"""Values read from vLLM's undocumented objects: stand-ins for the model runner, vLLM itself for the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from agent_rft.actors.engine.vllm_internals import (
    find_complete_cache,
    find_error,
    iter_running_requests,
    make_tokens_request,
    missing_modules,
    register_transport,
    replace_lora_operations,
    to_error_fields,
)

SIZES: dict[str, Any] = {"block_size": 32, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
WHOLE, WINDOW = FullAttentionSpec(**SIZES), SlidingWindowSpec(**SIZES, sliding_window=4)


def together(*specs: object) -> SimpleNamespace:
    """The specification of a cache that several layers share."""
    return SimpleNamespace(block_size=32, kv_cache_specs={str(i): spec for i, spec in enumerate(specs)})


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ([WHOLE], (0, 32, 7)),
        ([WINDOW, WHOLE, WHOLE], (1, 32, 7)),
        ([together(WHOLE, WINDOW), together(WHOLE, WHOLE)], (1, 32, 7)),
        ([WINDOW, together(WHOLE, WINDOW)], None),
    ],
)
def test_the_first_cache_with_all_tokens_is_found(specs: list[Any], expected: tuple[int, int, int] | None) -> None:
    groups = [SimpleNamespace(kv_cache_spec=spec) for spec in specs]
    runner = SimpleNamespace(kv_cache_config=SimpleNamespace(kv_cache_groups=groups, num_blocks=7))
    assert find_complete_cache(runner) == expected


def test_requests_of_a_step_come_in_the_order_of_its_tokens() -> None:
    blocks = np.arange(6, dtype=np.int32).reshape(3, 2)
    table = [None, SimpleNamespace(get_numpy_array=lambda: blocks)]
    computed = np.array([5, 6, 7])
    batch = SimpleNamespace(block_table=table, req_ids=["a", "b", "c"], num_computed_tokens_cpu=computed)
    scheduled = SimpleNamespace(num_scheduled_tokens={"c": 1, "a": 4})
    found = list(iter_running_requests(SimpleNamespace(input_batch=batch), scheduled, 1))
    assert [(name, count, start, list(of)) for name, count, start, of in found] == [
        ("a", 4, 5, [0, 1]),
        ("c", 1, 7, [4, 5]),
    ]


class Manager:
    """Stands for vLLM's manager of adapters on a model with two linear layers and a language model."""

    def __init__(self) -> None:
        self.punica_wrapper_mapping: dict[str, object] = {"": "vLLM's", "language_model": "vLLM's"}
        self.chosen: dict[str, object] = {}
        self.modules = {name: self.module(name) for name in ("q_proj", "language_model.q_proj")}

    def module(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(set_mapping=lambda wrapper: self.chosen.update({name: wrapper}))

    def _get_punica_wrapper(self, name: str) -> object:
        return self.punica_wrapper_mapping[name.rpartition(".")[0]]

    def get_adapter(self, lora_id: int) -> SimpleNamespace:
        return SimpleNamespace(loras={"q_proj": lora_id, "vision.q_proj": lora_id})


def test_each_part_of_a_model_gets_operations_of_its_own() -> None:
    manager = Manager()
    runner = SimpleNamespace(lora_manager=SimpleNamespace(_adapter_manager=manager))
    replace_lora_operations(runner, lambda: SimpleNamespace())
    assert manager.chosen["q_proj"] is manager.punica_wrapper_mapping[""]
    assert manager.chosen["language_model.q_proj"] is manager.punica_wrapper_mapping["language_model"]
    assert "vLLM's" not in manager.chosen.values()
    assert manager.chosen["q_proj"] is not manager.chosen["language_model.q_proj"]


def test_modules_of_an_adapter_that_the_model_lacks_are_named() -> None:
    runner = SimpleNamespace(lora_manager=SimpleNamespace(_adapter_manager=Manager()))
    assert missing_modules(runner, 1) == ["vision.q_proj"]


def test_a_transport_may_be_registered_again() -> None:
    for _ in range(2):
        register_transport(
            "registered_twice", "agent_rft.actors.engine.worker.weight_receiver", "ShmWeightTransferEngine"
        )
    with pytest.raises(ValueError):
        WeightTransferEngineFactory.register_engine("registered_twice", "a", "B")


def test_a_request_has_the_tokens_and_the_salt() -> None:
    assert make_tokens_request([1, 2], "3") == {"type": "token", "prompt_token_ids": [1, 2], "cache_salt": "3"}


def test_an_exception_of_the_serving_layer_has_a_status_and_a_message() -> None:
    fields = to_error_fields(ValueError("too many tokens"))
    assert (fields["code"], fields["message"]) == (400, "too many tokens")
    assert find_error("an answer") is None
