"""The model of a job: the learner supports its architecture, and its chat template only ever appends, so that what is
trained is what was sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoTokenizer

from cluster.planning.model_folder import (
    ModelFolder,
    config_problem,
    find_model,
    model_problem,
    one_line,
    weight_problems,
)
from cluster.planning.model_shape import CONFIG_KEYS, max_context, shape_of
from trainer.data.chat import Renderer
from trainer.errors import Problem, UserError
from trainer.model.policy import refuse_unsupported
from trainer.spec.job import JobSpec

REASONING_SWITCHES = ("reasoning_effort", "enable_thinking")


@dataclass(frozen=True, slots=True)
class LoadableModel(ModelFolder):
    """A model that learner and engines can load."""

    renderer: Renderer


def read_model(job: JobSpec) -> tuple[LoadableModel | None, list[Problem]]:
    """The job's model, or everything that is wrong with it."""
    path, problem = find_model(job.model)
    if path is None or problem is not None:
        return None, [problem] if problem is not None else []
    problems = weight_problems(path)
    try:
        loaded = AutoConfig.from_pretrained(path, trust_remote_code=False)
        _refuse(loaded)
        config = _sizes(loaded)
        shape = None if problems else shape_of(path, config)
    except UserError as error:
        return None, [*problems, model_problem("unsupported_model", error.message, "use another model")]
    except Exception as error:  # noqa: BLE001 - files from outside, through three libraries
        return None, [*problems, config_problem(error)]
    renderer, found = _read_renderer(path, job)
    problems += found
    if problems or renderer is None or shape is None:
        return None, problems
    return LoadableModel(path, max_context(config), shape, renderer), []


def _refuse(config: Any) -> None:
    """Raise UserError for what the learner cannot load or would get wrong."""
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UserError(f"a model of type {config.model_type!r} is no causal language model")
    refuse_unsupported(config)


def _sizes(config: Any) -> dict[str, Any]:
    """The keys of config.json that `planning` reads, with the defaults and the other names of the model's class."""
    text = config.get_text_config()
    return {key: getattr(text, key, None) for key in CONFIG_KEYS} | {"dtype": str(text.dtype).removeprefix("torch.")}


def _read_renderer(path: Path, job: JobSpec) -> tuple[Renderer | None, list[Problem]]:
    if not [*path.glob("tokenizer*"), *path.glob("vocab*")]:
        return None, [model_problem("not_a_model", f"{path} holds no tokenizer", "add tokenizer.json and its config")]
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001 - as above; the tokenizers library raises bare Exceptions
        return None, [model_problem("not_a_model", f"its tokenizer: {one_line(error)}", "give a complete folder")]
    if not hasattr(tokenizer, "backend_tokenizer"):
        message = f"{type(tokenizer).__name__} is no fast tokenizer"
        return None, [model_problem("slow_tokenizer", message, "add the tokenizer.json of a fast tokenizer")]
    if not tokenizer.chat_template:
        remedy = "use an instruction-tuned model, or add chat_template.jinja"
        return None, [model_problem("no_chat_template", "its tokenizer has no chat template", remedy)]
    if job.method.type == "supervised":
        return Renderer(tokenizer), []  # each conversation is checked instead
    renderer = Renderer(tokenizer, **_template_arguments(job, tokenizer.chat_template))
    try:
        mistake = renderer.rewrites_history()
        if mistake is None:
            renderer.bridge(("tool", "tool"), ((), ()))
    except Exception as error:  # noqa: BLE001 - a template is a program from outside
        message = f"its chat template cannot render a tool call and its result: {one_line(error)}"
        return None, [model_problem("template_fails", message, "use a model whose chat template knows tools")]
    if mistake is not None:
        message = f"its chat template cannot be trained on: {mistake}"
        remedy = "use a template that keeps earlier turns word by word: what is trained must be what was sampled"
        return None, [model_problem("template_rewrites_history", message, remedy)]
    return renderer, []


def _template_arguments(job: JobSpec, template: str) -> dict[str, Any]:
    """The template's own switches for reasoning_effort, where it has them."""
    effort = job.reinforcement.hyperparameters.reasoning_effort
    if effort == "default":
        return {}
    values = {"reasoning_effort": effort, "enable_thinking": True}
    return {name: values[name] for name in REASONING_SWITCHES if name in template}
