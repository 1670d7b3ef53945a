"""A real small model as the judge, served by `agent-rft serve`, nightly: grades follow what it says, or there are none.

SmolLM2-135M judges badly: with four examples it tells an equal word from another, which is all that is asked here.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import httpx
import pytest
import yaml
from fastapi import FastAPI

from agent_rft.cluster.views.regrade import grade_file
from agent_rft.errors import GraderFailed
from agent_rft.spec.operator.operator_config import ModelEndpoint, OperatorConfig
from agent_rft.types import Grade
from examples.common.way import listening
from tests.e2e.command import marked, processes_left
from tests.support.fakes_http import unused_port
from tests.support.paths import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]

MODEL = ROOT / "build" / "smollm2-135m-instruct"
WORDS = [
    "table", "water", "green", "music", "river", "stone", "bread", "horse",
    "cloud", "seven", "Tuesday", "winter", "copper", "doctor", "garden", "silver",
    "bridge", "coffee", "mirror", "engine", "yellow", "guitar", "pencil", "island",
]  # fmt: skip
QUESTION = "Reference: {}\nAnswer: {}\nIs the answer the same as the reference? Say 1 or 0."
SHOWN = [("Lima", "Lima", "1"), ("Oslo", "Bern", "0"), ("cat", "cat", "1"), ("red", "blue", "0")]
INPUT = [
    message
    for reference, answer, said in SHOWN
    for message in (
        {"role": "user", "content": QUESTION.format(reference, answer)},
        {"role": "assistant", "content": said},
    )
] + [{"role": "user", "content": QUESTION.format("{{ item.reference }}", "{{ sample.output_text }}")}]
LABEL: dict[str, Any] = {"type": "label_model", "labels": ["1", "0"], "passing_labels": ["1"], "input": INPUT}
SCORE: dict[str, Any] = {"type": "score_model", "input": INPUT}


class Served(NamedTuple):
    url: str
    key: str


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with the model `small`."""
    folder = tmp_path_factory.mktemp("server")
    config = folder / "agent-rft.yaml"
    config.write_text(yaml.safe_dump({"aliases": {"small": str(MODEL)}, "engines": {"max_start_wait_s": 300}}))
    command = [
        sys.executable,
        "-m",
        "agent_rft.cli.main",
        "serve",
        "--folder",
        str(folder / "state"),
        "--port",
        "0",
    ]
    environment = {**marked(os.environ), "AGENT_RFT_METRICS_PORT": str(unused_port())}
    process = subprocess.Popen([*command, "--config", str(config)], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    key = url = ""
    for line in process.stdout:
        key = line.split()[-1] if "API key" in line else key
        if line.startswith("serving at"):
            url = line.split()[2]
            break
    assert key and url, "the server ended before it served"
    try:
        body = {"model": "small", "messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 1}
        headers = {"Authorization": f"Bearer {key}"}
        url = url.rstrip("/").removesuffix("/v1") + "/v1"
        started = httpx.post(f"{url}/chat/completions", json=body, headers=headers, timeout=400)
        assert started.status_code == 200, started.text
        yield Served(url, key)
    finally:
        process.terminate()
        process.communicate(timeout=120)
    assert processes_left() == []


def graded(folder: Path, grader: dict[str, Any], pairs: Sequence[tuple[str, str]], **judge: Any) -> list[Any]:
    """Grades of (reference, answer), as `agent-rft grade` has them; `judge` is the operator's entry."""
    lines = [json.dumps({"sample": answer, "item": {"reference": reference}}) for reference, answer in pairs]
    (folder / "answers.jsonl").write_text("\n".join(lines))
    (folder / "grader.json").write_text(json.dumps({**grader, "model": "judge"}))
    operator = OperatorConfig(models={"judge": ModelEndpoint.model_validate(judge)})
    _, _, [grades] = asyncio.run(grade_file(folder / "answers.jsonl", folder / "grader.json", operator))
    return grades


@pytest.mark.parametrize("grader", [LABEL, SCORE], ids=["label_model", "score_model"])
def test_right_answers_get_more_than_wrong_ones(tmp_path: Path, judge: Served, grader: dict[str, Any]) -> None:
    pairs = [(word, word) for word in WORDS]
    pairs += [(word, WORDS[(i + 7) % len(WORDS)]) for i, word in enumerate(WORDS)]
    entry = {"base_url": judge.url, "api_key": judge.key, "model": "small", "scoring": "logprobs", "timeout_s": 300}
    grades = graded(tmp_path, grader, pairs, **entry)
    assert all(isinstance(grade, Grade) for grade in grades), grades
    values = [grade.value for grade in grades]
    right, wrong = values[: len(WORDS)], values[len(WORDS) :]
    print(f"right {fmean(right):.3f}, wrong {fmean(wrong):.3f}")
    assert sum(a > b for a, b in zip(right, wrong, strict=True)) >= 21
    assert all(0 < value < 1 for value in values)
    assert len(set(values)) > 24
    assert all(grade.judge_tokens["judge"] > 50 for grade in grades)


def test_a_judge_that_says_no_label_gives_no_grade(tmp_path: Path, judge: Served) -> None:
    entry = {"base_url": judge.url, "api_key": judge.key, "model": "small", "scoring": "logprobs", "timeout_s": 300}
    story = {**LABEL, "input": [{"role": "user", "content": "Tell me a story about {{ sample.output_text }}."}]}
    [failed] = graded(tmp_path, story, [("a", "a river")], **entry)
    assert isinstance(failed, GraderFailed)
    assert failed.details["code"] == "model_grader_parse_error" and "likely first tokens" in failed.message


def test_an_answer_in_json_is_a_label_or_no_grade(tmp_path: Path, judge: Served) -> None:
    entry = {"base_url": judge.url, "api_key": judge.key, "model": "small", "timeout_s": 300}
    params = {"sampling_params": {"temperature": 0, "max_completions_tokens": 200}}
    [grade] = graded(tmp_path, {**LABEL, **params}, [("river", "river")], **entry)
    print(grade)
    if isinstance(grade, Grade):
        assert grade.value in (0.0, 1.0) and grade.reason[0] in "01"
    else:
        assert grade.details["code"] == "model_grader_parse_error"


def test_a_judge_that_is_slow_or_down_or_says_garbage_gives_no_grade(tmp_path: Path, judge: Served) -> None:
    garbage = FastAPI()

    @garbage.post("/v1/chat/completions")
    async def answer() -> dict[str, Any]:
        return {"choices": [{"message": {"role": "assistant", "content": "1"}, "finish_reason": "stop"}]}

    real = {"base_url": judge.url, "api_key": judge.key, "model": "small", "scoring": "logprobs"}
    down = {**real, "base_url": f"http://127.0.0.1:{unused_port()}/v1", "timeout_s": 5}
    with listening(garbage) as url:
        for entry in ({**real, "timeout_s": 0.001}, down, {**real, "base_url": f"{url}/v1"}):
            [failed] = graded(tmp_path, LABEL, [("river", "river")], **entry)
            assert isinstance(failed, GraderFailed), entry
            assert failed.details["code"] in ("model_grader_server_error", "model_grader_parse_error")
