"""Source that reads a job from an export folder, and size limits for all sources.

Users save the folder with OpenAI's SDK. It contains `job.json` and `train.jsonl`, and optionally `validation.jsonl`,
`events.jsonl` and `checkpoints.jsonl`. Job, events and checkpoints are objects of the SDK, each saved on one line with
`model_dump_json()`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from agent_rft.cli.openai_import.openai_objects import OpenAICheckpoint, OpenAIEvent, OpenAIJob
from agent_rft.errors import UserError
from agent_rft.rows.bounded_file import read_bounded
from agent_rft.rows.strict_json import parse_untrusted_json
from agent_rft.spec.config_reader import format_key_path

M = TypeVar("M", bound=BaseModel)
MAX_BODY_BYTES = 32 << 20
"""Maximum size of a JSON text: a job with its graders, or a page of events."""
MAX_FILE_BYTES = 1 << 30
"""Maximum size of a row file. OpenAI's own limit is lower: 512 MB."""
MAX_EVENTS, MAX_CHECKPOINTS = 500, 500


class FolderSource:
    """Source that reads a job from an export folder."""

    is_export = True

    def __init__(self, folder: Path) -> None:
        """Create the source without reading the folder."""
        self._folder = folder

    def read_job(self) -> OpenAIJob:
        """Return the job in `job.json`."""
        path = self._folder / "job.json"
        return parse_object(OpenAIJob, _read_text(path), str(path))

    def read_events(self) -> list[OpenAIEvent]:
        """Return the events in `events.jsonl`; empty if the file does not exist."""
        return self._parse_lines(OpenAIEvent, "events.jsonl", MAX_EVENTS)

    def read_checkpoints(self) -> list[OpenAICheckpoint]:
        """Return the checkpoints in `checkpoints.jsonl`; empty if the file does not exist."""
        return self._parse_lines(OpenAICheckpoint, "checkpoints.jsonl", MAX_CHECKPOINTS)

    def fetch_rows(self, field: str, file_id: str, scratch: Path) -> Path | None:
        """Return the path of the row file for the setting `field`, such as training_file; None if the file is missing.

        `file_id` and `scratch` are ignored; only `ApiSource` uses them.
        """
        path = self._folder / ROWS[field]
        return path if path.is_file() else None

    def _parse_lines(self, model: type[M], name: str, limit: int) -> list[M]:
        path = self._folder / name
        if not path.exists():
            return []
        lines = [line for line in _read_text(path).splitlines() if line.strip()][:limit]
        return [parse_object(model, line, f"{path}, entry {i}") for i, line in enumerate(lines, start=1)]


ROWS = {"training_file": "train.jsonl", "validation_file": "validation.jsonl"}
"""Names of the row files in export and imported folders, keyed by the setting that refers to the file."""


def parse_object(model: type[M], text: str | bytes, what: str) -> M:
    """Parse a JSON text as an object of the class `model`; `what` is the name of the text in error messages.

    Raises:
        UserError: The text is not JSON that `parse_untrusted_json` accepts, or does not match the class.
    """
    hint = "save the SDK's object with model_dump_json(), or check the base URL"
    try:
        return model.model_validate(parse_untrusted_json(text).check_numbers().value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = format_key_path(first["loc"])
        place = f"{field}: " if field else ""
        raise UserError(f"{what} does not match OpenAI's API: {place}{first['msg']}; {hint}") from None
    except ValueError as error:
        raise UserError(f"{what} does not match OpenAI's API, because it is not valid JSON: {error}; {hint}") from None


def _read_text(path: Path) -> bytes:
    return read_bounded(path, MAX_BODY_BYTES, f"save only the last {MAX_EVENTS} entries")
