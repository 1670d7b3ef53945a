"""What the documents tell readers to write is valid: configuration by its schema, commands by their parser."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.core import TyperGroup
from typer.exceptions import Exit, TyperException
from typer.main import get_command

from agent_rft.cli.main import app
from agent_rft.spec.job_file import read_job
from agent_rft.spec.operator.operator_file import load_operator
from tests.docs.markdown import Block, Page, guides
from tests.support.paths import ROOT
from tests.unit.serve.jobs.test_job_request import KnownFiles, KnownModels

PAGES = guides()
LANGUAGES = {"yaml", "json", "jsonl", "sh", "sql", "python", "text", "http"}
BELOW = re.compile(r"(?P<file>[\w.-]+), below (?P<place>[\w.]+)")
VARIABLE = re.compile(r"\$\{(\w+)\}")
CONTROL = {";", "&", "&&", "|", "||", "(", ")", ">", ">>", "<", ";;", "|&", ">&", "<<"}
ASSIGNMENT = re.compile(r"\w+=")
NOT_RUN = re.compile(r"\b(?:docker|kubectl|kind|helm|gcloud|aws|az)\b")
NOTE = "check only the syntax of"
TOOL = {"name": "search", "server_url": "https://tools.example.com/search"}
GRADER = {"type": "string_check", "input": "a", "reference": "a", "operation": "eq"}
MINIMAL = {
    "job.yaml": {
        "model": "Qwen/Qwen3-4B",
        "training_file": "train.jsonl",
        "method": {"type": "reinforcement", "reinforcement": {"tools": [TOOL], "grader": GRADER}},
    },
    "agent-rft.yaml": {},
}


def blocks(*languages: str) -> list[Any]:
    found = [block for page in PAGES for block in page.blocks if block.language in languages]
    return [pytest.param(block, id=str(block)) for block in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_each_block_has_a_language(page: Page) -> None:
    mistakes = [f"{block}: {block.language!r}" for block in page.blocks if block.language not in LANGUAGES]

    assert not mistakes, f"{mistakes}: use one of {sorted(LANGUAGES)}"


# -- configuration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", blocks("yaml"))
def test_configuration_is_valid(block: Block, tmp_path: Path) -> None:
    assert block.title, 'name its file: ```yaml title="job.yaml"'
    value, name = yaml.safe_load(block.text), block.title
    if below := BELOW.fullmatch(block.title):
        name = below["file"]
        value = _with(MINIMAL[name], below["place"].split("."), value)
    file = tmp_path / Path(name).name
    file.write_text(yaml.safe_dump(value))
    check = next((check for ending, check in CHECKS.items() if name.endswith(ending)), None)
    if check is not None:
        check(file, dict.fromkeys(VARIABLE.findall(block.text), "1"))


def _job(file: Path, environment: Mapping[str, str]) -> None:
    (file.parent / "with-tools.jinja").write_text("{{ messages }}")
    _, problems = read_job(file, environment)

    assert not problems, "\n".join(map(str, problems))


def _operator(file: Path, environment: Mapping[str, str]) -> None:
    load_operator(file, environment=environment)


def _nodes(file: Path, environment: Mapping[str, str]) -> None:
    from agent_rft.cluster.planning.plan_nodes import read_nodes

    assert read_nodes(file)


def _request(file: Path, environment: Mapping[str, str]) -> None:
    """A request is accepted once its files, given as paths, are replaced by ids."""
    from agent_rft.serve.jobs.job_request import parse_api_job
    from agent_rft.spec.operator.operator_config import OperatorConfig

    body = yaml.safe_load(VARIABLE.sub(lambda match: environment[match[1]], file.read_text()))
    body |= {key: "file-1" for key in body if key.endswith("_file")}
    parse_api_job(body | {"model": "gpt-5"}, KnownModels(), KnownFiles(), OperatorConfig())


CHECKS: dict[str, Callable[[Path, Mapping[str, str]], None]] = {
    "job.yaml": _job,
    "agent-rft.yaml": _operator,
    "nodes.yaml": _nodes,
    "request.yaml": _request,
}


def _with(base: Mapping[str, Any], place: list[str], value: Any) -> Any:
    """`base` with the keys of `value`, or the list `value`, at `place`."""
    if not place:
        return value if isinstance(value, list) else {**base, **value}
    key, *rest = place
    return {**base, key: _with(base.get(key, {}), rest, value)}


@pytest.mark.parametrize("block", blocks("json", "jsonl"))
def test_json_can_be_read(block: Block) -> None:
    for text in block.text.splitlines() if block.language == "jsonl" else [block.text]:
        json.loads(text)


@pytest.mark.parametrize("block", blocks("python"))
def test_python_can_be_compiled(block: Block) -> None:
    ast.parse(block.text)


# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", blocks("sh"))
def test_the_shell_and_our_command_line_accept_the_commands(block: Block) -> None:
    checked = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    for arguments in commands(block.text):
        parse(arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_a_page_with_commands_that_cannot_run_here_says_so(page: Page) -> None:
    foreign = [block for block in page.blocks if block.language == "sh" and NOT_RUN.search(block.text)]
    text = " ".join((ROOT / page.path).read_text().split())

    assert not foreign or NOTE in text, f"{foreign[0]}: add '{NOTE}'"
    assert {block.mark for block in foreign} <= {"", "run kubernetes"}


@pytest.mark.parametrize(
    "text",
    ["agent-rft trane job.yaml", "agent-rft train", "agent-rft train a.yaml --fast", "agent-rft eval a --samples x"],
)
def test_a_wrong_command_is_found(text: str) -> None:
    (arguments,) = commands(text)

    with pytest.raises(TyperException):
        parse(arguments)


def test_commands_are_found_wherever_the_shell_would_run_them() -> None:
    text = "A=1 agent-rft a --b \\\n  c | tee x  # agent-rft no\nfor i in 1; do agent-rft d; done\necho agent-rft e"

    assert list(commands(text)) == [["a", "--b", "c"], ["d"]]


def commands(text: str) -> Iterator[list[str]]:
    """The arguments of each call of `agent-rft` in a script."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # a text of several lines: bash has accepted it
            continue
        call: list[str] | None = None
        at_start = True
        for word in words:
            if word in CONTROL or set(word) <= set("();<>|&"):
                if call is not None:
                    yield call
                call, at_start = None, word not in (">", ">>", "<", "<<")
            elif call is not None:
                call.append(word)
            elif at_start and Path(word).name == "agent-rft":
                call = []
            elif not ASSIGNMENT.match(word) and word not in ("do", "then", "else", "!", "time", "exec", "--"):
                at_start = False
        if call is not None:
            yield call


def parse(arguments: list[str]) -> None:
    """Parse a call of `agent-rft` as far as its command's function.

    Raises:
        TyperException: The command line is not valid.
    """
    command = get_command(app)
    context = None
    while True:
        try:
            context = command.make_context(command.name or "agent-rft", list(arguments), parent=context)
        except Exit:  # --help, --version
            return
        if not isinstance(command, TyperGroup):
            return
        _, found, arguments = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None
        command = found
