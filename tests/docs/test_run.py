"""Marked blocks do what their page says: all of a page, in order, in one shell and an empty folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.docs.markdown import Page, guides
from tests.support.openai_api import KEY, FakeOpenAI
from tests.support.openai_jobs import record, recorded, reinforcement
from tests.support.paths import ROOT
from tests.support.tiny_model import add_to_hub_cache, write_tiny_model

MODELS = [f"Qwen/Qwen3-{size}" for size in ("0.6B", "1.7B", "4B", "8B")]
"""Names of models in the documents; here a tiny random model has them."""
TIMEOUT_S = 1200


ALWAYS = ("README.md", "docs/your-agent.md")
"""Pages whose blocks with `run` are executed in each test run; all other marked blocks are executed nightly."""

REPLACEMENTS = {
    "README.md": (
        ("    tools: [", "    limits: {max_completion_tokens: 24}\n    tools: ["),
        (
            'float(body["sample"]["output_text"].strip() == body["item"]["answer"])',
            'len(body["sample"]["output_text"]) % 2',
        ),
    ),
    "docs/your-agent.md": (
        ("max_completion_tokens: 2048", "max_completion_tokens: 24"),
        ('float(numbers == [body["item"]["reference_answer"]])', 'len(body["sample"]["output_text"]) % 2'),
    ),
}
"""Texts of a page and their replacements, so that a random model ends its rollouts soon and gets different grades."""


def pages_to_run() -> Iterator[object]:
    for page in guides():
        marks = {block.mark for block in page.blocks} & {"run", "run nightly"}
        if marks and page.path in ALWAYS:
            yield pytest.param(page, {"run"}, id=page.path)
        if "run nightly" in marks or (marks and page.path not in ALWAYS):
            yield pytest.param(page, marks, id=f"{page.path}, complete", marks=pytest.mark.nightly)


@pytest.fixture(scope="module")
def hub_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("hub")
    add_to_hub_cache(cache, MODELS, write_tiny_model(tmp_path_factory.mktemp("tiny")))
    return cache


@contextmanager
def _moved_job() -> Iterator[dict[str, str]]:
    """The environment of somebody with a job at OpenAI, whose tool and grader are those of the endpoint example."""
    url, headers = "http://127.0.0.1:8124", {"Authorization": None}
    tools = [{"name": "add", "server_url": f"{url}/tools/add", "headers": headers}]
    grader = {"type": "endpoint", "url": f"{url}/grade", "headers": headers}
    with FakeOpenAI() as api:
        record(api, recorded(reinforcement(grader, tools=tools)))
        rows = (ROOT / "examples" / "endpoint" / "rows.jsonl").read_bytes()
        api.files = dict.fromkeys(api.files, rows)
        yield {"OPENAI_BASE_URL": api.url, "OPENAI_API_KEY": KEY}


SERVICES = {"docs/openai.md": _moved_job}
"""What a page's blocks need beside them, by page: an environment while it lasts."""


@pytest.mark.parametrize(("page", "marks"), list(pages_to_run()))
def test_the_blocks_of_a_page_run(page: Page, marks: set[str], tmp_path: Path, hub_cache: Path) -> None:
    with SERVICES.get(page.path, partial(nullcontext, {}))() as service:
        _run("\n".join(_script(page, marks)), tmp_path, hub_cache, service)


def _run(script: str, tmp_path: Path, hub_cache: Path, service: dict[str, str]) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("AGENT_RFT_", "OPENAI_"))}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HF_HUB_CACHE": str(hub_cache),
        "HF_HUB_OFFLINE": "1",
        **service,
    }
    output = tmp_path / "output"
    here = tmp_path / "here"
    here.mkdir()
    with output.open("wb") as out:
        shell = subprocess.Popen(
            ["bash"], stdin=subprocess.PIPE, stdout=out, stderr=out, cwd=here, env=environment, start_new_session=True
        )
        try:
            shell.communicate(script.encode(), timeout=TIMEOUT_S)
        finally:
            with suppress(ProcessLookupError):  # nothing was left in the background
                os.killpg(shell.pid, signal.SIGTERM)

    assert shell.returncode == 0, output.read_text(errors="replace")


def _script(page: Page, marks: set[str]) -> Iterator[str]:
    """The page as one script: files are written and marked blocks run, in order; the first failing command ends it."""
    replacements = REPLACEMENTS.get(page.path, ())
    texts = [block.text for block in page.blocks]
    assert all(any(old in text for text in texts) for old, _ in replacements), "a text of the page changed"
    yield "set -eo pipefail"
    for i, block in enumerate(page.blocks):
        if block.mark in marks:
            yield f"echo '--- {block}'"
            yield _as_a_reader(block.text) if block.language == "sh" else _heredoc("python -", block.text, i)
        elif block.title and ", " not in block.title:
            text = block.text
            for old, new in replacements:
                text = text.replace(old, new)
            yield _heredoc(f"cat > {block.title}", text, i)


_WAIT = "timeout 60 bash -c 'until (echo > /dev/tcp/127.0.0.1/{port}) 2> /dev/null; do sleep 0.1; done'"
_READER = (
    # A reader waits for a server that a block starts in the background, and opens a second terminal for the API.
    (r"^.*-port ([1-9]\d*).*&$", r"\g<0>\n" + _WAIT.format(port=r"\1")),
    (
        r"^(agent-rft serve\b[^#\n&]*)(#.*)?$",
        r"\1 > served.txt 2>&1 &\n" + _WAIT.format(port=8000) + r"\ngrep -o 'sk-rft-[^ ]*' served.txt > key.txt",
    ),
    # Any verdict of `ready` is correct. The run folder that it prints replaces RUN.
    (r"^(agent-rft ready\b[^#\n]*)(#.*)?$", r"\1 || [ $? = 4 ]"),
    (r"\bRUN\b", r"$(ls -dt runs/*/ | head -n 1)"),
    # The key that `serve` printed replaces the one in a file.
    (r"^python ask\.py$", r'sed -i "s/sk-rft-\\.\\.\\./$(cat key.txt)/" ask.py\n\g<0>'),
)
"""Patterns of commands, and what a reader of the page makes of them."""


def _as_a_reader(script: str) -> str:
    for pattern, replacement in _READER:
        script = re.sub(pattern, replacement, script, flags=re.MULTILINE)
    return script


def _heredoc(command: str, text: str, number: int) -> str:
    return f"{command} <<'END_{number}'\n{text}END_{number}"
