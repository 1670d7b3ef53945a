"""The files of an import as text: job.yaml, agent-rft.yaml, imported.json and README.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cluster.records.redact import plain
from serve.importing.api import one_line
from serve.importing.definition import Definition
from serve.importing.rows import Converted
from serve.importing.secrets import DOLLAR
from serve.importing.source import ROWS
from serve.importing.wire import WireCheckpoint, WireEvent, WireJob

WIDTH = 120
REMEMBERED = {"id", "model", "fine_tuned_model", "status", "created_at", "finished_at", "trained_tokens", "metadata"}


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines, such as the source of a grader, as they are read."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    lines = text.split("\n")
    style = '"' if not all(line.isprintable() for line in lines) else "|" if len(lines) > 1 else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(value: Mapping[str, Any], about: str) -> str:
    """The value as a YAML file that begins with a comment."""
    text = yaml.dump(dict(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDTH)
    return f"# {about}\n{text}"


def remembered(job: WireJob, events: Sequence[WireEvent], checkpoints: Sequence[WireCheckpoint]) -> str:
    """What was there, to compare with: checkpoints with their metrics in order, and the last events."""
    steps = sorted(checkpoints, key=lambda checkpoint: checkpoint.step_number)
    value = {
        "job": job.model_dump(mode="json", include=REMEMBERED),
        "checkpoints": [checkpoint.model_dump(mode="json") for checkpoint in steps],
        "events": [event.model_dump(mode="json") for event in events],
    }
    return json.dumps(plain(value), indent=1, ensure_ascii=False) + "\n"


def read_me(job: WireJob, definition: Definition, rows: Mapping[str, Converted], folder: str) -> str:
    """What was imported, what to set, what differs, and the next commands."""
    kind = definition.job["method"]["type"]
    counts = ", ".join(f"{ROWS[name]} ({found.num_rows} rows)" for name, found in rows.items())
    lines = [
        f"# {job.id}",
        "",
        f"A {kind} job of {one_line(job.model)}, now job.yaml, agent-rft.yaml and {counts}.",
        "imported.json has the metrics of its checkpoints and its last events, to compare with.",
    ]
    if definition.variables:
        lines += ["", "## Set these", "", "```sh"]
        for name, purpose in definition.variables.items():
            lines.append(f"export {name}='{'$' if name == DOLLAR else '...'}'    # {one_line(purpose)}")
        lines.append("```")
    if definition.notes:
        lines += ["", "## What differs", "", *(f"- {one_line(note)}" for note in definition.notes)]
    lines += ["", "## Next", "", "```sh", f"cd {folder}"]
    if not Path(definition.job["model"]).is_absolute():
        lines.append(f"hf download {definition.job['model']}")
    lines.append("agent-rft check job.yaml")
    if kind == "reinforcement":  # there is no eval without a grader
        lines.append(
            f"agent-rft eval job.yaml --file {'validation_file' if 'validation_file' in rows else 'training_file'}"
        )
    return "\n".join([*lines, "agent-rft train job.yaml", "```", ""])
