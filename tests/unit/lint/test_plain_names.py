"""The check of names finds replaced words, bare prepositions and repeated classes."""

from __future__ import annotations

from tests.lint.plain_names import defined, odd, repeated

SOURCE = """\
class Seats:
    def of(self, most: int) -> None:
        self.is_asleep = bool(most)
        cost, almost = most, self.seated

def look_before() -> int: ...
"""


def test_replaced_words_are_found_in_each_kind_of_name() -> None:
    found = [line.split(":", 2)[1:] for line in odd(list(defined("seats.py", SOURCE)))]
    assert sorted((int(line), text.split(":")[0].strip()) for line, text in found) == [
        (1, "class 'Seats'"),
        (1, "module 'seats'"),
        (2, "function 'of'"),
        (2, "parameter 'most'"),
        (3, "attribute 'is_asleep'"),
        (6, "function 'look_before'"),
    ]


def test_a_class_name_is_used_once() -> None:
    names = [*defined("a.py", "class Row: ..."), *defined("b.py", "class Row: ...\nclass Column: ...")]
    assert list(repeated(names)) == ["a.py:1: class 'Row' is also defined in b.py:1"]
