"""A script that prints the learner's exact losses on a run's recorded rollouts (`-m tests.e2e.replay RUN STEPS`)."""

from __future__ import annotations

import sys
from pathlib import Path

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.trainer.algorithm.advantage import compute_advantages
from agent_rft.trainer.learner.learner_rank import LearnerRank
from agent_rft.trainer.learner.rank_config import LearnerConfig
from agent_rft.trainer.model.micro_batches import pack_sequences


def main() -> None:
    run = RunFolder(Path(sys.argv[1]))
    steps = int(sys.argv[2])
    learner = LearnerRank(LearnerConfig(model=Path(run.job()["job"]["model"]), steps=steps, learning_rate=5e-4))
    for step in range(steps):
        sequences = [
            sequence
            for group in run.read_groups(f"step-{step + 1:06d}")
            if len(group.rollouts) > 1
            for rollout, advantage in zip(group.rollouts, compute_advantages("grpo", group.rewards), strict=True)
            for sequence in rollout.to_train_segments(float(advantage))
        ]
        [micro_batches] = pack_sequences(sequences, num_ranks=1, budget=8192)
        report = learner.step([micro_batches], version=step)
        print(report.metrics["loss"].hex(), report.metrics["grad_norm"].hex())
    learner.close()


if __name__ == "__main__":
    main()
