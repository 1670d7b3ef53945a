"""The parts: which command measures which figures, their aims and what others have published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.enlarged import Size

LIMIT_S = 570.0
"""Most seconds of a part: a machine that is lent for commands of ten minutes must not end a part from outside."""
RANDOM = {False: "qwen3-0.6b", True: "tiny"}
"""The shape of the random model by whether sizes are tiny."""
LARGE = Size(layers=28, hidden=2048, intermediate=6144, heads=32)
"""Qwen3-1.7B's layers and widths; heads have 32 dimensions, as in the ledger's base model. 1.3 billion parameters."""
NEMO_RL = "0.03 to 0.04 (NeMo-RL)"


@dataclass(frozen=True, slots=True)
class Aim:
    """What a value should be."""

    is_: Literal["<=", ">="]
    limit: float

    def met(self, value: float) -> bool:
        return value <= self.limit if self.is_ == "<=" else value >= self.limit

    def __str__(self) -> str:
        return f"{self.is_} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Row:
    """A figure: the `name` of its JSON line, which of its numbers counts, and what to compare it with."""

    name: str
    unit: str
    aim: Aim | None = None
    anchor: str = ""
    field: Literal["value", "ratio"] = "value"


@dataclass(frozen=True, slots=True)
class Part:
    """One command. It is finished when each of `rows` has a line, or, without rows, when `makes` exists."""

    name: str
    module: str
    arguments: tuple[str, ...]
    rows: tuple[Row, ...] = ()
    makes: Path | None = None
    limit_s: float = LIMIT_S

    @property
    def command(self) -> str:
        """What its lines are filed under: with other settings, the figures are others."""
        return " ".join(["-m", self.module, *self.arguments])


def parts_for(out: Path, model: Path | None, tiny: bool, limit_s: float = LIMIT_S) -> list[Part]:
    """All parts, in order. Without a `model` a random one is written into `out`, and the job trains the toy model."""
    folder = model or out / RANDOM[tiny]
    writing = Part("model", "benchmarks.gpu_cluster.models", (str(folder), "--shape", RANDOM[tiny]), makes=folder)
    return [
        *([] if model else [writing]),
        _part("agreement", "gpu_cluster.agreement", _agreement(folder, tiny), AGREEMENT, limit_s),
        _part("one_gpu", "gpu_cluster.one_gpu", _one_gpu(folder, tiny), TURNS, limit_s),
        _part("step_budget", "gpu_cluster.step_budget", _step_budget(folder, tiny), STEP_BUDGETS, limit_s),
        *(
            _part(f"weight_sync_{transport}", "weight_sync", _sync(folder, transport, tiny), rows, limit_s)
            for transport, rows in SYNC.items()
        ),
        _part("goodput", "rollout_goodput", _goodput(model, tiny), (_goodput_row(model, tiny),), limit_s),
        _part("async_gain", "async_gain", _gain(tiny), (GAIN,), limit_s),
        _part("job", "gpu_cluster.job", _job(out, model, tiny), JOB, limit_s),
    ]


def _part(name: str, module: str, arguments: list[str], rows: tuple[Row, ...], limit_s: float) -> Part:
    return Part(name, f"benchmarks.{module}", tuple(arguments), rows, limit_s=limit_s)


# -- engine against learner --------------------------------------------------------------------------------------------

AGREEMENT = (
    Row("agreement: mean |difference|", "nats", Aim("<=", 0.02)),
    Row("agreement: largest |difference|", "nats"),
    Row("agreement: KL(engine || learner)", "nats"),
    Row("agreement: tokens outside the clip range", "share"),
    Row("agreement: canary", "nats", Aim("<=", 0.1), "the limit above which an engine is replaced"),
    Row("agreement: engine, as prompt and as sampled", "nats"),
)


def _agreement(model: Path, tiny: bool) -> list[str]:
    return ["--model", str(model), *(["--sequences", "4", "--tokens", "32"] if tiny else [])]


# -- an engine and a rank on one GPU -----------------------------------------------------------------------------------

TURNS = (
    *(Row(f"one GPU: {what}", "GiB") for what in ("learner awake", "engine awake")),
    Row("one GPU: left by a learner asleep", "GiB", Aim("<=", 1.5), "what the plan leaves for it"),
    Row("one GPU: left by both asleep", "GiB", Aim("<=", 3.0), "what the plan leaves for them"),
    *(Row(f"one GPU: {who} {what}", "s") for who in ("learner", "engine") for what in ("falls asleep", "wakes up")),
    Row("one GPU: largest difference after sleep", "nats", Aim("<=", 0.0)),
    Row("one GPU: equal samples after sleep", "share", Aim(">=", 1.0)),
    *(
        row
        for what in ("kept", "discarded")
        for row in (
            Row(f"one GPU: engine falls asleep, weights {what}", "s"),
            Row(f"one GPU: engine wakes up for an update, weights {what}", "s"),
            Row(f"one GPU: equal samples, weights {what}", "share", Aim(">=", 1.0)),
        )
    ),
)


def _one_gpu(model: Path, tiny: bool) -> list[str]:
    return ["--model", str(model), *(["--tokens", "16"] if tiny else [])]


# -- the token budget of an engine step --------------------------------------------------------------------------------

STEP_BUDGETS = tuple(
    Row(f"step of {budget}: {what}", unit)
    for budget in ("8192 tokens", "the context")
    for what, unit in (
        ("prompt and sampled tokens", "tokens/s"),
        ("time of a sampling sequence", "s"),
        ("cache", "tokens"),
    )
)


def _step_budget(model: Path, tiny: bool) -> list[str]:
    return ["--model", str(model), *(["--context", "512", "--prompts", "4", "--sequences", "4"] if tiny else [])]


# -- weight sync -------------------------------------------------------------------------------------------------------


def _sync_rows(transport: str) -> tuple[Row, ...]:
    suffix = "" if transport == "object_store" else f", {transport}"
    return (
        Row(f"weight sync: seconds per GB{suffix}", "s/GB", Aim("<=", 0.04), NEMO_RL),
        Row(f"weight sync: pause (against its limit){suffix}", "s"),
    )


SYNC = {name: _sync_rows(name) for name in ("object_store", "broadcast", "vllm_nccl", "vllm_ipc")}


def _sync(model: Path, transport: str, tiny: bool) -> list[str]:
    return ["--model", str(model), "--transport", transport, "--runs", "1" if tiny else "5"]


# -- goodput and gain --------------------------------------------------------------------------------------------------

SLOW_TOOLS = ["--median-s", "0.2", "--p99-s", "2"]
GAIN = Row("async gain, staleness 1, slow tools", "times", Aim(">=", 2.0), "1.6 (published)", "ratio")


def _goodput_row(model: Path | None, tiny: bool) -> Row:
    if tiny:
        name = "rollout_goodput_0s_tools"
    elif model is None:
        name = f"rollout_goodput_0.2s_tools_{LARGE.layers}_layers_{LARGE.hidden}_wide"
    else:
        name = "rollout_goodput_0.2s_tools_real_model"
    return Row(name, "of the same turns back to back", Aim(">=", 0.9), "", "ratio")


def _goodput(model: Path | None, tiny: bool) -> list[str]:
    if tiny:
        return ["--runs", "1", "--episodes", "96", "--admitted", "12", "--slots", "4", "--median-s", "0"]
    if model is None:
        return ["--runs", "2", "--episodes", "1024", "--admitted", "256", "--slots", "64", *SLOW_TOOLS, *LARGE.options]
    return ["--runs", "1", "--episodes", "256", "--admitted", "96", "--slots", "64", *SLOW_TOOLS, "--model", str(model)]


def _gain(tiny: bool) -> list[str]:
    if tiny:
        return ["--staleness", "1", "--steps", "4", "--median-s", "0.01", "--p99-s", "0.1"]
    return ["--staleness", "1", "--steps", "12", *SLOW_TOOLS, *LARGE.options]


# -- a job -------------------------------------------------------------------------------------------------------------

JOB = (
    Row("job: step", "s"),
    Row("job: sampled tokens", "tokens/s"),
    Row("job: reward of the first step", ""),
    Row("job: reward of the last step", ""),
    Row("job: discarded rollouts", "share"),
    Row("job: pause per weight sync", "s"),
    Row("job: log-probability gap", "nats", Aim("<=", 0.1)),
)


def _job(out: Path, model: Path | None, tiny: bool) -> list[str]:
    return ["--steps", "2" if tiny else "4", "--keep", str(out / "job"), *(["--model", str(model)] if model else [])]
