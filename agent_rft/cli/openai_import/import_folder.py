"""Import of a job into a new folder.

The folder is created only when all its files are complete, so a failed import leaves no folder behind.
"""

from __future__ import annotations

import json
import secrets
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from agent_rft.cli.openai_import.export_source import ROWS, FolderSource
from agent_rft.cli.openai_import.job_conversion import JobConversion, convert_job, get_supported_method
from agent_rft.cli.openai_import.openai_objects import OpenAICheckpoint, OpenAIEvent, OpenAIJob
from agent_rft.cli.openai_import.openai_source import ApiSource, to_one_line
from agent_rft.cli.openai_import.row_conversion import ConvertedRows, convert_rows
from agent_rft.cli.openai_import.secret_variables import DOLLAR
from agent_rft.cluster.checks.offline_checks import make_invalid_job
from agent_rft.cluster.records.redaction import to_plain_json
from agent_rft.errors import Problem, UserError

Source = ApiSource | FolderSource


def import_job(source: Source, out: Path | None, replacements: Mapping[str, Path], model: str | None) -> str:
    """Write the job, its rows and a record of the job at OpenAI into a new folder, and return the text of the README.

    Args:
        source: Source of the job.
        out: Path of the new folder; None for a folder that has the job's id as its name.
        replacements: Files that replace the job's files. The keys are training_file and validation_file.
        model: Base model for the job file; None to propose a model.

    Raises:
        InvalidJob: The job uses a feature that is not supported, or a file is missing.
        UserError: The API refused a request, the export is invalid, or the folder exists or cannot be written.
        RftError: The API is unavailable.
    """
    if out is not None:
        _check_is_new(out)
    job = source.read_job()
    folder = out or Path(job.id)
    with _new_folder(folder) as unfinished:
        get_supported_method(job)
        rows = _convert_rows(job, source, replacements, unfinished)
        definition = convert_job(job, rows, model)
        text = format_readme(job, definition, rows, shlex.quote(str(folder)))
        about = f"Job {job.id}, imported from OpenAI's API. See README.md in this folder."
        (unfinished / "job.yaml").write_text(format_yaml(definition.job, about), encoding="utf-8")
        about = "The operator's configuration: judges, and aliases for the model names in clients' code."
        (unfinished / "agent-rft.yaml").write_text(format_yaml(definition.operator, about), encoding="utf-8")
        record = format_job_record(job, source.read_events(), source.read_checkpoints())
        (unfinished / "imported.json").write_text(record, encoding="utf-8")
        (unfinished / "README.md").write_text(text, encoding="utf-8")
    return text


def _convert_rows(
    job: OpenAIJob, source: Source, replacements: Mapping[str, Path], folder: Path
) -> dict[str, ConvertedRows]:
    """Convert the job's row files and write them to `folder`.

    Raises:
        InvalidJob: A file is missing, or has rows that are not supported.
    """
    found: dict[str, ConvertedRows] = {}
    missing: list[Problem] = []
    is_supervised = get_supported_method(job) == "supervised"
    for field, file_id in (("training_file", job.training_file), ("validation_file", job.validation_file)):
        if file_id is None and field not in replacements:
            continue
        path = replacements.get(field) or source.fetch_rows(field, file_id or "", folder)
        if path is None:
            message = f"{file_id} was deleted or has expired"
            if source.is_export:
                message = f"{ROWS[field]} is not in the export folder"
            fix = f"give your own copy with --{field.replace('_', '-')} FILE"
            missing.append(Problem("file_deleted", field, message, fix))
            continue
        source_name = str(replacements.get(field) or file_id)
        found[field] = convert_rows(path, folder / ROWS[field], field, source_name, is_supervised=is_supervised)
        if path.parent == folder:
            path.unlink()
    problems = [*missing, *(problem for one in found.values() for problem in one.problems)]
    if problems:
        raise make_invalid_job(problems)
    return found


def _check_is_new(folder: Path) -> None:
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} already exists: give a new folder with --out")


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Context manager for a temporary folder, which is renamed to `folder` at the end, or removed after a failure."""
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


# -- file contents -----------------------------------------------------------------------------------------------------

WIDTH = 120
RECORDED_FIELDS = {
    "id",
    "model",
    "fine_tuned_model",
    "status",
    "created_at",
    "finished_at",
    "trained_tokens",
    "metadata",
}


class _Dumper(yaml.SafeDumper):
    """YAML dumper that writes multi-line strings, such as the source of a grader, as literal blocks."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    lines = text.split("\n")
    style = '"' if not all(line.isprintable() for line in lines) else "|" if len(lines) > 1 else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def format_yaml(value: Mapping[str, Any], about: str) -> str:
    """Return the text of a YAML file with `value`; the file begins with `about` as a comment."""
    text = yaml.dump(dict(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDTH)
    return f"# {about}\n{text}"


def format_job_record(job: OpenAIJob, events: Sequence[OpenAIEvent], checkpoints: Sequence[OpenAICheckpoint]) -> str:
    """Return a record of the original job as JSON: its state, its checkpoints with metrics, and its last events."""
    steps = sorted(checkpoints, key=lambda checkpoint: checkpoint.step_number)
    value = {
        "job": job.model_dump(mode="json", include=RECORDED_FIELDS),
        "checkpoints": [checkpoint.model_dump(mode="json") for checkpoint in steps],
        "events": [event.model_dump(mode="json") for event in events],
    }
    return json.dumps(to_plain_json(value), indent=1, ensure_ascii=False) + "\n"


def format_readme(job: OpenAIJob, definition: JobConversion, rows: Mapping[str, ConvertedRows], folder: str) -> str:
    """Return the text of the README: imported files, variables to set, differences and the next commands."""
    kind = definition.job["method"]["type"]
    counts = ", ".join(f"{ROWS[name]} ({found.num_rows} rows)" for name, found in rows.items())
    lines = [
        f"# {job.id}",
        "",
        f"A {kind} job for the model {to_one_line(job.model)}, imported as job.yaml, agent-rft.yaml and {counts}.",
        "imported.json contains the metrics of the job's checkpoints and the job's last events, for comparison.",
    ]
    if definition.variables:
        lines += ["", "## Variables to set", "", "```sh"]
        for name, purpose in definition.variables.items():
            lines.append(f"export {name}='{'$' if name == DOLLAR else '...'}'    # {to_one_line(purpose)}")
        lines.append("```")
    if definition.notes:
        lines += ["", "## Differences", "", *(f"- {to_one_line(note)}" for note in definition.notes)]
    lines += ["", "## Next steps", "", "```sh", f"cd {folder}"]
    if not Path(definition.job["model"]).is_absolute():
        lines.append(f"hf download {definition.job['model']}")
    lines.append("agent-rft check job.yaml")
    if kind == "reinforcement":  # eval requires a grader
        lines.append(
            f"agent-rft eval job.yaml --file {'validation_file' if 'validation_file' in rows else 'training_file'}"
        )
    return "\n".join([*lines, "agent-rft train job.yaml", "```", ""])
