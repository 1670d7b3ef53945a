"""How a job's model writes conversations: from its job file, else its folder; and what its checkpoints say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agent_rft.chat.model_card import FILE, ModelCard, read_card
from agent_rft.cluster.checks.check_job import CheckedJob, check_job
from agent_rft.cluster.planning.model_folder import ModelFolder
from agent_rft.cluster.run.actor_configs import learner_config, model_files
from agent_rft.errors import InvalidJob
from agent_rft.spec.job_file import load_job
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from tests.support.builders import EXACT
from tests.support.families import OTHER, TINY
from tests.support.job_case import NODE, PLENTY, row, tool
from tests.support.paths import BASE

CARD = ModelCard(
    family="other",
    tool_parser="hermes",
    template_arguments={"enable_thinking": False},
    stop_tokens=("<|im_end|>",),
    tools_in_prompt=False,
)
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}
TEMPLATE = (BASE / "chat_template.jinja").read_text()


async def prepared(folder: Path, card: str | None, effort: str = "default", **options: Any) -> CheckedJob:
    """The check of a job of a model whose folder has this card."""
    model = folder / "model"
    shutil.copytree(BASE, model)
    if card is not None:
        (model / FILE).write_text(card)
    (folder / "own.jinja").write_text(TEMPLATE)
    (folder / "train.jsonl").write_text(json.dumps(row() | {"tools": []}) + "\n")
    method = {
        "type": "reinforcement",
        "reinforcement": {"grader": EXACT, "hyperparameters": {"reasoning_effort": effort}},
    }
    job = {"model": "model", "training_file": "train.jsonl", "method": method, "model_options": options}
    (folder / "job.json").write_text(json.dumps(job))
    spec = load_job(folder / "job.json", {})
    return await check_job(
        spec, ModelFolder.find(spec.model), [NODE], folder / "runs", DEFAULT_CONFIG, free_space=PLENTY
    )


async def test_a_job_goes_on_as_its_models_folder_says(tmp_path: Path) -> None:
    found = await prepared(tmp_path, CARD.model_dump_json(), tools_in_prompt=True)
    options = found.job.model_options
    assert (options.tool_parser, options.template_arguments) == ("hermes", {"enable_thinking": False})
    assert (options.stop_tokens, options.tools_in_prompt) == (("<|im_end|>",), True)
    assert found.dialect.template_arguments == {"enable_thinking": False}


async def test_a_jobs_reasoning_effort_comes_before_the_switches_of_its_models_folder(tmp_path: Path) -> None:
    card = CARD.model_copy(update={"template_arguments": {"enable_thinking": False, "date": "today"}})
    found = await prepared(tmp_path, card.model_dump_json(), effort="high")
    assert found.job.model_options.template_arguments == {"date": "today"}


async def test_a_damaged_card_is_a_problem_of_the_model(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob) as raised:
        await prepared(tmp_path, '{"format": 99}')
    (problem,) = raised.value.problems
    assert (problem.code, problem.field) == ("not_a_model", "model")
    assert "its agent_rft.json: format: Input should be less than or equal to 1" in problem.message
    assert "set model_options" in problem.fix


async def test_a_checkpoint_carries_what_the_job_said(tmp_path: Path) -> None:
    found = await prepared(tmp_path, None, chat_template="own.jinja", stop_tokens=["<|im_start|>"])
    files = learner_config(found).files
    assert files == model_files(found)
    token_id = found.renderer.tokenizer.backend_tokenizer.token_to_id
    assert files is not None and set(files.stop_token_ids) == {token_id("<|im_end|>"), token_id("<|im_start|>")}
    folder = tmp_path / "checkpoint"
    shutil.copytree(BASE, folder)
    files.write(folder)
    card = read_card(folder)
    assert card is not None and (card.tool_parser, card.stop_tokens) == ("hermes", ("<|im_start|>",))
    assert (folder / "chat_template.jinja").read_text() == TEMPLATE
    assert set(json.loads((folder / "generation_config.json").read_text())["eos_token_id"]) == set(files.stop_token_ids)


@pytest.mark.parametrize(
    ("family", "offers", "wrong"),
    [("hunyuan_a13b", True, True), ("hunyuan_a13b", False, False), ("lfm2", True, False), ("glm4", True, False)],
)
async def test_a_response_format_with_tools_needs_a_grammar_of_the_familys_calls(
    tmp_path: Path, family: str, offers: bool, wrong: bool
) -> None:
    TINY.get(family, OTHER).write(tmp_path / "model")
    (tmp_path / "train.jsonl").write_text(json.dumps(row() if offers else row() | {"tools": []}) + "\n")
    tools = [{"name": tool()["function"]["name"], "server_url": "https://tools.example/"}]
    reinforcement = {"grader": EXACT, "tools": tools, "response_format": FORMAT}
    job = {
        "model": "model",
        "training_file": "train.jsonl",
        "method": {"type": "reinforcement", "reinforcement": reinforcement},
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    spec = load_job(tmp_path / "job.json", {})
    try:
        await check_job(
            spec,
            ModelFolder.find(spec.model),
            [NODE],
            tmp_path / "runs",
            DEFAULT_CONFIG,
            free_space=PLENTY,
            dry_run=False,
        )
        problems = []
    except InvalidJob as error:
        problems = [(problem.code, problem.field, problem.message) for problem in error.problems]
    message = "tool calls of the model family hunyuan_a13b cannot be constrained to a schema"
    assert problems == [("no_call_grammar", "method.reinforcement.response_format", message)] * wrong
