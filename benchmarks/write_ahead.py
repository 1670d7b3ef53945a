"""What the journal costs: recording a batch and its groups, against the learner's step on the same rollouts.

    python -m benchmarks.write_ahead [--groups 16] [--tokens 300] [--runs 5] [--folder DIR]

Groups are recorded while others are sampled, one after another here; only the record of the batch delays the step. A
step also waits for rollouts and for the weight sync, so the share of a whole step is smaller than what is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

import numpy as np

from agent_rft.trainer.learner.learner_rank import LearnerRank
from agent_rft.trainer.learner.rank_config import LearnerConfig
from agent_rft.trainer.loop.group_buffer import Batch
from agent_rft.trainer.loop.journal import Journal
from agent_rft.trainer.model.micro_batches import pack_sequences
from agent_rft.types import Grade, Group, GroupRequest, Rollout, Segment, Task, Turn
from benchmarks.common import Figure, in_turn, report, seconds
from benchmarks.learner import MODEL, RATE

SIZE = 8


def made(index: int, tokens: int) -> Group:
    """A group of SIZE rollouts of `tokens` tokens, two fifths of them sampled."""
    random = np.random.default_rng(index)
    task = Task(str(index), ({"role": "user", "content": "question"},), (), {"messages": []})
    rollouts = []
    for sample in range(SIZE):
        mask = random.random(tokens) < 0.4
        mask[0], mask[-1] = False, True
        rollouts.append(
            Rollout(
                trace_id=f"trace_{index}_{sample}",
                row_id=str(index),
                epoch=0,
                sample=sample,
                attempt=0,
                segments=(
                    Segment(
                        token_ids=random.integers(3, 298, tokens).astype(np.int32),
                        loss_mask=mask,
                        logprobs=np.where(mask, random.normal(-3, 1, tokens), 0).astype(np.float32),
                        versions=np.where(mask, 0, -1).astype(np.int32),
                    ),
                ),
                turns=(Turn(1, tokens, "x" * tokens),),
                answer="x" * 40,
                finish="answer",
                grade=Grade(float(sample % 2)),
                reward=float(sample % 2),
            )
        )
    return Group(GroupRequest(task, 0, index, SIZE, "train", 1.0), tuple(rollouts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure")
    options = parser.parse_args()
    groups = [made(i, options.tokens) for i in range(options.groups)]
    rank = LearnerRank(LearnerConfig(MODEL, steps=options.runs + 1, learning_rate=RATE))
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    sequences = [sequence for rollout in rollouts for sequence in rollout.to_train_segments(rollout.reward - 0.5)]
    [micro_batches] = pack_sequences(sequences, num_ranks=1, budget=8192)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        journal = Journal(Path(folder))

        def step() -> float:
            return seconds(lambda: rank.step([micro_batches], version=1))

        def record_groups() -> float:
            async def record() -> None:
                for group in groups:
                    await journal.add_group(group)

            return seconds(lambda: asyncio.run(record()))

        def record_batch() -> float:
            return seconds(lambda: asyncio.run(journal.add_batch(Batch(groups))))

        all_groups = in_turn(record_groups, step, options.runs + 1)[1:]
        batches = tuple((record_batch(), theirs) for _, theirs in all_groups)
        count = sum(path.stat().st_size for path in Path(folder).iterdir())
    rank.close()
    report([Figure("write_ahead_batch", "s", batches), Figure("write_ahead_groups", "s", all_groups)])
    print(f"{count / 1e6:.2f} MB for {len(sequences) * options.tokens:,} tokens")


if __name__ == "__main__":
    main()
