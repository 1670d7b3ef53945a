"""The files for contributors and their tools agree with the code: hooks, citation, issue forms and skills."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT

SKILLS = sorted((ROOT / "skills").iterdir())
FORMS = sorted(set((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")) - {ROOT / ".github/ISSUE_TEMPLATE/config.yml"})
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_hooks_run_the_commands_of_make_lint() -> None:
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert recipe is not None
    wanted = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    entries = [shlex.split(hook["entry"]) for hook in hooks]
    assert [words[2] if words[:2] == ["bash", "-c"] else shlex.join(words) for words in entries] == wanted
    assert all(hook["always_run"] and not hook["pass_filenames"] for hook in hooks)


def test_the_citation_and_the_changelog_have_the_packages_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert f"## [{PROJECT['version']}]" in (ROOT / "CHANGELOG.md").read_text()


def test_manual_and_manifests_name_images_and_wheels_of_this_version() -> None:
    named: dict[str, str] = {}
    for path in [*(ROOT / "docs").glob("*.md"), *(ROOT / "k8s").rglob("*.yaml")]:
        for version in re.findall(r"(?:agent-rft:|newTag: |agent_rft-)(\d+\.\d+\.\d+)-", path.read_text()):
            named[f"{path.relative_to(ROOT)}: {version}"] = version
    assert {"docs/clusters.md", "docs/kubernetes.md"} < {name.split(":")[0] for name in named}
    assert [name for name, version in named.items() if version != PROJECT["version"]] == []


def test_the_workflow_runs_lint_and_tests_with_pinned_actions_and_may_only_read() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    workflow = yaml.safe_load(text)
    assert "pull_request" in workflow[True]  # YAML 1.1 reads the key `on` as a boolean
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert not any("permissions" in job for job in workflow["jobs"].values())
    assert {"make lint", "make test"} < {step.get("run") for step in steps}
    used = re.findall(r"uses: (.+)", text)
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", line) for line in used)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_an_issue_form_is_valid(form: Path) -> None:
    """The rules of GitHub's form schema."""
    content = yaml.safe_load(form.read_text())
    assert content["name"] and content["description"]
    fields = [field for field in content["body"] if field["type"] != "markdown"]
    assert fields and {field["type"] for field in fields} <= {"textarea", "input", "dropdown", "checkboxes"}
    ids = [field["id"] for field in fields]
    assert len(set(ids)) == len(ids) and all(field["attributes"]["label"] for field in fields)


# -- skills and instructions for agents --------------------------------------------------------------------------------


def front_matter(skill: Path) -> dict[str, Any]:
    _, head, _ = (skill / "SKILL.md").read_text().split("---\n", 2)
    values: dict[str, Any] = yaml.safe_load(head)
    return values


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.name)
def test_a_skill_says_what_it_is_for(skill: Path) -> None:
    """The format's limits: agents read names and descriptions of all skills, and the text of one on demand."""
    values = front_matter(skill)
    assert values.keys() == {"name", "description"}
    assert values["name"] == skill.name and re.fullmatch(r"[a-z0-9-]{1,64}", values["name"])
    assert 100 < len(values["description"]) <= 1024 and not re.search("[<>]", values["description"])
    assert len((skill / "SKILL.md").read_text().splitlines()) < 300


def named_paths(page: Path) -> Iterator[str]:
    """Our files that a page names in code font, such as `actors/graders/grader_protocol.py` or `agent_rft/metrics`."""
    top = "|".join(re.escape(path.name) for path in ROOT.iterdir() if path.name not in (".venv", "build", "runs"))
    yield from re.findall(rf"`((?:{top})(?:/[\w./-]*)?)`", page.read_text())


PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "AGENTS.md", *(ROOT / "skills").rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    assert [path for path in named_paths(page) if not (ROOT / path).exists()] == []


def test_paths_are_found() -> None:
    assert {"agent_rft/events", "actors/graders/kinds"} <= set(named_paths(ROOT / "CONTRIBUTING.md"))
