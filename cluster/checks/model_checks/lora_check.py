"""Check that a job's setting `lora` fits the model, vLLM and, if the job starts from an adapter, that adapter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from safetensors import safe_open

from agent_rft.actors.engine.vllm_internals import supports_adapters
from agent_rft.cluster.planning.model_folder import ModelFolder, model_problem
from agent_rft.errors import Problem, UserError
from agent_rft.spec.job import JobSpec
from agent_rft.spec.model_options import LoraSpec
from agent_rft.trainer.learner.adapter import WEIGHTS_FILE, AdapterFolder
from agent_rft.trainer.model.lora import LinearShapes, find_linear_shapes, tensor_shapes

NO_LORA = "leave out `lora` to train all weights, or use another model"


def check_lora(job: JobSpec, folder: ModelFolder, config: Any) -> Iterator[Problem]:
    """Yield the problems of the job's setting `lora`; `config` is the Transformers config of `folder.base`."""
    adapter = folder.adapter
    lora = folder.lora if job.optimizer_settings.lora == "auto" else job.optimizer_settings.adapter
    if adapter is not None:
        try:
            adapter.check_compatible(lora)
        except UserError as error:
            yield model_problem("adapter_mismatch", error.problem, error.fix)
            return
    if lora is None:
        return
    at = f"method.{job.method.type}.algorithm.lora"
    try:
        layers = find_linear_shapes(config, lora)
    except UserError as error:
        yield Problem("unknown_target", f"{at}.targets", error.problem, error.fix)
        return
    max_rank = max(min(shape) for shape in layers.values())
    if lora.rank > max_rank:
        message = f"is {lora.rank}, but the weights that the adapter changes have a rank of at most {max_rank}"
        yield Problem("rank_too_large", f"{at}.rank", message, f"set it to {max_rank} or less; 8 to 32 are usual")
    if adapter is not None:
        yield from _shape_problems(adapter, layers, lora.rank)
    if job.method.type == "reinforcement":
        for architecture in config.architectures or ():
            if not supports_adapters(architecture):
                message = f"vLLM, which samples the rollouts, does not support LoRA for {architecture}"
                yield Problem("lora_unsupported", at, message, NO_LORA)


def can_adapt(job: JobSpec, config: Any) -> bool:
    """Return whether `lora: auto` may choose an adapter for this model. Always true if the job sets `lora`."""
    if job.optimizer_settings.lora != "auto":
        return True
    try:
        find_linear_shapes(config, LoraSpec())
    except UserError:
        return False
    samples = job.method.type == "reinforcement"
    return not samples or all(map(supports_adapters, config.architectures or ()))


def _shape_problems(adapter: AdapterFolder, layers: LinearShapes, rank: int) -> Iterator[Problem]:
    with safe_open(adapter.path / WEIGHTS_FILE, framework="np") as file:
        found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
    expected = tensor_shapes(layers, rank)
    wrong = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    if wrong:
        name = wrong[0]
        message = (
            f"the adapter does not match its base model {adapter.base} or the setting `lora`: {name} has "
            f"{_shape_text(found.get(name))} instead of {_shape_text(expected.get(name))}"
            + f" (and {len(wrong) - 1} more)"
            * (len(wrong) > 1)
        )
        fix = "correct base_model_name_or_path in adapter_config.json, or set `lora` to the adapter's targets"
        yield model_problem("adapter_of_another_model", message, fix)


def _shape_text(shape: tuple[int, ...] | None) -> str:
    return "no weights" if shape is None else " x ".join(map(str, shape))
