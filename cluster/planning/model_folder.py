"""A model, looked at before anything starts: its folder is whole, the learner knows its kind, and its chat template
only ever appends, so that what is trained is what was sampled.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoTokenizer

from cluster.planning.model_shape import ModelShape, shape_of, weight_files
from trainer.data.chat import Renderer
from trainer.errors import Problem, UserError
from trainer.model.policy import refuse_unsupported
from trainer.spec.job import JobSpec

REASONING_SWITCHES = ("reasoning_effort", "enable_thinking")
SCALED_LATER = ("linear", "dynamic")
"""Kinds of rotary scaling whose factor is not yet in `max_position_embeddings`."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What a job needs to know of its model. `max_context` is in tokens, None where the model names no limit."""

    path: Path
    renderer: Renderer
    max_context: int | None
    shape: ModelShape


def read_model(job: JobSpec) -> tuple[ModelFolder | None, list[Problem]]:
    """The job's model, or all that is wrong with it."""
    path, problem = _find(job.model)
    if path is None or problem is not None:
        return None, [problem] if problem is not None else []
    problems = _weight_problems(path)
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        _refuse(config)
    except UserError as error:
        return None, [*problems, _problem("unsupported_model", error.message, "use another model")]
    except Exception as error:  # noqa: BLE001 - files from outside, through three libraries
        return None, [*problems, _problem("not_a_model", f"its config.json: {_short(error)}", "give a complete folder")]
    renderer, found = _read_renderer(path, job)
    problems += found
    if problems or renderer is None:
        return None, problems
    return ModelFolder(path, renderer, max_context(config), shape_of(path, config)), []


def _problem(code: str, message: str, remedy: str) -> Problem:
    return Problem(code, "model", message, remedy)


def _short(error: Exception) -> str:
    """An error of a library in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


# -- its files ---------------------------------------------------------------------------------------------------------


def _find(name: str) -> tuple[Path | None, Problem | None]:
    """The folder that `name` stands for. Nothing is downloaded: that may take an hour and is for the user to decide."""
    path = Path(name)
    if path.is_dir():
        if (path / "config.json").exists():
            return path, None
        remedy = "give a folder in Hugging Face form: config.json, tokenizer, *.safetensors"
        return None, _problem("not_a_model", f"{path} holds no config.json", remedy)
    if path.exists():
        return None, _problem("not_a_model", f"{path} is a file", "give the folder of a model in Hugging Face form")
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        remedy = "give a folder (its path counts from the job file) or a Hugging Face name such as Qwen/Qwen3-4B"
        return None, _problem("missing_model", f"there is no folder {name}", remedy)
    try:
        return Path(snapshot_download(name, local_files_only=True)), None
    except OSError:
        message = f"there is no folder {name}, nor a model of this name in the local Hugging Face cache"
        remedy = f"mend the path (it counts from the job file), or run `hf download {name}` first"
        return None, _problem("missing_model", message, remedy)


def _weight_problems(path: Path) -> list[Problem]:
    """Weights that are missing or cut short. Only headers are read: each says how long its file must be."""
    files = weight_files(path)
    if not files:
        return [_problem("not_a_model", f"{path} holds no weights", "add its *.safetensors files")]
    remedy = "copy or download the file again (a Git LFS pointer holds no weights)"
    problems = []
    for file in files:
        if file.suffix != ".safetensors":
            continue
        try:
            with safe_open(file, framework="np"):
                pass
        except (SafetensorError, OSError) as error:
            problems.append(_problem("corrupt_weights", f"{file.name} cannot be read: {error}", remedy))
    index = path / "model.safetensors.index.json"
    if index.exists():
        try:
            wanted = set(json.loads(index.read_text())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return [*problems, _problem("corrupt_weights", f"{index.name} cannot be read: {_short(error)}", remedy)]
        for name in sorted(wanted - {file.name for file in files}):
            problems.append(_problem("corrupt_weights", f"{name} is missing, which {index.name} names", remedy))
    return problems


# -- its kind ----------------------------------------------------------------------------------------------------------


def _refuse(config: Any) -> None:
    """Raise UserError for what the learner cannot load or would get wrong."""
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UserError(f"a model of type {config.model_type!r} is no causal language model")
    refuse_unsupported(config)


def max_context(config: Any) -> int | None:
    """In tokens; None where the model names no limit."""
    text = config.get_text_config()
    limit = getattr(text, "max_position_embeddings", None)
    rope = getattr(text, "rope_parameters", None) or {}
    if limit is not None and rope.get("rope_type") in SCALED_LATER:
        limit = int(limit * rope.get("factor", 1.0))
    return limit


# -- its template ------------------------------------------------------------------------------------------------------


def _read_renderer(path: Path, job: JobSpec) -> tuple[Renderer | None, list[Problem]]:
    if not [*path.glob("tokenizer*"), *path.glob("vocab*")]:
        return None, [_problem("not_a_model", f"{path} holds no tokenizer", "add tokenizer.json and its config")]
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001 - as above; the tokenizers library raises bare Exceptions
        return None, [_problem("not_a_model", f"its tokenizer: {_short(error)}", "give a complete folder")]
    if not hasattr(tokenizer, "backend_tokenizer"):
        message = f"{type(tokenizer).__name__} is no fast tokenizer"
        return None, [_problem("slow_tokenizer", message, "add the tokenizer.json of a fast tokenizer")]
    if not tokenizer.chat_template:
        remedy = "use an instruction-tuned model, or add chat_template.jinja"
        return None, [_problem("no_chat_template", "its tokenizer has no chat template", remedy)]
    if job.method.type == "supervised":
        return Renderer(tokenizer), []  # each conversation is checked instead
    renderer = Renderer(tokenizer, **_template_arguments(job, tokenizer.chat_template))
    try:
        mistake = renderer.rewrites_history()
        if mistake is None:
            renderer.bridge(("tool", "tool"), ((), ()))
    except Exception as error:  # noqa: BLE001 - a template is a program from outside
        message = f"its chat template cannot render a tool call and its result: {_short(error)}"
        return None, [_problem("template_fails", message, "use a model whose chat template knows tools")]
    if mistake is not None:
        message = f"its chat template cannot be trained on: {mistake}"
        remedy = "use a template that keeps earlier turns word by word: what is trained must be what was sampled"
        return None, [_problem("template_rewrites_history", message, remedy)]
    return renderer, []


def _template_arguments(job: JobSpec, template: str) -> dict[str, Any]:
    """The template's own switches for reasoning_effort, where it has them."""
    effort = job.reinforcement.hyperparameters.reasoning_effort
    if effort == "default":
        return {}
    values = {"reasoning_effort": effort, "enable_thinking": True}
    return {name: values[name] for name in REASONING_SWITCHES if name in template}
