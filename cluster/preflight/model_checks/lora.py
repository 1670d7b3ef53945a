"""The check of a job's `lora`: that it fits the model, the adapter that it may start from, and vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from safetensors import safe_open

from agent_rft.actors.engine.vllm_internals import has_adapters
from agent_rft.cluster.planning.model_folder import ModelFolder, model_problem
from agent_rft.errors import Problem, UserError
from agent_rft.spec.job import JobSpec
from agent_rft.spec.model_options import LoraSpec
from agent_rft.trainer.learner.adapter import WEIGHTS_FILE, AdapterFolder
from agent_rft.trainer.model.lora import LinearShapes, linear_shapes, tensor_shapes

NO_LORA = "leave `lora` out, so that all weights are trained, or use another model"


def lora_problems(job: JobSpec, folder: ModelFolder, config: Any) -> Iterator[Problem]:
    """Yield what is wrong with the job's `lora`; `config` is the Transformers config of the folder's `base`."""
    adapter = folder.adapter
    lora = folder.lora if job.optimizer.lora == "auto" else job.optimizer.adapter
    if adapter is not None:
        try:
            adapter.refuse_unless(lora)
        except UserError as error:
            yield model_problem("other_adapter", error.problem, error.remedy)
            return
    if lora is None:
        return
    at = f"method.{job.method.type}.algorithm.lora"
    try:
        layers = linear_shapes(config, lora)
    except UserError as error:
        yield Problem("unknown_target", f"{at}.targets", error.problem, error.remedy)
        return
    most = max(min(shape) for shape in layers.values())
    if lora.rank > most:
        message = f"is {lora.rank}, but no adapted weight of the model has a rank above {most}"
        yield Problem("rank_too_large", f"{at}.rank", message, f"set it to {most} or less; 8 to 32 are usual")
    if adapter is not None:
        yield from _misfit(adapter, layers, lora.rank)
    if job.method.type == "reinforcement":
        for architecture in config.architectures or ():
            if not has_adapters(architecture):
                message = f"vLLM, which samples the rollouts, runs no adapters on {architecture}"
                yield Problem("no_adapters", at, message, NO_LORA)


def can_adapt(job: JobSpec, config: Any) -> bool:
    """Whether `lora: auto` may train an adapter of a model with this config."""
    if job.optimizer.lora != "auto":
        return True
    try:
        linear_shapes(config, LoraSpec())
    except UserError:
        return False
    samples = job.method.type == "reinforcement"
    return not samples or all(map(has_adapters, config.architectures or ()))


def _misfit(adapter: AdapterFolder, layers: LinearShapes, rank: int) -> Iterator[Problem]:
    with safe_open(adapter.path / WEIGHTS_FILE, framework="np") as file:
        found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
    wanted = tensor_shapes(layers, rank)
    wrong = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
    if wrong:
        name = wrong[0]
        message = (
            f"its adapter does not fit its base {adapter.base} and `lora`: {name} is {_shown(found.get(name))}, not "
            f"{_shown(wanted.get(name))}" + f" (and {len(wrong) - 1} more)" * (len(wrong) > 1)
        )
        remedy = "correct base_model_name_or_path in adapter_config.json, or give `lora` the adapter's targets"
        yield model_problem("adapter_of_another_model", message, remedy)


def _shown(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else " x ".join(map(str, shape))
