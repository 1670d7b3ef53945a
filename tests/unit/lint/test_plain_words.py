"""The check of our English finds odd phrases where people read them, and nowhere else."""

from __future__ import annotations

import pytest

from tests.lint.plain_words import hits

SOURCE = '''\
"""Starts the job anew."""

def whoever(mend: int) -> None:  # the affair
    # it knows
    # none such
    """Checks the token.

    A failed check is mended
    by the caller.
    """
    raise ValueError(
        "the body "
        "is no JSON"
    )
    print(f"{mend} stands {mend:>10} twice; {mend} stands twice")
'''


def test_finds_phrases_in_docstrings_comments_and_messages_but_not_in_identifiers() -> None:
    found = [(hit.line, hit.phrase) for hit in hits("server.py", SOURCE)]
    assert found == [
        (1, "anew"),
        (3, "affair"),
        (4, "knows none such"),
        (5, "none such"),
        (8, "mended"),
        (13, "is no JSON"),
        (15, "stands twice"),
    ]


@pytest.mark.parametrize("name", ["guide.md", "job.yaml", "Makefile"])
def test_reads_other_files_whole_also_across_commented_lines(name: str) -> None:
    (hit,) = hits(name, "key: value\n# names that stand\n# twice are refused\n")
    assert (hit.line, hit.phrase, hit.say) == (2, "stand twice", "is duplicated")


@pytest.mark.parametrize(
    "plain",
    [
        "There is no file with this id.",
        "The key is no longer valid.",
        "The amended recommendation stands.",
        "The job starts again.",
        "Of the two engines, the first one samples.",
    ],
)
def test_leaves_plain_english_alone(plain: str) -> None:
    assert hits("guide.md", plain) == []


ATTRIBUTE = '''\
class Engine:
    """Per-job state of an engine."""

    version: int
    """What it has loaded."""

    def load(self) -> None:
        """How the weights are loaded."""
        print("What now?")
'''


def test_docstrings_of_the_product_do_not_open_with_half_a_sentence() -> None:
    assert [(hit.line, hit.phrase) for hit in hits("engine.py", ATTRIBUTE)] == [(5, "What"), (8, "How")]
    assert hits("tests/test_engine.py", ATTRIBUTE) == []
