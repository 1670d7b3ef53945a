"""Check of the architecture and tokenizer of a job's model, with the libraries that load the model.

The chat template and the tool parser are checked in `agent_rft.cluster.checks.model_checks.dialect_check`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

from agent_rft.chat.renderer import Renderer
from agent_rft.cluster.checks.model_checks.dialect_check import DialectResult, find_job_dialect
from agent_rft.cluster.checks.model_checks.lora_check import can_adapt, check_lora
from agent_rft.cluster.planning.model_folder import (
    ModelFolder,
    ModelSizes,
    config_problem,
    model_problem,
    quantized_problem,
)
from agent_rft.cluster.planning.model_shape import CONFIG_KEYS, read_max_context, read_quantization, read_shape
from agent_rft.errors import Problem, UserError
from agent_rft.spec.job import JobSpec
from agent_rft.trainer.model.policy import STATE_LAYERS, check_layer_support, layer_kinds
from agent_rft.trainer.model.router_replay import num_experts


@dataclass(frozen=True, slots=True)
class LoadableModel(ModelSizes):
    """Model that learner and engines can load, and the renderer that turns its conversations into tokens.

    `unread_calls_problem` is set if no parser reads the model's tool calls, which is a problem only for jobs that
    need them. `can_use_lora` is true if the learner and, for jobs with rollouts, vLLM support adapters of the model.
    """

    renderer: Renderer
    unread_calls_problem: Problem | None = None
    can_use_lora: bool = True


def read_model(job: JobSpec, folder: ModelFolder, *, trains: bool = True) -> tuple[LoadableModel | None, list[Problem]]:
    """Return (the job's model, its problems). With `trains`, settings that affect only training are checked, too.

    The model is None if it cannot be loaded. A model that can be loaded but not trained is returned with its problems.
    """
    if folder.problem is not None:
        return None, [folder.problem]
    problems = list(folder.weight_problems)
    try:
        loaded = AutoConfig.from_pretrained(folder.base, trust_remote_code=False)
        if (reason := _why_unsupported(loaded)) is not None:
            problems.append(model_problem("unsupported_model", reason, "use another model"))
            if type(loaded) not in MODEL_FOR_CAUSAL_LM_MAPPING:
                return None, problems
        if trains and job.cluster.zero_stage == 3 and (states := layer_kinds(loaded) & STATE_LAYERS):
            types = ", ".join(sorted(states))
            message = f"stage 3 cannot train layers of type {types}, because such layers process one sequence at a time"
            problems.append(Problem("stateful_layers_under_zero_3", "cluster.zero_stage", message, "set it to 2"))
        if trains and job.method.reinforcement is not None and job.reinforcement.algorithm.router_replay:
            problems += _router_replay_problems(loaded)
        if (quantization := read_quantization(folder.config)) is not None:
            problems.append(quantized_problem(quantization))
        config = _read_config_values(loaded)
        shape = None if folder.weight_problems else read_shape(config, folder.num_parameters)
        if trains and not problems:
            problems += check_lora(job, folder, loaded)
    except Exception as error:  # noqa: BLE001 - user files, read by three libraries
        return None, [*problems, config_problem(error)]
    dialect = _read_dialect(folder, job)
    problems += dialect.problems
    if dialect.renderer is None or shape is None:
        return None, problems
    model = LoadableModel(
        max_context=read_max_context(config),
        shape=shape,
        renderer=dialect.renderer,
        unread_calls_problem=dialect.unread_calls_problem,
        can_use_lora=can_adapt(job, loaded),
    )
    return model, problems


def _why_unsupported(config: Any) -> str | None:
    """Return why the learner cannot load the model or would train it incorrectly; None if it supports the model."""
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return f"a model of type {config.model_type!r} is not a causal language model"
    try:
        check_layer_support(config)
    except UserError as error:
        return error.message
    return None


def _router_replay_problems(config: Any) -> list[Problem]:
    if num_experts(config.get_text_config()):
        return []
    field, message = "method.reinforcement.algorithm.router_replay", "the model has no experts"
    return [
        Problem("not_a_mixture", field, message, "leave out router_replay, which is only for mixture-of-experts models")
    ]


def _read_config_values(config: Any) -> dict[str, Any]:
    """Return the values of config.json that `planning` reads, by key.

    Missing values are replaced by the defaults of the model's class. If config.json uses the class's own name for a
    key, such as `n_embd`, the value is returned under the usual name, such as `hidden_size`.
    """
    text = config.get_text_config()
    return {key: getattr(text, key, None) for key in CONFIG_KEYS} | {"dtype": str(text.dtype).removeprefix("torch.")}


def _read_dialect(folder: ModelFolder, job: JobSpec) -> DialectResult:
    if isinstance(folder.tokenizer, Problem):
        return DialectResult(None, None, [folder.tokenizer])
    if isinstance(folder.card, Problem):
        return DialectResult(None, None, [folder.card])
    return find_job_dialect(folder.tokenizer, job, folder.card)
