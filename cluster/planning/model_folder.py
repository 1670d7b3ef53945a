"""A model's folder, checked without loading the model: its files are complete, and config.json gives its sizes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from actors.weights.adapter import CONFIG_FILE, AdapterFolder, is_adapter
from cluster.planning.model import ModelShape, max_context, quantization_of, read_config, shape_of, weight_files
from trainer.errors import Problem, UserError
from trainer.spec.job import JobSpec
from trainer.spec.lora import LoraSpec

GGUF_REMEDY = (
    "GGUF files cannot be trained: give the folder of the original model; or convert the file with transformers and "
    "gguf, AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file=FILE).save_pretrained(NEW), and so AutoTokenizer"
)

MXFP4_REMEDY = (
    "write it in bfloat16 with transformers: AutoModelForCausalLM.from_pretrained(FOLDER, dtype='bfloat16', "
    "quantization_config=Mxfp4Config(dequantize=True)).save_pretrained(NEW, save_original_format=False); "
    "then copy its tokenizer and chat template to NEW"
)
"""gpt-oss exists only quantized. In its original format, transformers 5.19 would write experts without their names."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What a plan needs to know about a model.

    `max_context` is in tokens, None if the model has no limit. `adapter` is the shape of the adapter that the folder
    has, None if it has all weights.
    """

    path: Path
    max_context: int | None
    shape: ModelShape
    adapter: LoraSpec | None


def read_folder(name: str) -> tuple[ModelFolder | None, list[Problem]]:
    """The folder of a job's model `name`, or everything that is wrong with its files."""
    path, problem = find_model(name)
    if path is None or problem is not None:
        return None, [problem] if problem is not None else []
    base, problem = find_base(path)
    if base is None or problem is not None:
        return None, [problem] if problem is not None else []
    problems = weight_problems(path, base)
    try:
        config = read_config(base)
        if (quantization := quantization_of(base)) is not None:
            problems.append(quantized_problem(quantization))
        folder = None if problems else ModelFolder(path, max_context(config), shape_of(base, config), adapter_of(path))
    except (OSError, ValueError, TypeError, AttributeError) as error:  # the JSON may have any shape
        return None, [*problems, config_problem(error)]
    return folder, problems


def adapter_of(path: Path) -> LoraSpec | None:
    """The shape of the adapter in a model's folder; None if there is none, or it is of a kind that is not trained."""
    try:
        adapter = AdapterFolder.read(path)
    except UserError:  # a problem of the model
        return None
    return None if adapter is None else adapter.config.as_lora()


def config_problem(error: Exception) -> Problem:
    """The problem of a config.json that cannot be used."""
    return model_problem("not_a_model", f"its config.json: {one_line(error)}", "give a complete folder")


def quantized_problem(quantization: Mapping[str, Any]) -> Problem:
    """The problem of weights that have no gradients; `quantization` is config.json's `quantization_config`."""
    method = quantization.get("quant_method", "by an unknown method")
    message = f"its weights are quantized ({method}), and cannot be trained"
    remedy = "give the folder of the model before it was quantized, in bfloat16 or float32"
    return model_problem("unsupported_model", message, MXFP4_REMEDY if method == "mxfp4" else remedy)


def model_problem(code: str, message: str, remedy: str) -> Problem:
    """A problem of the job's field `model`."""
    return Problem(code, "model", message, remedy)


def one_line(error: Exception) -> str:
    """An error of a library in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def find_model(name: str) -> tuple[Path | None, Problem | None]:
    """The folder of the model `name`, a path or a Hugging Face name. Downloading is left to the user."""
    path = Path(name)
    if path.is_dir():
        if (path / "config.json").exists() or is_adapter(path):
            return path, None
        remedy = "give a folder in Hugging Face format: config.json, tokenizer, *.safetensors"
        return None, model_problem("not_a_model", f"{path} has no config.json", _of_gguf(path) or remedy)
    if path.exists():
        remedy = GGUF_REMEDY if path.suffix == ".gguf" else "give the folder of a model in Hugging Face format"
        return None, model_problem("not_a_model", f"{path} is a file", remedy)
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        remedy = (
            "give a folder (relative to the job file) or a Hugging Face name such as Qwen/Qwen3-4B; "
            "an alias or a tuned model of a server is known only to its API"
        )
        return None, model_problem("missing_model", f"there is no folder {name}", remedy)
    try:
        from huggingface_hub import snapshot_download  # slow to import, and most models are folders

        return Path(snapshot_download(name, local_files_only=True)), None
    except OSError:
        message = f"there is no folder {name}, and no model of this name in the local Hugging Face cache"
        remedy = f"fix the path (relative to the job file), or run `hf download {name}` first"
        return None, model_problem("missing_model", message, remedy)


def find_base(path: Path) -> tuple[Path | None, Problem | None]:
    """The folder with the whole model's weights: `path` itself, or that of the base of an adapter in it."""
    try:
        adapter = AdapterFolder.read(path)
    except UserError as error:
        return None, model_problem("not_a_model", error.problem, error.remedy)
    if adapter is None:
        return path, None
    base, problem = find_model(str(adapter.base))
    if problem is not None:
        remedy = f"bring it back, or correct base_model_name_or_path in {path / CONFIG_FILE}"
        return None, model_problem(problem.code, f"{path} is an adapter, and of its base {problem.message}", remedy)
    return base, None


def _of_gguf(folder: Path) -> str | None:
    return GGUF_REMEDY if any(folder.glob("*.gguf")) else None


def weight_problems(path: Path, base: Path) -> list[Problem]:
    """Weight files of a model, or of an adapter and its base, that are missing or truncated."""
    return [problem for folder in dict.fromkeys((path, base)) for problem in _weight_problems(folder)]


def _weight_problems(path: Path) -> list[Problem]:
    """Only headers are read, which say how long a file must be."""
    files = weight_files(path)
    if not files:
        remedy = _of_gguf(path) or "add its *.safetensors files"
        return [model_problem("not_a_model", f"{path} has no weights", remedy)]
    remedy = "copy or download the file again (a Git LFS pointer has no weights)"
    problems = []
    for file in files:
        if file.suffix != ".safetensors":
            continue
        try:
            with safe_open(file, framework="np"):
                pass
        except (SafetensorError, OSError) as error:
            problems.append(model_problem("corrupt_weights", f"{file.name} cannot be read: {error}", remedy))
    index = path / "model.safetensors.index.json"
    if index.exists():
        try:
            wanted = set(json.loads(index.read_text())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"{index.name} cannot be read: {one_line(error)}"
            return [*problems, model_problem("corrupt_weights", message, remedy)]
        for name in sorted(wanted - {file.name for file in files}):
            problems.append(model_problem("corrupt_weights", f"{name} is listed in {index.name} but missing", remedy))
    return problems


MAX_AUTO_CONTEXT = 16_384


def context_of(job: JobSpec, max_context: int | None) -> int:
    """The job's context length; `auto` is the model's `max_context` (None: unknown), but at most MAX_AUTO_CONTEXT."""
    wanted = job.cluster.context_length
    if wanted != "auto":
        return wanted
    return MAX_AUTO_CONTEXT if max_context is None else min(max_context, MAX_AUTO_CONTEXT)


def context_problems(context_length: int, max_context: int | None) -> list[Problem]:
    """A problem if the context is longer than the model allows."""
    if max_context is None or context_length <= max_context:
        return []
    message, remedy = f"is {context_length}, the model allows {max_context}", f"give at most {max_context}, or auto"
    return [Problem("context_too_long", "cluster.context_length", message, remedy)]
