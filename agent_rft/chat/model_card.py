"""The file agent_rft.json, which describes the conversation format of a trained model.

The file is in the model's folder, and is read for serving and further training. The chat template and the stop tokens
are also stored in the usual Hugging Face files, which other libraries read.
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
CARD_HINT = "use the version of agent-rft that wrote the file, or delete the file and set model_options"


class ModelCard(BaseModel):
    """Content of agent_rft.json. Unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    format: int = Field(default=FORMAT, le=FORMAT)
    family: str = Field(max_length=64)
    tool_parser: Parser | None
    """Parser of the model's calls; None: no parser can parse them, so the model works only without tools."""
    template_arguments: TemplateArguments = {}
    stop_tokens: StopTokens = ()
    tools_in_prompt: bool = True
    template_digest: str = Field(default="", max_length=64)
    lora: LoraSpec | None = None
    """Settings of the trained adapter, with the values chosen for `auto`; None: all weights were trained."""

    @classmethod
    def from_job(
        cls, dialect: Dialect, options: ModelOptions, template: str, lora: LoraSpec | None = None
    ) -> ModelCard:
        """Create the card of a model from the job that trained it.

        Args:
            dialect: Dialect that the check detected.
            options: Model options of the job.
            template: Text of the chat template.
            lora: Settings of the trained adapter; None if all weights were trained.
        """
        return cls(
            family=dialect.family,
            tool_parser=dialect.tool_parser,
            template_arguments=dialect.template_arguments,
            stop_tokens=options.stop_tokens,
            tools_in_prompt=options.tools_in_prompt,
            template_digest=hash_template(template),
            lora=lora,
        )

    def complete_options(self, options: ModelOptions) -> ModelOptions:
        """Return `options` with the card's values for all options that are not set.

        This is used for a job that trains the model further.
        """
        names = type(self).model_fields.keys() & type(options).model_fields.keys() - options.model_fields_set
        values = {name: getattr(self, name) for name in names}
        return options.model_copy(update={name: value for name, value in values.items() if value is not None})

    def drop_arguments(self, names: Container[str]) -> ModelCard:
        kept = {name: value for name, value in self.template_arguments.items() if name not in names}
        return self.model_copy(update={"template_arguments": kept})

    @property
    def dialect(self) -> Dialect:
        """Dialect with which the model is served."""
        return Dialect(self.family, self.tool_parser, self.stop_tokens, template_arguments=self.template_arguments)


def hash_template(template: str) -> str:
    """Return the digest that identifies a chat template in a card."""
    return hashlib.blake2b(template.encode(), digest_size=8).hexdigest()


def read_card(folder: Path) -> ModelCard | None:
    """Return the card in a model's folder; None if the folder has no card.

    Raises:
        UserError: The file is damaged, or was written by a newer version.
    """
    try:
        return ModelCard.model_validate_json((folder / FILE).read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable_card_error(f"cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise _unreadable_card_error(f"{where}: {first['msg']}" if where else first["msg"]) from None


def _unreadable_card_error(why: str) -> UserError:
    problem = f"its {FILE}: {why}"
    return UserError(f"{problem}; {CARD_HINT}", problem=problem, fix=CARD_HINT)
