"""CPU time of a turn outside the engine core: the episodes of a rollout worker and vLLM's front end, in one process.

    python -m benchmarks.turn_cpu [--runs 3] [--episodes 256]

The episodes run the ledger's test rows, with tools that answer at once and a grader that returns 1. First, the base
model samples turns of about ten tokens. Then a random model samples single turns of up to 200 tokens. The process that
renders the chat template is counted separately. Tools, grader, driver and Ray cost CPU time as well: see
`benchmarks.rollout_goodput`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from agent_rft.actors.engine.chat.tokenizer import load_engine_tokenizer
from agent_rft.actors.engine.chat.turn_parsers import load_parser
from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.vllm_engine import Engine
from agent_rft.actors.rollout.episode import EpisodeRunner, EpisodeSpec, RolloutRequest
from agent_rft.chat.renderer import Renderer
from agent_rft.rows.dataset_rows import read_tasks
from agent_rft.rows.rollout_json import outcome_to_json
from agent_rft.spec.job import RewardSpec, RolloutLimits
from agent_rft.types import Grade, Rollout, Task, ToolCall, ToolResult
from benchmarks.common import print_figure
from benchmarks.weight_sync import write_model
from benchmarks.worker import JOB

SLOTS, AT_ONCE, CONTEXT = 64, 128, 1024
LONG_TURN = 200


async def call_tools(trace_id: str, item: dict[str, Any], calls: Sequence[ToolCall]) -> list[ToolResult]:
    return [ToolResult(call.call_id, "zentra/2014/balance: assets 5185, debt 1207", latency_s=0.01) for call in calls]


async def grade(sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
    return Grade(1.0)


def template_s() -> float:
    """CPU time so far of the processes that render chat templates, in seconds."""
    found = [child for child in psutil.Process().children() if any("template_process" in a for a in child.cmdline())]
    times = [child.cpu_times() for child in found]
    return sum(spent.user + spent.system for spent in times)


async def run_episodes(runner: EpisodeRunner, tasks: Sequence[Task], count: int, epoch: int) -> list[Rollout]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(index: int) -> Rollout:
        async with slots:
            outcome = await runner.run(RolloutRequest(tasks[index % len(tasks)], epoch, index, 0, 1.0, index))
        json.dumps(outcome_to_json(outcome, with_experts=True))  # as it is sent to the driver
        assert isinstance(outcome, Rollout), outcome
        return outcome

    return await asyncio.gather(*(one(index) for index in range(count)))


async def measure(name: str, model: Path, limits: RolloutLimits, runs: int, episodes: int) -> None:
    tasks = read_tasks(JOB.parent / "data" / "test.jsonl", "test_file")[0]
    engine = Engine(EngineConfig(str(model), "float32", CONTEXT, SLOTS, seed=0))
    await engine.start()
    tokenizer = load_engine_tokenizer(model)
    renderer = Renderer(tokenizer)
    renderer.warm_up()

    async def generate(prompt: Sequence[int], **options: Any) -> Any:
        return await engine.generate(prompt, stop_token_ids=list(renderer.stop_tokens), **options)

    spec = EpisodeSpec("0", limits, RewardSpec(), max_steps=32, context_length=CONTEXT)
    parser = load_parser(renderer.family, tokenizer)
    runner = EpisodeRunner(spec, renderer, parser, generate, call_tools, grade)
    try:
        await run_episodes(runner, tasks, min(AT_ONCE, episodes), epoch=0)  # warm-up
        per_turn, rendering, lengths = [], [], []
        for epoch in range(1, 1 + runs):
            before, templates = time.process_time(), template_s()
            rollouts = await run_episodes(runner, tasks, episodes, epoch)
            spent, rendered = time.process_time() - before, template_s() - templates
            turns = sum(len(rollout.turns) for rollout in rollouts)
            per_turn.append(1000 * spent / turns)
            rendering.append(1000 * rendered / turns)
            lengths.append(sum(rollout.num_sampled for rollout in rollouts) / turns)
    finally:
        engine.shutdown()
    details = {
        "lowest": round(min(per_turn), 3),
        "highest": round(max(per_turn), 3),
        "tokens": round(median(lengths), 1),
        "template_process": round(median(rendering), 3),
        "load": round(os.getloadavg()[0], 1),
    }
    print_figure(f"CPU time per turn: {name}", median(per_turn), "ms", **details)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=256, help="of the base model; half as many with long turns")
    options = parser.parse_args()
    own, single = RolloutLimits(max_completion_tokens=600), RolloutLimits(max_completion_tokens=LONG_TURN)
    asyncio.run(measure("the base model's turns", JOB.parent / "base", own, options.runs, options.episodes))
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32}
    with TemporaryDirectory() as folder:
        write_model(Path(folder), 2, num_attention_heads=4, num_key_value_heads=2, **sizes)
        name, episodes = f"turns of {LONG_TURN} tokens", max(1, options.episodes // 2)
        asyncio.run(measure(name, Path(folder), single, options.runs, episodes))


if __name__ == "__main__":
    main()
