"""Log-probabilities of the same tokens by our engine and by the learner's forward pass, on one GPU or on CPUs.

    python -m benchmarks.gpu_cluster.agreement --model FOLDER [--sequences 32] [--tokens 512]

The engine samples answers to questions of the ledger and then reads them as prompts, as the canary after each weight
update does. The learner computes them packed, as in training. Both take turns on the same GPU, one process each, in
bfloat16; on CPUs in float32.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoTokenizer

from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.vllm_engine import Engine
from agent_rft.spec.job import AlgorithmSpec
from agent_rft.trainer.algorithm.loss import kl_to_reference
from agent_rft.trainer.model.micro_batches import WeightedSequence, pack_sequences
from agent_rft.trainer.model.policy import DeviceBatch, load_policy
from benchmarks.local import dtype_here, gpus_here

QUESTIONS = Path(__file__).parents[2] / "examples" / "ledger" / "data" / "test.jsonl"
MICRO_BATCH_TOKENS = 8192
Arrays = dict[str, NDArray[Any]]


def prompts(model: Path, count: int) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = [json.loads(line) for line in QUESTIONS.read_text().splitlines()]
    chats = [rows[i % len(rows)]["messages"] for i in range(count)]
    return [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]


async def sample(model: Path, sequences: int, tokens: int) -> Arrays:
    """For each sequence i: tokens_i [T], sampled_i (the end of it) and prompt_i [T - 1], log-probabilities."""
    asked = prompts(model, sequences)
    context = max(map(len, asked)) + tokens + 8
    engine = Engine(EngineConfig(str(model), dtype_here(), context, min(64, sequences), 0, gpus=min(1, gpus_here())))
    await engine.start()
    try:
        answers = await asyncio.gather(
            *(engine.generate(p, max_tokens=tokens, seed=i, temperature=1.0) for i, p in enumerate(asked))
        )
        whole = [prompt + answer.token_ids for prompt, answer in zip(asked, answers, strict=True)]
        read = await asyncio.gather(*(engine.prompt_logprobs(token_ids) for token_ids in whole))
    finally:
        engine.shutdown()
    found: Arrays = {}
    for i, (token_ids, answer, logprobs) in enumerate(zip(whole, answers, read, strict=True)):
        found |= {
            f"tokens_{i}": np.array(token_ids, np.int32),
            f"sampled_{i}": answer.logprobs,
            f"prompt_{i}": logprobs,
        }
    return found


def learn(model: Path, found: Arrays) -> Arrays:
    """learner_i [T - 1] for each sequence i, from packed micro-batches."""
    device = torch.device("cuda" if gpus_here() else "cpu")
    policy = load_policy(model, getattr(torch, dtype_here()), temperature=1.0).to(device).eval()
    ids = {i: found[f"tokens_{i}"] for i in range(len(found) // 3)}
    sequences = [WeightedSequence(t.astype(np.int32), (np.arange(len(t)) > 0).astype(np.float32)) for t in ids.values()]
    [micro_batches] = pack_sequences(sequences, num_ranks=1, budget=MICRO_BATCH_TOKENS)
    index_of = {t[1:].tobytes(): i for i, t in ids.items()}
    result: Arrays = {}
    for batch in micro_batches:  # all tokens but the first are targets, so both have the same order
        with torch.no_grad():
            logprobs = policy(DeviceBatch.from_micro_batch(batch, device))[0].float().cpu().numpy()
        for stop, length in zip(np.cumsum(batch.lengths), batch.lengths, strict=True):
            targets = batch.targets[stop - length : stop].astype(np.int32)
            result[f"learner_{index_of[targets.tobytes()]}"] = logprobs[stop - length : stop]
    assert len(result) == len(ids), "two sequences are equal"
    return result


def figures(found: Arrays, learned: Arrays, algorithm: AlgorithmSpec) -> dict[str, tuple[float, str]]:
    """Value and unit of each figure."""
    sampled, read, canary = [], [], []
    for i in range(len(learned)):
        learner, prompt, engine = learned[f"learner_{i}"], found[f"prompt_{i}"], found[f"sampled_{i}"]
        sampled.append((learner[-len(engine) :], engine))
        read.append(np.abs(prompt[-len(engine) :] - engine))
        canary.append(np.abs(learner - prompt).mean())
    ours, engines = (torch.from_numpy(np.concatenate(side)).double() for side in zip(*sampled, strict=True))
    difference = ours - engines
    ratio = difference.exp()
    outside = (ratio < 1 - algorithm.clip_low) | (ratio > 1 + algorithm.clip_high)
    return {
        "agreement: mean |difference|": (float(difference.abs().mean()), "nats"),
        "agreement: largest |difference|": (float(difference.abs().max()), "nats"),
        "agreement: KL(engine || learner)": (float(kl_to_reference(engines, ours).mean()), "nats"),
        "agreement: tokens outside the clip range": (float(outside.double().mean()), "share"),
        "agreement: canary": (float(np.max(canary)), "nats"),
        "agreement: engine, as prompt and as sampled": (float(np.concatenate(read).mean()), "nats"),
    }


def _save(path: Path, arrays: Arrays) -> None:
    np.savez(path, allow_pickle=False, **arrays)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=512, help="most sampled tokens per sequence")
    parser.add_argument("--stage", choices=("engine", "learner"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser


def main() -> None:
    options = arguments().parse_args()
    if options.stage == "engine":
        _save(options.folder / "engine.npz", asyncio.run(sample(options.model, options.sequences, options.tokens)))
        return
    if options.stage == "learner":
        with np.load(options.folder / "engine.npz") as found:
            _save(options.folder / "learner.npz", learn(options.model, dict(found)))
        return
    with tempfile.TemporaryDirectory() as folder:
        for stage in ("engine", "learner"):  # in turn, so that each has the GPU's memory
            command = [sys.executable, "-m", "benchmarks.gpu_cluster.agreement", *sys.argv[1:]]
            subprocess.run([*command, "--stage", stage, "--folder", folder], check=True)
        with np.load(Path(folder) / "engine.npz") as found, np.load(Path(folder) / "learner.npz") as learned:
            both = figures(dict(found), dict(learned), AlgorithmSpec())
    for name, (value, unit) in both.items():
        print(json.dumps({"name": name, "value": value, "unit": unit, "dtype": dtype_here()}), flush=True)


if __name__ == "__main__":
    main()
