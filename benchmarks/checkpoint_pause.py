"""How long a checkpoint stops training: the snapshot in host memory against a plain copy of the same bytes.

    python -m benchmarks.checkpoint_pause [--layers 6] [--zero-stage 0] [--dtype float32] [--runs 5]

The model is a random Qwen3 with about 10M parameters per layer, on one rank and one core. The baseline copies tensors
of the same sizes, and both keep their memory. Writing happens beside training; its time is printed.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from safetensors.torch import load_file

from agent_rft.trainer.learner.learner_rank import LearnerRank
from agent_rft.trainer.learner.rank_config import LearnerConfig
from agent_rft.trainer.learner.rank_memory_sizes import snapshot_bytes
from agent_rft.trainer.model.micro_batches import pack_sequences
from benchmarks.common import Figure, in_turn, report, seconds
from benchmarks.enlarged import Size, enlarged
from benchmarks.learner import MODEL, RATE, make_sequences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--zero-stage", type=int, default=0)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        size = Size(layers=options.layers, hidden=1024, intermediate=3072, heads=8)
        model = Path(enlarged(MODEL, size, Path(folder) / "model"))
        config = LearnerConfig(model, steps=10, learning_rate=RATE, dtype=options.dtype, zero_stage=options.zero_stage)
        rank = LearnerRank(config)
        [micro_batches] = pack_sequences(make_sequences(2, 298, seed=0), num_ranks=1, budget=config.micro_batch_tokens)
        rank.step([micro_batches], version=0)  # Adam has no moments before
        written = Path(folder) / "checkpoint"
        written.mkdir()
        rank.snapshot()
        writing_s = seconds(lambda: rank.write_snapshot(written))
        parameters = sum(parameter.numel() for parameter in rank.policy.parameters())
        count = snapshot_bytes(
            parameters, rank=0, ranks=1, stage=config.effective_stage, in_bfloat16=options.dtype == "bfloat16"
        )
        files = [load_file(path) for path in written.rglob("*.safetensors")]
        source = [tensor.clone() for tensors in files for tensor in tensors.values()]
        assert abs(sum(tensor.nbytes for tensor in source) - count) < 100  # the count of updates is one more tensor
        target = [tensor.clone() for tensor in source]

        def copy() -> None:
            for tensor, kept in zip(source, target, strict=True):
                kept.copy_(tensor)

        runs = in_turn(lambda: seconds(rank.snapshot), lambda: seconds(copy), options.runs + 1)[1:]
        rank.close()
    report([Figure("checkpoint_pause", "s", runs)])
    print(f"{count / 1e9:.2f} GB of {parameters / 1e6:.0f}M parameters; written beside training in {writing_s:.1f} s")


if __name__ == "__main__":
    main()
