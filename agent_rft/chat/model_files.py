"""Conversation settings that are added to a checkpoint's folder if the base model's folder lacks them.

With these settings, agent-rft and other programs based on vLLM can load a checkpoint without further options.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rft.chat.model_card import FILE, ModelCard


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Conversation settings to write to a model's folder.

    Attributes:
        card: Content of agent_rft.json.
        chat_template: Chat template that replaces the folder's template; None: the folder's template stays.
        stop_token_ids: Stop tokens to add to the folder's stop tokens.
    """

    card: ModelCard
    chat_template: str | None = None
    stop_token_ids: tuple[int, ...] = ()

    def write(self, folder: Path) -> None:
        """Write the settings to the files of a model folder in Hugging Face's format.

        Raises:
            OSError: A file cannot be read or written, for example because the disk is full or read-only.
        """
        (folder / FILE).write_text(self.card.model_dump_json(indent=2) + "\n")
        if self.chat_template is not None:
            (folder / "chat_template.jinja").write_text(self.chat_template)
            tokenizer = _read_json(folder / "tokenizer_config.json")
            if "chat_template" in tokenizer:  # programs differ in which of the two files they read
                _write_json(folder / "tokenizer_config.json", tokenizer | {"chat_template": self.chat_template})
        generation = _read_json(folder / "generation_config.json")
        known = _stop_token_ids(generation) or _stop_token_ids(_read_json(folder / "config.json"))
        if ids := [id for id in self.stop_token_ids if id not in known]:
            _write_json(folder / "generation_config.json", generation | {"eos_token_id": [*known, *ids]})


def _stop_token_ids(config: Mapping[str, Any]) -> list[int]:
    ids = config.get("eos_token_id")
    return [] if ids is None else [ids] if isinstance(ids, int) else ids


def _read_json(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return values


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
