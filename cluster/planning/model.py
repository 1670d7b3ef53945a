"""A model as planning sees it: its shape and cache, the folder that it is read from, and a job's context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from actors.weights.adapter import CONFIG_FILE, AdapterFolder, is_adapter
from actors.weights.layout import ITEMSIZES
from trainer.errors import Problem, UserError
from trainer.spec.job import JobSpec
from trainer.spec.lora import LoraSpec

if TYPE_CHECKING:  # pydantic may be missing where this runs
    from trainer.spec.lora import LoraSpec
import json
import math
import re

FULL = {"full_attention", "attention", "global_attention", "*"}
WINDOWED = {"sliding_attention", "chunked_attention", "local_attention"}
NO_MIXER = {"mlp", "moe", "-", "E"}
"""Layers of hybrid models that are only feed-forward."""
STATES = (
    ("linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
    ("mamba_n_heads", "mamba_d_head", "mamba_d_state"),
    ("mamba_num_heads", "mamba_head_dim", "ssm_state_size"),
    ("num_attention_heads", "head_dim", "head_dim"),
)
"""Keys whose product is the number of elements of a layer's state: Qwen3-Next, Granite 4, Nemotron-H, MiniMax-01."""
CONVOLUTION = ("hidden_size", "conv_L_cache")
STATE_ITEMSIZE = 4
CACHE_KEYS = (
    *("layer_types", "layers_block_type", "hybrid_override_pattern", "sliding_window", "use_sliding_window"),
    *("attention_chunk_size", "kv_lora_rank", "qk_rope_head_dim", "conv_L_cache"),
    *dict.fromkeys(key for keys in STATES for key in keys),
)


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The layers that keep all tokens, and those that keep the last `window`; `width` is the elements of a token."""

    full_layers: int
    window_layers: int
    window: int
    heads: int
    """Among which tensor parallelism splits `width`; 1 for a latent vector, which each GPU holds."""
    width: int
    state_bytes: int = 0
    """Bytes of all other layers together, whatever the length of the sequence."""

    def sequence_bytes(self, num_tokens: int, itemsize: int, gpus: int = 1) -> int:
        """Bytes on each of an engine's GPUs; each holds at least one head (Kwon et al. 2023, PagedAttention)."""
        tokens = self.full_layers * num_tokens + self.window_layers * min(num_tokens, self.window)
        width = self.width // self.heads * max(1, self.heads // gpus)
        return tokens * width * itemsize + self.state_bytes // gpus


def cache_shape(config: Mapping[str, Any], layers: int, kv_heads: int, head_dim: int) -> CacheShape:
    """The shape that config.json describes; without kinds of layers all have full attention."""
    kinds = kinds_of_layers(config, layers)
    full = sum(kind in FULL for kind in kinds)
    windowed = sum(kind in WINDOWED for kind in kinds)
    others = layers - full - windowed - sum(kind in NO_MIXER for kind in kinds)
    window = config.get("sliding_window") or config.get("attention_chunk_size") or 0
    if latent := config.get("kv_lora_rank"):
        heads, width = 1, latent + (config.get("qk_rope_head_dim") or 0)
    else:
        heads, width = kv_heads, 2 * kv_heads * head_dim
    return CacheShape(full, windowed, window, heads, width, others * _state_bytes(config))


def kinds_of_layers(config: Mapping[str, Any], layers: int) -> list[str]:
    """The kind of each layer, as config.json names it."""
    if kinds := config.get("layer_types") or config.get("layers_block_type"):
        return list(kinds)
    if pattern := config.get("hybrid_override_pattern"):
        return list(pattern)
    windowed = config.get("sliding_window") and config.get("use_sliding_window", True) is not False
    return ["sliding_attention" if windowed else "full_attention"] * layers


def _state_bytes(config: Mapping[str, Any]) -> int:
    """The state of one layer in float32; 0 if no known keys say its size."""
    for keys in (CONVOLUTION, *STATES):
        sizes = [config.get(key) for key in keys]
        if all(isinstance(size, int) for size in sizes):
            return STATE_ITEMSIZE * prod(size for size in sizes if isinstance(size, int))
    return 0


REQUIRED_KEYS = ("num_attention_heads", "num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
ONLY_EXPERTS = {"moe", "E"}
"""Layers of Nemotron-H that have experts, where the others have none."""
NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
CONFIG_KEYS = (
    *REQUIRED_KEYS,
    *("num_key_value_heads", "head_dim", "num_experts_per_tok", "moe_intermediate_size", "first_k_dense_replace"),
    *NUM_EXPERTS,
    *CACHE_KEYS,
    *("max_position_embeddings", "rope_parameters"),
)
"""The keys of config.json that are read here, without the older names of two of them."""
SCALED_LATER = ("linear", "dynamic")
"""Kinds of rotary scaling whose factor is not included in `max_position_embeddings`."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model's sizes. Widths are per token: `intermediate` is summed over the experts that a token uses."""

    num_parameters: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    layers_cache: CacheShape | None = None
    """None: all layers have full attention."""
    idle_parameters: int = 0
    """Those of the experts that a token does not use."""

    @property
    def active_parameters(self) -> int:
        return self.num_parameters - self.idle_parameters

    @property
    def cache(self) -> CacheShape:
        return self.layers_cache or CacheShape(self.layers, 0, 0, self.kv_heads, 2 * self.key)

    @property
    def query(self) -> int:
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        """The width of keys, and that of values."""
        return self.kv_heads * self.head_dim

    def trained(self, lora: LoraSpec | None) -> int:
        """Parameters that are trained: all, or those of an adapter, `rank` x (inputs + outputs) of each linear layer.

        That is too many if `lora` names targets, or if the model has experts: their weights have no adapters.
        """
        if lora is None:
            return self.num_parameters
        attention = 2 * (self.hidden + self.query) + 2 * (self.hidden + self.key)
        return self.layers * lora.rank * (attention + 3 * (self.hidden + self.intermediate))


def read_config(path: Path) -> dict[str, Any]:
    """The content of a model folder's config.json; for a model of several parts, that of its language model.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a JSON object.
    """
    config = json.loads((path / "config.json").read_text())
    if not isinstance(config, dict):
        raise ValueError("must be a JSON object")
    text = config.get("text_config")
    return text if isinstance(text, dict) else config


def shape_of(path: Path, config: Mapping[str, Any]) -> ModelShape:
    """The shape of the model in a folder with this `config` (see `read_config`).

    Raises:
        ValueError: the config lacks a size.
    """
    if missing := [key for key in REQUIRED_KEYS if not isinstance(config.get(key), int)]:
        raise ValueError(f"{', '.join(missing)} must be an integer")
    heads = config["num_attention_heads"]
    experts = config.get("num_experts_per_tok") or 1
    width = (config.get("moe_intermediate_size") if experts > 1 else None) or config["intermediate_size"]
    kv_heads, head_dim = config.get("num_key_value_heads") or heads, config.get("head_dim")
    head_dim = head_dim or config["hidden_size"] // heads
    layers = config["num_hidden_layers"]
    all_experts = next((config[key] for key in NUM_EXPERTS if isinstance(config.get(key), int)), experts)
    moe_layers = sum(kind in ONLY_EXPERTS for kind in kinds_of_layers(config, layers))
    moe_layers = moe_layers or layers - (config.get("first_k_dense_replace") or 0)
    return ModelShape(
        num_parameters=_num_parameters(path, config),
        layers=layers,
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=experts * width,
        vocabulary=config["vocab_size"],
        layers_cache=cache_shape(config, layers, kv_heads, head_dim),
        idle_parameters=moe_layers * max(0, all_experts - experts) * 3 * config["hidden_size"] * width,
    )


def max_context(config: Mapping[str, Any]) -> int | None:
    """The model's longest context in tokens; None if it has no limit."""
    limit: int | None = config.get("max_position_embeddings")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if limit is not None and (rope.get("rope_type") or rope.get("type")) in SCALED_LATER:
        limit = int(limit * rope.get("factor", 1.0))
    return limit


def weight_files(path: Path) -> list[Path]:
    return sorted([*path.glob("*.safetensors"), *path.glob("*.bin")])


def _num_parameters(path: Path, config: Mapping[str, Any]) -> int:
    """The number of parameters by the headers of safetensors files, and by the size of other files (approximate)."""
    itemsize = ITEMSIZES.get(str(config.get("dtype") or config.get("torch_dtype")), 4)
    total = 0
    for file in weight_files(path):
        if file.suffix == ".safetensors":
            with safe_open(file, framework="np") as tensors:
                total += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
        else:
            total += file.stat().st_size // itemsize
    return total


GGUF_REMEDY = (
    "GGUF files cannot be trained: give the folder of the original model; or convert the file with transformers and "
    "gguf, AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file=FILE).save_pretrained(NEW), and so AutoTokenizer"
)


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
