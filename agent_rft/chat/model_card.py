"""agent_rft.json in the folder of a trained model: how it writes conversations, for who serves or trains it next.

Its chat template and its end tokens are also in the files that every library reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent_rft.chat.dialect import Dialect
from agent_rft.errors import UserError
from agent_rft.spec.model_options import LoraSpec, ModelOptions, Parser, StopTokens, TemplateArguments

FILE = "agent_rft.json"
FORMAT = 1
REMEDY = "use the version of agent-rft that wrote it, or delete the file and set model_options"


class ModelCard(BaseModel):
    """The content of the file; keys that it does not know are left out."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    format: int = Field(default=FORMAT, le=FORMAT)
    family: str = Field(max_length=64)
    tool_parser: Parser | None
    """None: no parser reads the model's calls, so it works without tools only."""
    template_arguments: TemplateArguments = {}
    stop_tokens: StopTokens = ()
    tools_in_prompt: bool = True
    template_digest: str = Field(default="", max_length=64)
    lora: LoraSpec | None = None
    """The adapter that was trained, whether the job or `auto` chose it; None: all weights."""

    @classmethod
    def of(cls, dialect: Dialect, options: ModelOptions, template: str, lora: LoraSpec | None = None) -> ModelCard:
        """The card of a model which is trained with these `options`, resolved to this `dialect` of its `template`.

        With `lora`, an adapter is trained.
        """
        return cls(
            family=dialect.family,
            tool_parser=dialect.tool_parser,
            template_arguments=dialect.template_arguments,
            stop_tokens=options.stop_tokens,
            tools_in_prompt=options.tools_in_prompt,
            template_digest=digest_of(template),
            lora=lora,
        )

    def fill_in(self, options: ModelOptions) -> ModelOptions:
        """Return the options of a job that starts from the model, with the card's values where the job sets none."""
        names = type(self).model_fields.keys() & type(options).model_fields.keys() - options.model_fields_set
        values = {name: getattr(self, name) for name in names}
        return options.model_copy(update={name: value for name, value in values.items() if value is not None})

    def without_arguments(self, names: Container[str]) -> ModelCard:
        kept = {name: value for name, value in self.template_arguments.items() if name not in names}
        return self.model_copy(update={"template_arguments": kept})

    @property
    def dialect(self) -> Dialect:
        """How the model is served."""
        return Dialect(self.family, self.tool_parser, self.stop_tokens, template_arguments=self.template_arguments)


def digest_of(template: str) -> str:
    """The digest of a chat template, by which a card says to what its parser belongs."""
    return hashlib.blake2b(template.encode(), digest_size=8).hexdigest()


def read_card(folder: Path) -> ModelCard | None:
    """What a model's folder says; None if it has no such file.

    Raises:
        UserError: The file is damaged, or was written by a newer version.
    """
    try:
        return ModelCard.model_validate_json((folder / FILE).read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(f"cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise _unreadable(f"{where}: {first['msg']}" if where else first["msg"]) from None


def _unreadable(why: str) -> UserError:
    problem = f"its {FILE}: {why}"
    return UserError(f"{problem}; {REMEDY}", problem=problem, remedy=REMEDY)
