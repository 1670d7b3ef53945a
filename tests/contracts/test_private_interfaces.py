"""Undocumented parts of vLLM, DeepSpeed and Ray are used in one module for each, which a new release may break."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGES = ("agent_rft", "serve", "cluster", "actors", "trainer")
INTERNALS = {
    "vllm": "actors/engine/vllm_internals.py",
    "deepspeed": "trainer/learner/deepspeed_internals.py",
    "ray": "cluster/ray_cluster/ray_internals.py",
}
DOCUMENTED = {
    "engine arguments and their configurations": {"vllm", "vllm.config", "vllm.engine.arg_utils"},
    "sampling and adapters": {"vllm.sampling_params", "vllm.lora.request"},
    "plugins: parsers, platforms and transports of weights": {
        "vllm.reasoning", "vllm.tool_parsers", "vllm.platforms", "vllm.distributed.weight_transfer.base",
    },
    "DeepSpeed's training API and `deepspeed.zero`": {"deepspeed"},
    "the API reference of Ray Core and its jobs": {
        "ray", "ray.exceptions", "ray.util", "ray.job_config", "ray.job_submission", "ray.util.placement_group",
        "ray.util.scheduling_strategies",
    },
    "the API reference of Ray Serve": {"ray.serve", "ray.serve.config", "ray.serve.exceptions", "ray.serve.schema"},
}  # fmt: skip
"""The documented modules, by what documents them."""
UNDOCUMENTED = {
    *("ds_id", "ds_numel", "ds_shape", "basic_optimizer", "grad_position", "fp32_partitioned_groups_flat"),
    *("engine_core", "lora_manager", "kv_cache_config", "input_batch", "quant_method", "lora_requests"),
}
"""Attributes of DeepSpeed's parameters and optimizers, and of vLLM's engine, whose names do not show it."""
OF_OTHERS = {
    *("_exit", "_fields", "_replace", "_run_exitfuncs", "_base_executable"),  # Python
    "_timeout",  # PyTorch
    *("_is_hf_initialized", "_is_stateful", "_weight_conversions"),  # Transformers
}
"""Attributes with an underscore that belong to other libraries."""
NAME = re.compile(rf"(?:{'|'.join(INTERNALS)})(?:\.\w+)*")


@cache
def module_of(name: str) -> str:
    """The longest part of a dotted name that is an installed module; nothing is imported."""
    parts = name.split(".")
    spec = importlib.util.find_spec(parts[0])
    assert spec is not None and spec.submodule_search_locations
    folder, length = Path(spec.submodule_search_locations[0]), 1
    for part in parts[1:]:
        folder /= part
        if not (folder.is_dir() or folder.with_suffix(".py").exists() or list(folder.parent.glob(f"{part}.*.so"))):
            break
        length += 1
    return ".".join(parts[:length])


def names_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The lines and dotted names of the upstreams: imports, attributes of `ray` and the like, and strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if NAME.fullmatch(alias.name))
        elif isinstance(node, ast.ImportFrom) and NAME.fullmatch(node.module or ""):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Attribute) and NAME.fullmatch(name := ast.unparse(node)):
            yield node.lineno, name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
            yield node.lineno, node.value


def attributes_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The lines and names of attributes that objects other than `self` have, also by `getattr` and the like."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr"):
            yield from ((node.lineno, arg.value) for arg in node.args[1:2] if isinstance(arg, ast.Constant))


def own_names(tree: ast.AST) -> set[str]:
    """The names that a module defines: its functions, classes, variables, and attributes of `self`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            names.add(node.attr)
    return names


def private_uses(source: str, place: str) -> list[str]:
    """Undocumented modules and attributes that a source outside of `INTERNALS` uses, with lines and what to do."""
    tree = ast.parse(source)
    documented = set().union(*DOCUMENTED.values())
    found = []
    for line, name in names_in(tree):
        if module_of(name) not in documented:
            found.append(f"{place}:{line}: {name} is undocumented: use it in {INTERNALS[name.partition('.')[0]]}")
    known = own_names(tree) | OF_OTHERS
    for line, name in attributes_in(tree):
        is_private = name.startswith("_") and not name.startswith("__") and name not in known
        if is_private or name in UNDOCUMENTED:
            found.append(
                f"{place}:{line}: {name} belongs to another library: use it in {' or '.join(INTERNALS.values())}"
            )
    return found


def test_only_three_modules_use_undocumented_parts_of_vllm_deepspeed_and_ray() -> None:
    found = []
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        place = str(path.relative_to(ROOT))
        if place not in INTERNALS.values():
            found += private_uses(path.read_text(), place)
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "from vllm.v1.engine.async_llm import AsyncLLM",
        "from vllm.distributed import weight_transfer",
        "def late():\n    import deepspeed.ops",
        "from ray import _private",
        "from ray import dashboard",
        "import ray\nray._raylet.GcsClient",
        "import ray\nray.dashboard.utils",
        "import_module('ray.dashboard.agent')",
        "EXECUTOR = 'vllm.v1.executor.uniproc_executor.UniProcExecutor'",
        "class Ours:\n    def find(self): return Factory._registry",
        "runner.lora_manager",
        "getattr(parameter, 'ds_shape', parameter.shape)",
    ],
)
def test_a_private_use_is_found(source: str) -> None:
    assert len(private_uses(source, "module.py")) >= 1


@pytest.mark.parametrize(
    "source",
    [
        "from vllm import LLM, SamplingParams\nfrom vllm.config import WeightTransferConfig",
        "import ray\nfrom ray import serve\nray.util.placement_group.placement_group",
        "class Ours:\n    def __init__(self, other):\n        self._parts = other._parts",
        "'ray job submit, vllm.v1 and others'",
    ],
)
def test_documented_modules_and_own_attributes_are_not(source: str) -> None:
    assert private_uses(source, "module.py") == []


@pytest.mark.parametrize("path", INTERNALS.values())
def test_each_function_for_an_undocumented_part_says_what_makes_it_unnecessary(path: str) -> None:
    tree = ast.parse((ROOT / path).read_text())
    public = [
        node
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_")
    ]
    docs = {node.name: ast.get_docstring(node) or "" for node in public}
    assert len(docs) > 5
    assert [name for name, doc in docs.items() if not re.search(r"\bUses\b.*Remove when:", doc, re.S)] == []
