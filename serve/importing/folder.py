"""Imports a job into a new folder, which appears when it is complete: an import that fails leaves nothing."""

from __future__ import annotations

import secrets
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cluster.preflight.static import invalid_job
from serve.importing.api import ApiSource
from serve.importing.definition import definition_of, known_method
from serve.importing.report import as_yaml, read_me, remembered
from serve.importing.rows import Converted, convert
from serve.importing.source import ROWS, FolderSource
from serve.importing.wire import WireJob
from trainer.errors import Problem, UserError

Source = ApiSource | FolderSource


def import_job(source: Source, out: Path | None, given: Mapping[str, Path], model: str | None) -> str:
    """Writes job, rows and what was there into the new folder `out` (default: the job's id), and returns its README.

    `given` are files of rows by field that are taken in place of the job's; `model` is the start model to set.

    Raises:
        InvalidJob: Something of the job is not here, or a file is gone.
        UserError: The source refused, or the folder cannot be written.
        RftError: The source does not answer.
    """
    if out is not None:
        _check_is_new(out)
    job = source.job()
    folder = out or Path(job.id)
    with _new_folder(folder) as unfinished:
        known_method(job)
        rows = _rows(job, source, given, unfinished)
        definition = definition_of(job, rows, model)
        text = read_me(job, definition, rows, shlex.quote(str(folder)))
        about = f"{job.id}, imported from OpenAI's API. See README.md here."
        (unfinished / "job.yaml").write_text(as_yaml(definition.job, about), encoding="utf-8")
        about = "The operator's configuration: names of models in clients' code, and judges."
        (unfinished / "agent-rft.yaml").write_text(as_yaml(definition.operator, about), encoding="utf-8")
        there = remembered(job, source.events(), source.checkpoints())
        (unfinished / "imported.json").write_text(there, encoding="utf-8")
        (unfinished / "README.md").write_text(text, encoding="utf-8")
    return text


def _rows(job: WireJob, source: Source, given: Mapping[str, Path], folder: Path) -> dict[str, Converted]:
    """The job's files of rows, converted into `folder`.

    Raises:
        InvalidJob: A file is gone, or has rows that cannot be trained here.
    """
    found: dict[str, Converted] = {}
    gone: list[Problem] = []
    conversations = known_method(job) == "supervised"
    for field, file_id in (("training_file", job.training_file), ("validation_file", job.validation_file)):
        if file_id is None and field not in given:
            continue
        path = given.get(field) or source.rows(field, file_id or "", folder)
        if path is None:
            message = f"{file_id} was deleted or has expired"
            if source.is_export:
                message = f"{ROWS[field]} is not in the folder"
            remedy = f"give your own copy with --{field.replace('_', '-')} FILE"
            gone.append(Problem("file_gone", field, message, remedy))
            continue
        shown = str(given.get(field) or file_id)
        found[field] = convert(path, folder / ROWS[field], field, shown, conversations=conversations)
        if path.parent == folder:
            path.unlink()
    problems = [*gone, *(problem for one in found.values() for problem in one.problems)]
    if problems:
        raise invalid_job(problems)
    return found


def _check_is_new(folder: Path) -> None:
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} exists: give a folder that does not exist yet with --out")


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, beside `folder`, which gets that name at the end of the block and is removed if it fails."""
    _check_is_new(folder)
    unfinished = folder.absolute().with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        unfinished.mkdir()
        yield unfinished
        unfinished.rename(folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
