"""The model's folder in the check of a job: weights, tokenizer, chat template and context."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.job_case import Case, copy_of_base


def cut(file: str, size: int) -> Callable[[Path], None]:
    return lambda model: (model / file).write_bytes((model / file).read_bytes()[:size])


def without(*names: str) -> Callable[[Path], None]:
    def remove(model: Path) -> None:
        for name in names:
            (model / name).unlink()

    return remove


def replaced(file: str, *pairs: tuple[str, str]) -> Callable[[Path], None]:
    def replace(model: Path) -> None:
        text = (model / file).read_text()
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        (model / file).write_text(text)

    return replace


def weights_with_endless_header(model: Path) -> None:
    (model / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")


def index_of_two(model: Path) -> None:
    names = {"a": "model.safetensors", "b": "model-00002.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@pytest.mark.parametrize(
    ("breaks", "code", "message"),
    [
        (without("config.json"), "not_a_model", "has no config.json"),
        (replaced("config.json", ("{", "[")), "not_a_model", "config.json"),
        (replaced("config.json", ('"qwen3"', '"sorcery"')), "not_a_model", "sorcery"),
        (replaced("config.json", ('"qwen3"', '"vit"')), "unsupported_model", "not a causal language model"),
        (replaced("config.json", ('"full_attention"', '"indexed_attention"')), "unsupported_model", "indexed"),
        (without("model.safetensors"), "not_a_model", "has no weights"),
        (cut("model.safetensors", 100_000), "corrupt_weights", "model.safetensors cannot be read"),
        (cut("model.safetensors", 4), "corrupt_weights", "model.safetensors cannot be read"),
        (weights_with_endless_header, "corrupt_weights", "model.safetensors cannot be read"),
        (
            index_of_two,
            "corrupt_weights",
            "model-00002.safetensors is listed in model.safetensors.index.json but is missing",
        ),
        (without(*TOKENIZER_FILES), "not_a_model", "has no tokenizer"),
        (cut("tokenizer.json", 50), "not_a_model", "the tokenizer cannot be read"),
        (without("chat_template.jinja"), "no_chat_template", "no chat template"),
        (replaced("chat_template.jinja", ("{%- for", "{%- each")), "template_syntax", "line 1 of the chat template"),
    ],
)
async def test_a_model_that_cannot_be_trained_is_refused_with_the_reason(
    case: Case, breaks: Callable[[Path], None], code: str, message: str
) -> None:
    model = copy_of_base(case.folder)
    breaks(model)
    case.job = {"model": str(model)}
    problem = await case.only_problem()
    assert (problem.code, problem.field) == (code, "model")
    assert message in problem.message


async def test_layers_with_a_state_are_not_divided_among_ranks(case: Case) -> None:
    model = copy_of_base(case.folder)
    replaced("config.json", ('"full_attention"', '"linear_attention"'))(model)
    case.job = {"model": str(model), "cluster": {"zero_stage": 3}}
    problem = await case.only_problem()
    assert (problem.code, problem.field, problem.fix) == (
        "stateful_layers_under_zero_3",
        "cluster.zero_stage",
        "set it to 2",
    )


@pytest.mark.parametrize(
    ("before", "after", "code", "message"),
    [
        ("{%- if m.role == 'tool' %}", "{%- if m.role == 'tool' %}{{ no() }}", "template_error", "'no' is undefined"),
        ('"name": "', '"called": "', "calls_not_parsed", "hermes does not read"),
    ],
)
async def test_a_template_whose_calls_or_results_are_lost_is_refused_with_what_became_of_them(
    case: Case, before: str, after: str, code: str, message: str
) -> None:
    model = copy_of_base(case.folder)
    replaced("chat_template.jinja", (before, after))(model)
    case.job = {"model": str(model)}
    problem = await case.only_problem()
    assert problem.code == code and problem.field.startswith("model_options.")
    assert message in problem.message


async def test_problems_of_weights_and_tokenizer_are_reported_together(case: Case) -> None:
    model = copy_of_base(case.folder)
    cut("model.safetensors", 100)(model)
    without("chat_template.jinja")(model)
    case.job = {"model": str(model)}
    assert [problem.code for problem in await case.problems()] == ["corrupt_weights", "no_chat_template"]


@pytest.mark.parametrize(
    ("model", "fix"),
    [
        ("nowhere", "Hugging Face name"),
        ("/no/such/folder", "Hugging Face name"),
        ("org/model-7B", "hf download org/model-7B"),
    ],
)
async def test_a_missing_model_is_reported(case: Case, model: str, fix: str) -> None:
    case.job = {"model": model}
    problem = await case.only_problem()
    assert (problem.code, problem.field) == ("missing_model", "model")
    assert fix in problem.fix


async def test_a_file_is_not_a_model_folder(case: Case) -> None:
    (case.folder / "model.gguf").write_bytes(b"")
    case.job = {"model": str(case.folder / "model.gguf")}
    assert (await case.only_problem()).code == "not_a_model"


async def test_a_context_longer_than_the_models_is_refused(case: Case) -> None:
    case.job = {"cluster": {"context_length": 4096}}
    problem = await case.only_problem()
    assert (problem.code, problem.field) == ("context_too_long", "cluster.context_length")
    assert "2048" in problem.message
