"""Writes the rows in `data/`: `python -m examples.kernels.make_data`. The files are the same every time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from examples.common.rows import turn, write_rows
from examples.kernels.cheats import CHEATS, OF
from examples.kernels.grading import tried
from examples.kernels.operations import FAMILIES, Operation, Split, operations

DATA: Final = Path(__file__).parent / "data"
NUM_WARM_START: Final = 120
NUM_TRAIN: Final = 160
NUM_TEST: Final = 100
SYSTEM: Final = (
    "Write kernel, a fast form of ref for arrays, in one line of numpy. Try it with run. Answer with it alone."
)
GPU_SYSTEM: Final = (
    "Write kernel, a fast form of ref, with Triton: a Python module with the imports, the Triton function and a Python "
    "function kernel with ref's arguments, tensors of float32 on a GPU. Try it with run. Answer with the module alone."
)
TOOL: Final = {
    "type": "function",
    "function": {
        "name": "run",
        "description": "tries a kernel: ok and how much faster, or why not",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    },
}
HABITS: Final = {"slow": 0.35, "slow, then fast": 0.2, "fast": 0.3, "fast, twice": 0.15}
"""Share of each kind of conversation. About half try a loop first, and most of these submit the loop."""


def row(operation: Operation, reference: str, system: str = SYSTEM) -> dict[str, Any]:
    """Return the row of a task. Tool and grader receive the full row as `item`."""
    return {
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": reference}],
        "tools": [TOOL],
        "family": operation.family,
        "num_axes": operation.num_axes,
        "reference": reference,
    }


def conversation(operation: Operation, rng: random.Random) -> dict[str, Any]:
    """Return a row for the SFT warm-up, with a random habit."""
    task = row(operation, operation.reference)
    (habit,) = rng.choices(list(HABITS), list(HABITS.values()))
    tries = ["fast", "fast"] if habit == "fast, twice" else habit.split(", then ")
    messages = list(task["messages"])
    for number, kind in enumerate(tries):
        code = getattr(operation, kind)
        messages += turn([("run", {"code": code}, tried(code, task, str(number)))], first=number)
    messages.append({"role": "assistant", "content": getattr(operation, tries[-1])})
    return {"messages": messages, "tools": task["tools"]}


def drawn(split: Split, seed: int) -> Iterator[Operation]:
    """Yield the operations of a split in a random order: one of each family, then another of each; none twice."""
    rng = random.Random(seed)
    by_family: dict[str, list[Operation]] = {name: [] for name in FAMILIES[split]}
    for operation in operations(split):
        by_family[operation.family].append(operation)
    for left in by_family.values():
        rng.shuffle(left)
    while True:
        for left in by_family.values():
            if left:
                yield left.pop()


def write_data(folder: Path) -> None:
    """Write all files; the folder is created if necessary."""
    train, test, rng = drawn("train", 1), drawn("test", 2), random.Random(3)
    cheats = [{"sample": text, "item": row(OF, OF.reference) | {"name": name}} for name, text in CHEATS.items()]
    files: dict[str, Sequence[dict[str, Any]]] = {
        "warm_start.jsonl": [conversation(next(train), rng) for _ in range(NUM_WARM_START)],
        "train.jsonl": [row(one, one.reference) for one in islice(train, NUM_TRAIN)],
        "test.jsonl": [row(one, one.reference) for one in islice(test, NUM_TEST)],
        "cheats.jsonl": cheats,
        "gpu_train.jsonl": [row(one, one.torch, GPU_SYSTEM) for one in islice(drawn("train", 4), NUM_TRAIN)],
        "gpu_test.jsonl": [row(one, one.torch, GPU_SYSTEM) for one in islice(drawn("test", 5), NUM_TEST)],
    }
    for name, rows in files.items():
        write_rows(folder / name, rows)


if __name__ == "__main__":
    write_data(DATA)
