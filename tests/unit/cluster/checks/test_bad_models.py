"""Models that cannot be trained as they are: each is a problem of `check`, with what to do about it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_rft.cluster.checks.model_checks.model_check import read_model
from agent_rft.cluster.checks.row_checks import CheckedRow, check_row_lengths
from agent_rft.cluster.planning.model_folder import ModelFolder
from agent_rft.errors import Problem
from agent_rft.spec.job import JobSpec
from agent_rft.types import Task
from tests.support.paths import BASE

TEMPLATE = (BASE / "chat_template.jinja").read_text()
NO_SYSTEM = "{%- set messages = messages | rejectattr('role', 'eq', 'system') | list -%}"
TOOL = {"type": "function", "function": {"name": "find_order", "description": "Finds it.", "parameters": {}}}
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
GGUF = "AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file=FILE).save_pretrained(NEW)"


def job_of(model: Path, **options: Any) -> JobSpec:
    method = {"type": "supervised"}
    spec = {"model": str(model), "training_file": "", "method": method, "model_options": options}
    return JobSpec.model_validate(spec)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BASE, tmp_path / "model"))


def problems_of(model: Path, **options: Any) -> list[Problem]:
    return read_model(job_of(model, **options), ModelFolder.find(str(model)))[1]


def removed(*names: str) -> Callable[[Path], None]:
    return lambda model: [(model / name).unlink() for name in names] and None


def only_gguf(model: Path) -> None:
    shutil.rmtree(model)
    model.mkdir()
    (model / "model-q8_0.gguf").touch()


def gguf_weights(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model.gguf")


def quantized(method: str) -> Callable[[Path], None]:
    def breaks(model: Path) -> None:
        config = json.loads((model / "config.json").read_text())
        config["quantization_config"] = {"quant_method": method}
        (model / "config.json").write_text(json.dumps(config))

    return breaks


def template(text: str) -> Callable[[Path], None]:
    return lambda model: (model / "chat_template.jinja").write_text(text) and None


@pytest.mark.parametrize(
    ("breaks", "code", "message", "fix"),
    [
        (removed("tokenizer.json", "tokenizer_config.json"), "not_a_model", "has no tokenizer", "add tokenizer.json"),
        (only_gguf, "not_a_model", "has no config.json", GGUF),
        (gguf_weights, "not_a_model", "has no weights", GGUF),
        (quantized("fp8"), "unsupported_model", "quantized (fp8)", "before quantization"),
        (quantized("mxfp4"), "unsupported_model", "quantized (mxfp4)", "Mxfp4Config(dequantize=True)"),
        (template("{% if x %}"), "template_syntax", "line 1", "correct the syntax"),
        (template(ENDLESS), "template_too_costly", "2 s of CPU time", "remove nested loops"),
    ],
)
def test_a_model_that_cannot_be_trained_is_a_problem_with_a_fix(
    model: Path, breaks: Callable[[Path], None], code: str, message: str, fix: str
) -> None:
    breaks(model)
    (problem,) = problems_of(model)
    assert (problem.code, problem.field in ("model", "model_options.tool_parser")) == (code, True)
    assert message in problem.message and fix in problem.fix


def test_a_gguf_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    (problem,) = problems_of(tmp_path / "model.gguf")
    assert problem.code == "not_a_model" and GGUF in problem.fix


@pytest.mark.parametrize(
    ("options", "code", "field", "message", "fix"),
    [
        ({"stop_tokens": ["the end"]}, "unknown_stop_token", "stop_tokens[0]", "'the end' is not", "added_tokens"),
        ({"tool_parser": "spells"}, "unknown_parser", "tool_parser", "'spells' does not exist", "use auto or one of"),
        ({"tool_parser": "pythonic"}, "calls_not_parsed", "tool_parser", "pythonic does not read tool calls", "FOLDER"),
        ({"chat_template": "{% if x %}"}, "template_syntax", "chat_template", "line 1", "correct the syntax"),
    ],
)
def test_options_that_do_not_fit_the_model_are_problems_of_their_fields(
    model: Path, options: dict[str, Any], code: str, field: str, message: str, fix: str
) -> None:
    (problem,) = problems_of(model, **options)
    assert (problem.code, problem.field) == (code, f"model_options.{field}")
    assert message in problem.message and fix in problem.fix


@pytest.mark.parametrize(
    ("leaves_out", "code", "message"),
    [
        ("{%- set tools = none -%}", "tools_not_in_prompt", "does not show the tool find_order"),
        (NO_SYSTEM, "message_not_in_prompt", "whose role is system"),
    ],
)
async def test_what_a_template_leaves_out_is_a_problem_of_each_row(
    model: Path, leaves_out: str, code: str, message: str
) -> None:
    shows = TEMPLATE.replace("{%- for m in messages", "{{ tools | tojson if tools }}{%- for m in messages", 1)
    messages = ({"role": "system", "content": "Be kind."}, {"role": "user", "content": "where?"})
    rows = [CheckedRow("training_file", "train.jsonl", Task("1-a", messages, (TOOL,), {}))]
    for text, codes in ((shows, []), (leaves_out + shows, [code])):
        found, problems = read_model(job_of(model, chat_template=text), ModelFolder.find(str(model)))
        assert found is not None and problems == []
        problems = await check_row_lengths(rows, found.renderer, 2048, conversations=False)
        assert [problem.code for problem in problems] == codes
    assert message in problems[0].message and problems[0].fix
