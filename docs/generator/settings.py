"""reference/job.md, operator.md, nodes.md: each setting by section; and reference/schemas: the same for editors."""

from __future__ import annotations

import json
import re

from agent_rft.cli.reference.editor_schemas import MODELS, editor_schema
from agent_rft.cli.reference.setting_list import SECTION, DocumentedSetting, SettingSection, list_sections
from docs.generator.markdown import code, plain, table

_INTRO = {
    "job": """# The job

A job file is YAML or JSON: `agent-rft check JOB.yaml` lists its mistakes, `agent-rft train JOB.yaml` trains. The API
takes the same settings as JSON, with ids of uploaded files in place of paths. Paths are relative to the job file.
`${NAME}` in a value is replaced by the environment variable of that name, in the command line only. Unknown keys are
refused, except in a tool, where they are kept.
""",
    "operator": """# The operator's configuration

The operator of a cluster says here what jobs may reach and use; a job cannot change it. It is the file in `--config`,
else the one in `AGENT_RFT_CONFIG`, else `agent-rft.yaml` in the working directory. Without a file, all defaults apply.
`${NAME}` in a value is replaced by the environment variable of that name. How to run a server is in
[The server](../server.md).
""",
    "nodes": """# The list of nodes

`agent-rft plan JOB.yaml --cluster NODES.yaml` says whether a job fits on a cluster that does not exist yet; see
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

A grader is chosen by its `type`. Each type may be the `grader` of a job, its `held_out_grader`, a guard's grader or a
part of a `multi` grader, except that `multi` may only be the first two. Texts that are called templates may contain
`{{ item.x }}`, a key of the row, and `{{ sample.x }}`, one of the rollout; see [Rewards and graders](../graders.md).
"""
_KIND = re.compile(r"\[(\w+)\]$")


def pages() -> dict[str, str]:
    """The page and the schema of each file."""
    texts = {f"{file}.md": _page(file) for file in MODELS}
    schemas = {f"schemas/{file}.json": json.dumps(editor_schema(file), indent=2, ensure_ascii=False) for file in MODELS}
    return texts | schemas


def _page(file: str) -> str:
    editors = (
        f"\nEditors complete and check the file with [its JSON schema](schemas/{file}.json), which\n"
        f"`agent-rft schema {file}` prints: write it to a file, and begin yours with\n"
        "`# yaml-language-server: $schema=FILE`. `agent-rft explain SETTING` prints one setting.\n"
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
