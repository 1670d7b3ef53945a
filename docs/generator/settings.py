"""reference/job.md, operator.md, nodes.md: each setting by section; and reference/schemas: the same for editors."""

from __future__ import annotations

import json
import re

from agent_rft.cli.reference.editor_schemas import MODELS, editor_schema
from agent_rft.cli.reference.setting_list import SECTION, DocumentedSetting, SettingSection, list_sections
from docs.generator.markdown import code, plain, table

_INTRO = {
    "job": """# Job settings

A job file is YAML or JSON. `agent-rft check JOB.yaml` lists its problems, and `agent-rft train JOB.yaml` trains. The
API takes the same settings as JSON, with ids of uploaded files instead of paths. Paths are relative to the job file. In
files, `${NAME}` in a value is replaced with the environment variable of that name; in the API, it is not. Unknown keys
are refused, except in tools, where they are kept.
""",
    "operator": """# Operator configuration

In this file, the operator of a cluster limits what jobs may reach and use. A job cannot change the limits. The file is
the one in `--config`, otherwise the one in `AGENT_RFT_CONFIG`, otherwise `agent-rft.yaml` in the working directory.
Without a file, all defaults apply. `${NAME}` in a value is replaced with the environment variable of that name.
[Server](../server.md) describes how to run a server.
""",
    "nodes": """# Nodes file

`agent-rft plan JOB.yaml --cluster NODES.yaml` prints whether a job fits on a cluster that does not exist yet: see
[Clusters](../clusters.md).

```yaml title="nodes.yaml"
nodes:
  - {name: head, cores: 4, memory_gib: 16}
  - {name: gpu, count: 2, cores: 32, gpus: 8, memory_gib: 512, gpu_memory_gib: 80}
```
""",
}
_GRADERS = """
## Graders

The `type` of a grader selects its settings. Each type can be the `grader` of a job, its `held_out_grader`, a guard's
grader or a part of a `multi` grader; `multi` can only be the first two. A template may contain `{{ item.x }}`, a key of
the row, and `{{ sample.x }}`, a key of the rollout: see [Rewards and graders](../graders.md).
"""
_KIND = re.compile(r"\[(\w+)\]$")


def pages() -> dict[str, str]:
    """The page and the schema of each file."""
    texts = {f"{file}.md": _page(file) for file in MODELS}
    schemas = {f"schemas/{file}.json": json.dumps(editor_schema(file), indent=2, ensure_ascii=False) for file in MODELS}
    return texts | schemas


def _page(file: str) -> str:
    editors = (
        f"\nWith [this JSON schema](schemas/{file}.json), editors complete and check the file. Save the output of\n"
        f"`agent-rft schema {file}`, and begin your file with `# yaml-language-server: $schema=SCHEMA_FILE`.\n"
        "`agent-rft explain SETTING` prints the description of a setting.\n"
    )
    found = list_sections(file)
    kinds = [section for section in found if _KIND.search(section.path)]
    others = [section for section in found if section not in kinds]
    graders = _GRADERS + "".join(map(_section, kinds)) if kinds else ""
    return _INTRO[file] + editors + "".join(map(_section, others)) + graders


def _section(section: SettingSection) -> str:
    is_kind = _KIND.search(section.path) is not None
    heading = _heading(section.path)
    full = "" if is_kind or not section.path or heading == code(section.path) else f"{code(section.path)}: "
    rows = (_row(setting) for setting in section.settings)
    head = ("Setting", "Type", "Default", "Description")
    return f"\n{'###' if is_kind else '##'} {heading}\n\n{full}{plain(section.description)}\n\n{table(head, rows)}"


def _heading(path: str) -> str:
    """The shortest name that is clear on its page."""
    if kind := _KIND.search(path):
        return code(kind[1])
    return code(re.sub(r"^method\.(reinforcement\.)?", "", path)) or "Top level"


def _row(setting: DocumentedSetting) -> tuple[str, str, str, str]:
    name = code(setting.path.rpartition(".")[2])
    if SECTION in setting.type:
        path = setting.path + ".NAME" * ("by name" in setting.type)
        name = f"[{name}](#{re.sub(r'[^a-z_-]', '', _heading(path).lower())})"
    elif "grader" in setting.type:
        name = f"[{name}](#graders)"
    elif "tracker" in setting.type:
        name = f"[{name}](../monitoring.md#experiment-trackers)"
    kind = ", ".join(filter(None, (setting.type, setting.bounds)))
    default = "required" if setting.default is None else code(setting.default)
    return name, kind, default, plain(setting.description)
