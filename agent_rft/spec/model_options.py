"""Settings of a job's model: its conversation format and its LoRA adapter."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, field_validator

from agent_rft.spec.endpoints import StrictModel

MAX_TEMPLATE_BYTES = 64_000
"""Maximum size of a chat template; the longest templates of public models are about 20 kB."""
MAX_VALUE_CHARS = 4_000
RENDERER_VARIABLES = frozenset(
    {
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "conversation"),
        *("chat_template", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict"),
        *("return_assistant_tokens_mask", "tokenizer_kwargs", "raise_exception", "strftime_now", "self", "generate"),
        *("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"),
    }
)
"""Names that `template_arguments` must not contain, because the renderer sets or uses them itself."""
_JINJA = re.compile(r"\{[{%]")

Text = Annotated[str, Field(max_length=MAX_VALUE_CHARS)]


def _check_argument_names(arguments: dict[str, Any]) -> dict[str, Any]:
    for name in arguments:
        if len(name) > 64 or not name.isidentifier():
            raise ValueError(f"{name[:64]!r} must be a name of at most 64 letters, digits and underscores")
        if name in RENDERER_VARIABLES:
            raise ValueError(f"{name!r} is set by the renderer and must not be an argument")
    return arguments


TemplateArguments = Annotated[
    dict[str, Text | int | float | bool | None], Field(max_length=32), AfterValidator(_check_argument_names)
]
Parser = Annotated[str, Field(min_length=1, max_length=64)]
StopTokens = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=64)], ...], Field(max_length=16)]


class ModelOptions(StrictModel):
    """Format of the model's conversations.

    Options that are not set are read from the model's folder or detected by the job check.
    """

    chat_template: str | None = None
    """Chat template that replaces the model's own; null: the model's own. In a job file: the path of a Jinja file of at
    most 64 kB, relative to the job file. In the API: the template itself, never a path. Set it if the model's own
    template omits or rejects tools."""
    template_arguments: TemplateArguments = Field(default={})
    """Arguments of the template, such as `enable_thinking: false`; at most 32 strings, numbers or booleans."""
    stop_tokens: StopTokens = ()
    """Additional tokens of the vocabulary that end a turn; the stop tokens of the model's folder and family always
    apply. At most 16. Set them if turns continue after the answer."""
    tool_parser: Parser = "auto"
    """Parser of tool calls in sampled text: one of vLLM's tool parsers, such as hermes (Qwen3), llama3_json or mistral.
    auto: vLLM's parsers are tried, and the first one that can parse the template's tool calls is used."""
    tools_in_prompt: bool = True
    """Whether the prompt must contain a row's tools. Set it to false for a model that was trained on its tools and
    needs no descriptions; a template that omits tools is then accepted."""

    @field_validator("chat_template")
    @classmethod
    def _check_template(cls, text: str | None) -> str | None:
        if text is not None and len(text.encode()) > MAX_TEMPLATE_BYTES:
            raise ValueError(f"must be at most {MAX_TEMPLATE_BYTES:,} bytes long")
        if text is not None and not is_template(text):
            raise ValueError("must be the text of a Jinja template, which contains {{ ... }} or {% ... %}")
        return text


def is_template(text: str) -> bool:
    """Return whether `text` is a Jinja template and not, for example, a path."""
    return _JINJA.search(text) is not None


def read_template(path: Path) -> str:
    """Return the text of a chat template file.

    Raises:
        ValueError: The file cannot be read, is not UTF-8 or is too large; the message gives the reason.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TEMPLATE_BYTES + 1)
        if len(content) > MAX_TEMPLATE_BYTES:
            raise ValueError(f"{path} is larger than {MAX_TEMPLATE_BYTES:,} bytes")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None


# -- lora --------------------------------------------------------------------------------------------------------------


ModuleName = Annotated[str, StringConstraints(pattern=r"^\w+(\.\w+)*$", max_length=200)]


class LoraSpec(StrictModel):
    """LoRA adapter (Hu et al. 2021): small matrices are added to the model's frozen weights and trained.

    A weight W becomes W + (alpha / rank) x B x A. A has `rank` rows. B has `rank` columns and is initialized to 0.
    """

    rank: Annotated[int, Field(ge=1, le=512)] = 32
    """Rank of the adapter's matrices. An adapter with a higher rank can learn more, but is larger. Reinforcement needs
    only 8 to 32; raise the rank for supervised training on many rows."""
    alpha: Annotated[float, Field(gt=0, le=65_536)] = 32.0
    """Scale of the adapter's update. At the default, the best learning rate is almost independent of the rank, so keep
    the default."""
    targets: Literal["all-linear"] | Annotated[tuple[ModuleName, ...], Field(min_length=1, max_length=64)] = (
        "all-linear"
    )
    """Weights to adapt: all-linear (every linear layer except the output head) or a list of layer names, such as
    `q_proj` or `layers.0.mlp.up_proj`. Adapting only the attention layers learns less (Schulman et al. 2025)."""

    def __str__(self) -> str:
        return f"rank {self.rank}, alpha {self.alpha:g}, targets {', '.join(self.names)}"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.targets,) if isinstance(self.targets, str) else self.targets
