"""Functions that find a job's model folder, check its files, and read the model's sizes without loading the model.

A command creates one `ModelFolder` for its job and passes it on, so that no file is read twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from agent_rft.chat.model_card import ModelCard, read_card
from agent_rft.cluster.planning.model_shape import (
    ModelShape,
    count_parameters,
    get_text_config,
    list_weight_files,
    read_config,
    read_max_context,
    read_quantization,
    read_shape,
)
from agent_rft.errors import Problem, UserError
from agent_rft.spec.job import JobSpec
from agent_rft.spec.model_options import LoraSpec
from agent_rft.trainer.learner.adapter import CONFIG_FILE, AdapterFolder, is_adapter

if TYPE_CHECKING:
    from agent_rft.chat.renderer import Tokenizer

GGUF_FIX = (
    "GGUF files cannot be trained. Give the folder of the original model, or convert the file with transformers and "
    "gguf: AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file=FILE).save_pretrained(NEW). Save the tokenizer to "
    "NEW in the same way, with AutoTokenizer"
)

MXFP4_FIX = (
    "convert the model to bfloat16 with transformers: AutoModelForCausalLM.from_pretrained(FOLDER, dtype='bfloat16', "
    "quantization_config=Mxfp4Config(dequantize=True)).save_pretrained(NEW, save_original_format=False); "
    "then copy its tokenizer and chat template to NEW"
)
"""Instructions for users of gpt-oss models, whose weights are published only in quantized form.

The instructions set `save_original_format=False`, because otherwise transformers 5.19 writes the experts' weights
without names.
"""


@dataclass(frozen=True)
class ModelFolder:
    """Folder of a job's model. Each file is read once, at first use.

    Attributes:
        path: The folder, or the model's name if the folder was not found.
        base: The folder with all weights: the adapter's base model if `path` has an adapter, else `path`.
        adapter: The adapter in the folder; None if the folder has all weights.
        problem: Why the folder, or the base model of its adapter, was not found; None if they were found.
    """

    path: Path
    base: Path
    adapter: AdapterFolder | None = None
    problem: Problem | None = None

    @classmethod
    def find(cls, name: str) -> ModelFolder:
        """Find the folder of a job's model `name`, a path or a Hugging Face name."""
        path, problem = find_model(name)
        if path is None:
            return cls(Path(name), Path(name), problem=problem)
        try:
            adapter = AdapterFolder.read(path)
        except UserError as error:
            return cls(path, path, problem=model_problem("not_a_model", error.problem, error.fix))
        if adapter is None:
            return cls(path, path)
        base, problem = find_base(adapter)
        return cls(path, path if base is None else base, adapter, problem)

    @property
    def lora(self) -> LoraSpec | None:
        """Value of the job setting `lora` that matches the folder's adapter.

        None if the folder has no adapter, or if no value of `lora` matches the adapter.
        """
        return None if self.adapter is None else self.adapter.config.to_lora_spec()

    @cached_property
    def config(self) -> dict[str, Any]:
        """Content of config.json.

        Raises:
            OSError: The file cannot be read.
            ValueError: The file is not a JSON object.
        """
        return read_config(self.base)

    @cached_property
    def card(self) -> ModelCard | Problem | None:
        """Model card in the folder; a problem if the card cannot be read, None if the folder has no card."""
        try:
            return read_card(self.path)
        except UserError as error:
            return model_problem("not_a_model", error.problem, error.fix)

    @cached_property
    def weight_problems(self) -> tuple[Problem, ...]:
        """Problems with missing or damaged weight files in the folders `path` and `base`."""
        folders = dict.fromkeys((self.path, self.base))
        return tuple(problem for folder in folders for problem in _weight_problems(folder))

    @cached_property
    def num_parameters(self) -> int:
        """Number of parameters in `base`; wrong if there are `weight_problems`. Raises the same errors as `config`."""
        return count_parameters(self.base, self.config)

    @cached_property
    def tokenizer(self) -> Tokenizer | Problem:
        """Fast tokenizer of the folder; a problem if the tokenizer cannot be used."""
        if not [*self.path.glob("tokenizer*"), *self.path.glob("vocab*")]:
            return model_problem("not_a_model", f"{self.path} has no tokenizer", "add tokenizer.json and its config")
        from agent_rft.actors.engine.chat.tokenizer import load_tokenizer  # most checks need no tokenizer

        try:
            tokenizer = load_tokenizer(self.path)
        except Exception as error:  # noqa: BLE001 - the tokenizers library raises plain Exceptions
            message = f"the tokenizer cannot be read: {format_error(error)}"
            return model_problem("not_a_model", message, "give a folder with all model files")
        if not hasattr(tokenizer, "backend_tokenizer"):
            message = f"{type(tokenizer).__name__} is not a fast tokenizer"
            return model_problem("slow_tokenizer", message, "add the tokenizer.json of a fast tokenizer")
        return tokenizer


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of a model. `max_context` is in tokens; None if the model has no limit."""

    max_context: int | None
    shape: ModelShape


def read_sizes(folder: ModelFolder) -> tuple[ModelSizes | None, list[Problem]]:
    """Return the sizes of the model in a folder, and the problems of its files.

    If there are problems, the sizes are None.
    """
    if folder.problem is not None:
        return None, [folder.problem]
    problems = list(folder.weight_problems)
    try:
        config = get_text_config(folder.config)
        if (quantization := read_quantization(folder.config)) is not None:
            problems.append(quantized_problem(quantization))
        sizes = None if problems else ModelSizes(read_max_context(config), read_shape(config, folder.num_parameters))
    except (OSError, ValueError, TypeError, AttributeError) as error:  # the JSON may have any shape
        return None, [*problems, config_problem(error)]
    return sizes, problems


def config_problem(error: Exception) -> Problem:
    """Return the problem to report if a config.json cannot be used because of `error`."""
    return model_problem(
        "not_a_model", f"the config.json cannot be used: {format_error(error)}", "give a folder with all model files"
    )


def quantized_problem(quantization: Mapping[str, Any]) -> Problem:
    """Return the problem for quantized weights; `quantization` is config.json's `quantization_config`."""
    method = quantization.get("quant_method", "by an unknown method")
    message = f"the weights are quantized ({method}) and cannot be trained"
    fix = "give the folder of the model before quantization, in bfloat16 or float32"
    return model_problem("unsupported_model", message, MXFP4_FIX if method == "mxfp4" else fix)


def model_problem(code: str, message: str, fix: str) -> Problem:
    """Return a problem with the job's `model` field."""
    return Problem(code, "model", message, fix)


def format_error(error: Exception) -> str:
    """Return a library's error as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def find_model(name: str) -> tuple[Path | None, Problem | None]:
    """Find the folder of the model `name`, a path or a Hugging Face name. Never downloads the model."""
    path = Path(name)
    if path.is_dir():
        if (path / "config.json").exists() or is_adapter(path):
            return path, None
        fix = "give a folder in Hugging Face format: config.json, tokenizer, *.safetensors"
        return None, model_problem("not_a_model", f"{path} has no config.json", _gguf_fix(path) or fix)
    if path.exists():
        fix = GGUF_FIX if path.suffix == ".gguf" else "give the folder of a model in Hugging Face format"
        return None, model_problem("not_a_model", f"{path} is a file", fix)
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        fix = (
            "give a folder (relative to the job file) or a Hugging Face name such as Qwen/Qwen3-4B; "
            "aliases and tuned models of a server can be used only through its API"
        )
        return None, model_problem("missing_model", f"the folder {name} does not exist", fix)
    try:
        from huggingface_hub import snapshot_download  # slow to import, and most models are folders

        return Path(snapshot_download(name, local_files_only=True)), None
    except OSError:
        message = f"the folder {name} does not exist, and the local Hugging Face cache has no model of this name"
        fix = f"fix the path (relative to the job file), or run `hf download {name}` first"
        return None, model_problem("missing_model", message, fix)


def find_base(adapter: AdapterFolder) -> tuple[Path | None, Problem | None]:
    """Find the folder of an adapter's base model."""
    base, problem = find_model(str(adapter.base))
    if problem is not None:
        fix = f"restore the base model, or correct base_model_name_or_path in {adapter.path / CONFIG_FILE}"
        message = f"{adapter.path} is an adapter, and its base model cannot be used: {problem.message}"
        return None, model_problem(problem.code, message, fix)
    return base, None


def _gguf_fix(folder: Path) -> str | None:
    return GGUF_FIX if any(folder.glob("*.gguf")) else None


def _weight_problems(path: Path) -> list[Problem]:
    """Return problems of a folder's weight files, such as missing, damaged or truncated files."""
    files = list_weight_files(path)
    if not files:
        fix = _gguf_fix(path) or "add its *.safetensors files"
        return [model_problem("not_a_model", f"{path} has no weights", fix)]
    fix = "copy or download the file again (a Git LFS pointer file contains no weights)"
    problems = []
    for file in files:
        if file.suffix != ".safetensors":
            continue
        try:
            with safe_open(file, framework="np"):
                pass
        except (SafetensorError, OSError) as error:
            problems.append(model_problem("corrupt_weights", f"{file.name} cannot be read: {error}", fix))
    index = path / "model.safetensors.index.json"
    if index.exists():
        try:
            listed = set(json.loads(index.read_text())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"{index.name} cannot be read: {format_error(error)}"
            return [*problems, model_problem("corrupt_weights", message, fix)]
        for name in sorted(listed - {file.name for file in files}):
            problems.append(model_problem("corrupt_weights", f"{name} is listed in {index.name} but is missing", fix))
    return problems


MAX_AUTO_CONTEXT = 16_384


def resolve_context(job: JobSpec, max_context: int | None) -> int:
    """Return the job's context length. For `auto`, it is the model's `max_context`, but at most MAX_AUTO_CONTEXT.

    `max_context` is None if the model has no limit or was not read.
    """
    setting = job.cluster.context_length
    if setting != "auto":
        return setting
    return MAX_AUTO_CONTEXT if max_context is None else min(max_context, MAX_AUTO_CONTEXT)


def context_problems(context_length: int, max_context: int | None) -> list[Problem]:
    """Return a problem if the context is longer than the model allows."""
    if max_context is None or context_length <= max_context:
        return []
    message, fix = (
        f"is {context_length}, but the model allows at most {max_context}",
        f"set {max_context} or less, or auto",
    )
    return [Problem("context_too_long", "cluster.context_length", message, fix)]
