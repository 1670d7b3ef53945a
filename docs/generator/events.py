"""reference/events.md: each kind of event with its fields."""

from __future__ import annotations

from agent_rft.cli.reference.docstrings import docstring_text, field_docstrings
from agent_rft.cli.reference.event_fields import describe_level, event_fields
from agent_rft.events import KINDS, Event
from docs.generator.markdown import code, plain, table

_INTRO = """# Events

A run appends each event to `events.jsonl` in its folder, as a JSON object with `time`, `level`, `kind`, `version`,
`job`, `step`, `message` and `data`. `message` is a sentence for people. Programs should use `kind` and the fields in
`data`, which depend on the kind. `version` increases when fields of a kind are removed or change their meaning. New
fields may be added at any time.

In the API, `step_done` is an event of type `metrics`. All other events also have `kind`, `version` and `step` in
`data`. The API does not return `rollout_discarded` and `job_ended`.

"""


def pages() -> dict[str, str]:
    """The page of all kinds."""
    text = f"{_INTRO}`step`: {plain(field_docstrings(Event)['step'])}\n"
    for kind, cls in KINDS.items():
        rows = [(code(name), type_, plain(about)) for name, type_, about in event_fields(cls)]
        text += (
            f"\n## `{kind}`\n\n{plain(docstring_text(cls))}\n\nLevel: {describe_level(cls)}. Version: {cls.VERSION}.\n"
        )
        text += f"\n{table(('Field', 'Type', 'Meaning'), rows)}" if rows else ""
    return {"events.md": text}
