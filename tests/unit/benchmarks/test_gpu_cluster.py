"""`make gpu`: its parts, resuming, limits and the page it writes, without engines."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import numpy as np
import psutil
import pytest

from agent_rft.spec.job import AlgorithmSpec
from agent_rft.spec.job_file import load_job
from benchmarks import async_gain, rollout_goodput, weight_sync
from benchmarks.common import NotPossible
from benchmarks.gpu_cluster import agreement, job, models, one_gpu, step_budget
from benchmarks.gpu_cluster.__main__ import main, record
from benchmarks.gpu_cluster.parts import RANDOM, Aim, Part, Row, parts_for
from benchmarks.gpu_cluster.processes import run_limited
from benchmarks.gpu_cluster.results import Results, page
from benchmarks.weight_sync import Seating, seating
from benchmarks.worker import real_job
from tests.support.paths import BASE

MODULES = {
    module.__name__: module.arguments
    for module in (agreement, async_gain, job, one_gpu, rollout_goodput, step_budget, weight_sync)
}
PART = Part(
    "part", "module", ("--x", "1"), (Row("speed", "tokens/s", Aim(">=", 5.0)), Row("gain", "times", field="ratio"))
)


def run_python(code: str, log: Path, limit_s: float = 30.0) -> tuple[str | None, list[str]]:
    lines: list[str] = []
    return run_limited([sys.executable, "-c", code], log, limit_s, lines.append, os.environ), lines


# -- the parts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tiny", [False, True])
@pytest.mark.parametrize("model", [None, Path("/models/real")])
def test_every_command_line_is_understood_by_its_module(tiny: bool, model: Path | None) -> None:
    parts = [part for part in parts_for(Path("/out"), model, tiny) if part.makes is None]
    assert {part.module for part in parts} == set(MODULES)
    for part in parts:
        options = MODULES[part.module]().parse_args(part.arguments)
        assert isinstance(options, argparse.Namespace)
        assert part.limit_s < 600 and part.rows


def test_the_random_model_is_written_where_the_parts_read_it(tmp_path: Path) -> None:
    writing, reading, *_ = parts_for(tmp_path, None, tiny=True)
    assert writing.module == models.__name__
    models.main(writing.arguments)
    assert writing.makes == Path(reading.arguments[1]) == tmp_path / RANDOM[True]
    assert json.loads((tmp_path / RANDOM[True] / "config.json").read_text())["num_hidden_layers"] == 2
    assert not Results(tmp_path / "results.jsonl").missing(writing)


def test_a_real_model_is_used_by_all_parts_that_need_one() -> None:
    parts = parts_for(Path("/out"), Path("/models/real"), tiny=False)
    assert [part.name for part in parts if "/models/real" in part.arguments] == [
        *("agreement", "one_gpu", "step_budget", "weight_sync_object_store", "weight_sync_broadcast"),
        *("weight_sync_vllm_nccl", "weight_sync_vllm_ipc", "goodput", "job"),
    ]


@pytest.mark.parametrize(
    ("transport", "gpus", "expected"),
    [
        ("object_store", 0, Seating(0.0, 0.0)),
        ("object_store", 1, Seating(0.9, 0.1)),
        ("object_store", 2, Seating(1.0, 1.0)),
        ("broadcast", 0, Seating(0.0, 0.0)),
        ("broadcast", 2, Seating(1.0, 1.0)),
        ("vllm_ipc", 2, Seating(0.9, 0.1)),
        ("vllm_nccl", 2, Seating(1.0, 1.0)),
    ],
)
def test_who_gets_which_gpu(transport: str, gpus: int, expected: Seating) -> None:
    assert seating(transport, gpus) == expected


@pytest.mark.parametrize(("transport", "gpus"), [("broadcast", 1), ("vllm_nccl", 1), ("vllm_nccl", 0), ("vllm_ipc", 0)])
def test_what_the_gpus_do_not_allow_is_said(transport: str, gpus: int) -> None:
    with pytest.raises(NotPossible, match="GPU"):
        seating(transport, gpus)


def test_vllm_s_own_transports_take_our_settings() -> None:
    for transport, backend in weight_sync.VLLMS.items():
        info = weight_sync.vllms_init_info(transport, "127.0.0.1")
        assert (info.backend, info.packed, info.is_sender) == (backend, True, True)
        assert {"rank", "packed"} <= {field.name for field in fields(info)}
    protocol = import_module("vllm.distributed.weight_transfer.base").VLLMWeightSyncClient
    assert isinstance(weight_sync.VllmsClient(None), protocol)


def test_a_trained_model_s_job_is_valid(tmp_path: Path) -> None:
    environment = {"LEDGER_TOOLS_URL": "http://a", "LEDGER_GRADER_URL": "http://b", "LEDGER_TOKEN": "x"}
    found = load_job(real_job(BASE, tmp_path), environment)
    assert (found.model, found.cluster.engines) == (str(BASE), 1)
    assert found.reinforcement.limits.max_completion_tokens == 2048
    assert found.test_file is not None and "Your final answer" in Path(found.test_file).read_text()


def test_a_job_s_settings_fill_the_gpus() -> None:
    assert job.settings_for(8, 96) | {"cluster.engines": 4, "cluster.learner_ranks": 4} == job.settings_for(8, 96)
    two = job.settings_for(2, 4)
    assert (two["cluster.engines"], two["cluster.learner_ranks"], two["cluster.zero_stage"]) == (1, 1, 0)
    assert two["cluster.engine_cores"] + two["cluster.rank_cores"] <= 4
    assert job.settings_for(3, 12)["cluster.learner_ranks"] == 2


# -- figures -----------------------------------------------------------------------------------------------------------


def test_the_difference_of_engine_and_learner_is_that_of_the_sampled_tokens() -> None:
    engine = np.array([-1.0, -2.0], np.float32)
    found = {
        "tokens_0": np.arange(4),
        "sampled_0": engine,
        "prompt_0": np.array([-3.0, -1.0, -2.5], np.float32),
    }
    learned = {"learner_0": np.array([-3.0, -1.0 + np.log(1.5), -2.0], np.float32)}
    both = agreement.figures(found, learned, AlgorithmSpec())
    values = {name.removeprefix("agreement: "): value for name, (value, _) in both.items()}
    gap = np.log(1.5)
    assert values["mean |difference|"] == pytest.approx(gap / 2)
    assert values["largest |difference|"] == pytest.approx(gap)
    assert values["KL(engine || learner)"] == pytest.approx((1.5 - 1 - gap) / 2)
    assert values["tokens outside the clip range"] == 0.5
    assert values["canary"] == pytest.approx((0 + gap + 0.5) / 3)
    assert values["engine, as prompt and as sampled"] == pytest.approx(0.25)


def test_a_job_s_figures_leave_out_the_first_step_s_time() -> None:
    common = {"rollouts_graded": 10, "completion_tokens_mean": 30.0, "mean_unresponsive_rewards": 0.1}
    first = common | {"time_step_s": 50.0, "sync_pause_s": 9.0, "train_mean_reward": 0.2, "logprob_gap": 0.02}
    second = common | {"time_step_s": 3.0, "sync_pause_s": 0.5, "train_mean_reward": 0.4}
    found = {name: value for name, (value, _) in job.figures([first, second]).items()}
    assert found == {
        "job: step": 3.0,
        "job: sampled tokens": 100.0,
        "job: reward of the first step": 0.2,
        "job: reward of the last step": 0.4,
        "job: discarded rollouts": pytest.approx(0.1),
        "job: pause per weight sync": 0.5,
        "job: log-probability gap": 0.02,
    }
    assert {row.name for part in parts_for(Path(), None, tiny=True) for row in part.rows} >= found.keys()


# -- results -----------------------------------------------------------------------------------------------------------


def test_a_part_is_missing_until_each_of_its_figures_has_a_line(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    results = Results(path)
    record(results, PART, "loading ...")
    record(results, PART, json.dumps({"progress": 1}))
    assert not path.exists() and results.missing(PART)
    record(results, PART, json.dumps({"name": "speed", "value": 7.0}))
    assert results.missing(PART)
    record(results, PART, json.dumps({"name": "gain", "value": 70.0, "ratio": 1.7}))
    assert not results.missing(PART)
    with path.open("a") as file:
        file.write('{"part": "part", "na')  # killed while writing
    again = Results(path)
    assert not again.missing(PART)
    again.add(PART, {"name": "speed", "value": 8.0})
    assert (found := Results(path).figure(PART, PART.rows[0])) is not None and found["value"] == 8.0
    assert again.missing(Part("part", "module", ("--x", "2"), PART.rows)), "with other settings, the figures are others"


def test_the_page_has_values_aims_and_why_one_is_missing(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl")
    other = Part("other", "module", (), (Row("pause", "s", Aim("<=", 1.0), "0.5 (others)"),))
    third = Part("third", "module", (), (Row("a || b", "s"),))
    results.add(PART, {"name": "speed", "value": 4.0})
    results.add(PART, {"name": "gain", "value": 70.0, "ratio": 1.75})
    results.add(other, {"not_possible": "there is one GPU"})
    text = page(results, [PART, other, third], {"GPU 0": "H100"}, "python -m it")
    assert "| speed | 4 tokens/s | >= 5 | no |  |" in text
    assert "| gain | 1.75 times |  |  |  |" in text
    assert "| pause | - | <= 1 | | 0.5 (others) |" in text
    assert "| a \\|\\| b | - |" in text
    assert "- GPU 0: H100\n" in text and "`python -m it`" in text
    assert "- other: not possible: there is one GPU" in text and "- third: not measured" in text
    assert "- part:" not in text.split("Commands")[0]
    results.add(other, {"failed": "it ended with code 1"})
    assert "- other: failed: it ended with code 1" in page(results, [other], {}, "")


# -- processes ---------------------------------------------------------------------------------------------------------


def test_lines_arrive_and_both_outputs_are_logged(tmp_path: Path) -> None:
    failed, lines = run_python("import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)", tmp_path / "log")
    assert (failed, lines) == ("it ended with code 3", ["one\n"])
    assert sorted((tmp_path / "log").read_text().split()) == ["one", "two"]


def test_a_part_that_is_too_slow_is_killed_with_its_daemons(tmp_path: Path) -> None:
    child = "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)"
    code = f"import subprocess, sys, time; {child}; print(child.pid, flush=True); time.sleep(600)"
    orphan = f"import subprocess, sys; {child}; print(child.pid, flush=True)"
    started = time.monotonic()
    for program, why in ((code, "it had not finished after 5 s"), (orphan, None)):
        failed, [pid] = run_python(program, tmp_path / "log", limit_s=5.0)
        assert failed == why
        assert not psutil.pid_exists(int(pid))
    assert time.monotonic() - started < 30


# -- the command -------------------------------------------------------------------------------------------------------


def test_what_is_finished_is_skipped_and_the_page_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = Results(tmp_path / "results.jsonl")
    parts = parts_for(tmp_path, None, tiny=True)
    (tmp_path / RANDOM[True]).mkdir()
    for part in parts:
        for row in part.rows:
            results.add(part, {"name": row.name, "value": 0.01, "ratio": 1.1})
    assert main(["--tiny", "--out", str(tmp_path)], lambda: 0) == 0
    assert capsys.readouterr().out.count("finished before") == len(parts)
    text = (tmp_path / "RESULTS-gpu.md").read_text()
    assert text.count("| 0.01 ") >= 10 and "Without a value" not in text and "torch" in text


def test_a_missing_model_and_a_missing_gpu_are_clear_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(tmp_path), "--out", str(tmp_path)], lambda: 1) == 2
    assert "there is no config.json in it" in capsys.readouterr().err
    assert main(["--out", str(tmp_path)], lambda: 0) == 2
    assert "--tiny" in capsys.readouterr().err
