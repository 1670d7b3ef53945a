"""Where a job comes from: OpenAI's API (`agent_rft.cli.openai_import.api`), or a folder with what a client has saved.

The folder has `job.json` and `train.jsonl`, and perhaps `validation.jsonl`, `events.jsonl` and `checkpoints.jsonl`, one
object a line: the text of `model_dump_json()` of what the SDK returns.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from agent_rft.cli.openai_import.wire import WireCheckpoint, WireEvent, WireJob
from agent_rft.errors import UserError
from agent_rft.rows.bounded_file import read_bounded
from agent_rft.spec.reader import field_name

M = TypeVar("M", bound=BaseModel)
MAX_BODY_BYTES = 32 << 20
"""Longest JSON text that is read: a job with its graders, or a page of events."""
MAX_FILE_BYTES = 1 << 30
"""Largest file of rows; OpenAI's limit is 512 MB."""
MAX_EVENTS, MAX_CHECKPOINTS = 500, 500


class FolderSource:
    """A folder with an export."""

    is_export = True

    def __init__(self, folder: Path) -> None:
        """Takes the folder; it is read later."""
        self._folder = folder

    def job(self) -> WireJob:
        """The job in `job.json`."""
        path = self._folder / "job.json"
        return parsed(WireJob, _text(path), str(path))

    def events(self) -> list[WireEvent]:
        """The events in `events.jsonl`; none if there is no such file."""
        return self._lines(WireEvent, "events.jsonl", MAX_EVENTS)

    def checkpoints(self) -> list[WireCheckpoint]:
        """The checkpoints in `checkpoints.jsonl`; none if there is no such file."""
        return self._lines(WireCheckpoint, "checkpoints.jsonl", MAX_CHECKPOINTS)

    def rows(self, field: str, file_id: str, scratch: Path) -> Path | None:
        """The file of rows, where it is."""
        path = self._folder / ROWS[field]
        return path if path.is_file() else None

    def _lines(self, model: type[M], name: str, most: int) -> list[M]:
        path = self._folder / name
        if not path.exists():
            return []
        lines = [line for line in _text(path).splitlines() if line.strip()][:most]
        return [parsed(model, line, f"{path}, entry {i}") for i, line in enumerate(lines, start=1)]


ROWS = {"training_file": "train.jsonl", "validation_file": "validation.jsonl"}
"""The name of each file of rows, in an export and in the folder that is written."""


def parsed(model: type[M], text: str | bytes, what: str) -> M:
    """The object in a JSON text; `what` names the text in messages.

    Raises:
        UserError: It is not such an object.
    """
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = field_name(first["loc"])
        place = f"{field}: " if field else ""
        remedy = "save what the SDK returns with model_dump_json(), or check the base URL"
        raise UserError(f"{what} is not what OpenAI's API gives: {place}{first['msg']}; {remedy}") from None


def _text(path: Path) -> bytes:
    return read_bounded(path, MAX_BODY_BYTES, f"save only the last {MAX_EVENTS} entries")
