"""Writes the dataset in `data/`: `python -m examples.ledger.make_data`. The files are the same every time.

`--instructed FOLDER` writes the same rows to another folder, with a system message before each question, for models
that do not know the answer format yet. The model in `base/` was not trained with such a message.
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any, Final

from examples.ledger.questions import Kind, Question, draw_question
from examples.ledger.tools import TOOLS
from examples.ledger.world import Split, World

DATA: Final = Path(__file__).parent / "data"
TEST_SEED: Final = 99
NUM_TEST: Final = 240
DRAWN: Final[dict[str, tuple[Split, int, int]]] = {
    "train.jsonl": ("train", 240, 1),
    "train_10.jsonl": ("train", 10, 2),
    "validation.jsonl": ("validation", 48, 3),
}
"""Split, number of rows and seed of each file."""
INSTRUCTION: Final = (
    "Answer questions about company reports; read the reports with the tools. Your final answer is the bare number, "
    "such as 1234, or both numbers with a blank between where two are asked for, in the order of the question."
)


def row(question: Question, instruction: str | None = None) -> dict[str, Any]:
    """Return a dataset row. Tools and grader receive the full row as `item`, including the keys after `tools`."""
    system = [{"role": "system", "content": instruction}] if instruction else []
    return {
        "messages": [*system, {"role": "user", "content": question.text}],
        "tools": [tool.chat_form() for tool in TOOLS.values()],
        "reference_answer": question.reference_answer,
        "kind": question.kind,
        "documents": list(question.documents),
    }


def _balanced(world: World, split: Split, num_rows: int, seed: int) -> list[Question]:
    """Return distinct questions about a split's companies: 60 % of kind `one`, 30 % `two`, 10 % `higher`."""
    missing: dict[Kind, int] = {"two": round(0.3 * num_rows), "higher": round(0.1 * num_rows)}
    missing["one"] = num_rows - sum(missing.values())
    rng = random.Random(seed)
    questions: dict[str, Question] = {}
    while any(missing.values()):
        question = draw_question(world, rng, world.companies_in(split))
        if missing[question.kind] and question.text not in questions:
            missing[question.kind] -= 1
            questions[question.text] = question
    rows = list(questions.values())
    rng.shuffle(rows)  # the last ones drawn are all of the kind that was still missing
    return rows


def _test_questions(world: World) -> list[Question]:
    """Return the 240 questions behind all published figures about `base/`; two of them are duplicates."""
    rng = random.Random(TEST_SEED)
    return [draw_question(world, rng, world.companies_in("test")) for _ in range(NUM_TEST)]


def write_data(folder: Path, instruction: str | None = None) -> None:
    """Write all files of the dataset to a folder, which is created if necessary."""
    folder.mkdir(parents=True, exist_ok=True)
    world = World()
    files = {name: _balanced(world, *settings) for name, settings in DRAWN.items()}
    files["test.jsonl"] = _test_questions(world)
    for name, questions in files.items():
        lines = [json.dumps(row(question, instruction)) + "\n" for question in questions]
        (folder / name).write_text("".join(lines), encoding="utf-8")


def main() -> None:
    """Write `data/`, or the same rows with an instruction to another folder."""
    parser = argparse.ArgumentParser(prog="python -m examples.ledger.make_data", description=__doc__)
    parser.add_argument(
        "--instructed", type=Path, metavar="FOLDER", help="write rows with a system message to this folder"
    )
    options = parser.parse_args()
    if options.instructed is None:
        write_data(DATA)
    else:
        write_data(options.instructed, INSTRUCTION)


if __name__ == "__main__":
    main()
