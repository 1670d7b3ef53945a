"""`agent-rft check --show-prompt`: the text that the model sees, and what of it is trained."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from agent_rft.cli.check import print_prompt
from agent_rft.cluster.checks.prompt_preview import PromptPreview, preview_prompt
from agent_rft.cluster.planning.model_folder import ModelFolder
from agent_rft.spec.job_file import load_job
from tests.support.paths import BASE

QUESTION = {"role": "user", "content": "what was debt of vorzen in 2015?"}
CALL = {"id": "c", "type": "function", "function": {"name": "cat", "arguments": '{"path": "a"}'}}
TRACE = [
    QUESTION,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "debt 1234"},
    {"role": "assistant", "content": "1234"},
]
GRADED = {"type": "reinforcement", "reinforcement": {"grader": {"type": "endpoint", "url": "http://127.0.0.1:1"}}}


def shown(folder: Path, messages: list[dict[str, Any]], method: dict[str, Any]) -> PromptPreview | None:
    (folder / "rows.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    job = {"model": str(BASE), "training_file": "rows.jsonl", "method": method}
    (folder / "job.json").write_text(json.dumps(job))
    return preview_prompt(load_job(folder / "job.json", {}), ModelFolder.find(str(BASE)))


def printed(prompt: PromptPreview | None) -> str:
    assert prompt is not None
    console = Console(width=100, record=True, file=StringIO())
    print_prompt(console, prompt)
    return console.export_text()


def test_a_row_is_shown_with_its_generation_prompt_and_how_turns_end(tmp_path: Path) -> None:
    prompt = shown(tmp_path, [QUESTION], GRADED)
    text = printed(prompt)
    assert "<|im_start|>user\nwhat was debt of vorzen in 2015?<|im_end|>\n<|im_start|>assistant\n" in text
    assert "parser hermes" in text and "stop tokens <|im_end|>" in text and "⟦" not in text
    assert prompt is not None and f"{prompt.num_tokens} tokens" in text


def test_of_a_conversation_the_trained_parts_are_marked(tmp_path: Path) -> None:
    text = printed(shown(tmp_path, TRACE, {"type": "supervised"}))
    assert '⟦<tool_call>\n{"name": "cat", "arguments": {"path": "a"}}\n</tool_call><|im_end|>⟧' in text
    assert "⟦1234<|im_end|>⟧" in text and "debt 1234" in text


def test_nothing_is_shown_of_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert shown(tmp_path, [{"role": "user"}], GRADED) is None
