"""How an answer is graded: 1 for the right figure, 0.5 for the right figure in a wrong form, 0 for all else.

`grade` trains where there is no judge, `most` is what a judge may give at most, `held_out` is never trained on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any, Final

MAX_ANSWER_CHARS: Final = 300
MAX_JUDGED_CHARS: Final = 1200
MAX_JUDGED_FIGURES: Final = 6
"""An answer with more lists what it has read: a judge gives it nothing. A few may show a calculation."""
MAX_DIGITS: Final = 18
MAX_HELD_OUT_WORDS: Final = 12
SCALES: Final = {
    "": Decimal(1),
    "times": Decimal(1),
    "percent": Decimal("0.01"),
    "basis points": Decimal("0.0001"),
    "thousand": Decimal(10**3),
    "million": Decimal(10**6),
    "billion": Decimal(10**9),
}
_UNITS: Final = {unit: unit for unit in SCALES if unit} | {
    **{"%": "percent", "per cent": "percent", "basis point": "basis points"},
    **{"bp": "basis points", "bps": "basis points", "x": "times"},
    **{"k": "thousand", "m": "million", "mn": "million", "mm": "million", "b": "billion", "bn": "billion"},
}
_CURRENCIES: Final = {"dollars": "$", "usd": "$", "euros": "€", "eur": "€", "pounds": "£", "gbp": "£"}
_FELL: Final = frozenset(["fell", "falls", "fall", "decrease", "decreased", "decline", "declined", "down", "loss"])
_FIGURE: Final = re.compile(
    r"(?<![\w.,])(?P<open>\( ?)?(?P<sign>- ?)?(?P<currency>[$€£] ?)?(?P<minus>- ?)?"
    r"(?P<number>[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?P<close> ?\))?"
    rf"(?: ?(?P<unit>{'|'.join(map(re.escape, sorted(_UNITS, key=len, reverse=True)))})s?(?!\w))?"
    rf"(?: (?P<word>{'|'.join(_CURRENCIES)})(?!\w))?(?!\w)"
)
_SCALE_ASKED: Final = re.compile(r"\b(?:in|how many) (thousand|million|billion)s?\b")
_WORD: Final = re.compile(r"[a-z]+")
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?")
# The held-out grade reads short forms by itself: a mistake above must not be in both grades.
_SPELLED: Final = {
    **{"%": "percent", "per cent": "percent", "bp": "basis points", "bps": "basis points", "x": "times"},
    **{"k": "thousand", "m": "million", "mm": "million", "mn": "million", "b": "billion", "bn": "billion"},
}
_SHORT: Final = re.compile(r"(?<=[0-9]) ?(%|per cent|bps?|bn?|m[mn]?|k|x)(?!\w)")
_BRACKETS: Final = re.compile(r"\(([0-9.,]+)\)")
_HELD_OUT_MARKS: Final = str.maketrans({"$": "", "*": "", "`": "", "\N{MINUS SIGN}": "-"})


@dataclass(frozen=True, slots=True)
class Figure:
    """A number as it is written, with its unit and its currency; "" if there is none."""

    number: Decimal
    unit: str = ""
    currency: str = ""

    def __str__(self) -> str:
        return f"{self.currency}{self.number:f} {self.unit}".strip()

    @property
    def decimals(self) -> int:
        return decimals_of(self.number)

    def to(self, unit: str) -> Figure:
        """The same amount in another unit."""
        return Figure((self.number * SCALES[self.unit] / SCALES[unit]).normalize(), unit)


def decimals_of(number: Decimal) -> int:
    return max(0, -_exponent(number))


def rounded(number: Decimal, decimals: int) -> Decimal:
    """`number` with so many decimals; negative ones are zeros before the point."""
    with localcontext(prec=80):
        return number.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP)


def figures(text: str) -> list[Figure]:
    """All figures of a text. Only ASCII digits count: characters that look alike are others."""
    found = list[Figure]()
    for match in _FIGURE.finditer(text.lower().replace("\N{MINUS SIGN}", "-")):
        digits = match["number"].replace(",", "")
        if len(digits) <= MAX_DIGITS:
            negative = match["sign"] or match["minus"] or (match["open"] and match["close"])
            currency = (match["currency"] or "").strip() or _CURRENCIES.get(match["word"] or "", "")
            found.append(
                Figure(Decimal(f"-{digits}" if negative else digits), _UNITS.get(match["unit"] or "", ""), currency)
            )
    return found


def form(said: Figure, wanted: Figure, exact: Decimal, words: frozenset[str] = frozenset()) -> float:
    """1 if a figure is the wanted one, 0.5 if it has the right value in a wrong form, else 0.

    `exact` is the wanted number with all decimals that are known, so that more decimals than wanted are checked, too.

    Wrong forms are a fraction for a percentage and the reverse, the same amount in another scale, a missing unit, fewer
    digits (two or more of them, rightly rounded), and a fall that `words` tell instead of the sign. Another amount,
    such as billions for millions, is wrong.
    """
    if said.currency and wanted.currency and said.currency != wanted.currency:
        return 0.0
    if said.number > 0 > wanted.number and not words.isdisjoint(_FELL):
        return 0.5 * bool(form(replace(said, number=-said.number), wanted, exact))
    if said.unit == "times" and not (wanted.unit or wanted.currency):
        said = replace(said, unit="")
    if said.unit == wanted.unit and _is_as_precise(said, wanted, exact):
        return 1.0
    same = [said.to(wanted.unit)] if said.unit and wanted.unit else [said.to(wanted.unit), replace(said, unit="")]
    return 0.5 * any(_is_as_precise(each, wanted, exact) or _is_rounded_further(each, exact) for each in same)


def _is_as_precise(said: Figure, wanted: Figure, exact: Decimal) -> bool:
    decimals = min(said.decimals, decimals_of(exact))
    same = said.decimals >= wanted.decimals and rounded(said.number, decimals) == rounded(exact, decimals)
    return same or said.number == wanted.number


def _is_rounded_further(said: Figure, exact: Decimal) -> bool:
    plain = said.number.normalize()
    return len(plain.as_tuple().digits) >= 2 and rounded(exact, -_exponent(plain)) == plain


def _exponent(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int), "not a finite number"
    return exponent


def grade(answer: str, item: Mapping[str, Any]) -> float:
    """By strings: what trains without a judge. An answer states one figure, besides those of the question."""
    if len(answer) > MAX_ANSWER_CHARS:
        return 0.0
    words, wanted = frozenset(_WORD.findall(answer.lower())), str(item["answer"])
    if wanted in ("yes", "no"):
        return float(words & {"yes", "no"} == {wanted})
    said = _said(answer, item)
    left = said.keys() - (_said(item["question"], item).keys() - {_wanted(item)})
    return _form(said[left.pop()], item, words) if len(left) == 1 else 0.0


def most(answer: str, item: Mapping[str, Any]) -> float:
    """What a judge may give at most: 1 if the right figure, in some form, is among the few of a short answer."""
    if len(answer) > MAX_JUDGED_CHARS:
        return 0.0
    words, wanted = frozenset(_WORD.findall(answer.lower())), str(item["answer"])
    if wanted in ("yes", "no"):
        return float(words & {"yes", "no"} == {wanted})
    said = _said(answer, item).values()
    return float(len(said) <= MAX_JUDGED_FIGURES and any(_form(each, item, words) for each in said))


def _wanted(item: Mapping[str, Any]) -> Figure:
    (right,) = figures(str(item["answer"]))
    return _in_scale(right, item)


def _said(answer: str, item: Mapping[str, Any]) -> dict[Figure, Figure]:
    """The figures of an answer as they are written, by what they are in the scale that is asked for."""
    return {_in_scale(each, item): each for each in figures(answer.replace("*", "").replace("`", ""))}


def _form(said: Figure, item: Mapping[str, Any], words: frozenset[str]) -> float:
    """`form` in the scale that is asked for or, as a figure may be written out, without one: the better of both."""
    right, exact = _wanted(item), Decimal(item["exact"])
    return max(form(each, right, exact, words) for each in (_in_scale(said, item), said))


def _in_scale(figure: Figure, item: Mapping[str, Any]) -> Figure:
    """A question "in millions" or "how many millions" means them where a figure has no unit.

    A percentage has no such scale.
    """
    asked = _SCALE_ASKED.search(item["question"].lower())
    share = str(item["answer"]).endswith(("percent", "basis points"))
    return replace(figure, unit=asked[1]) if asked and not share and not figure.unit else figure


def held_out(answer: str, item: Mapping[str, Any]) -> float:
    """1 if an answer ends with the figure that the report was made of, and its unit, and no other word has a digit.

    It compares texts: nothing of `grade` is used. `figure` and `unit` of the row come from the report's figures. What
    the question counts in, `unit_asked`, may follow, such as "million" or "thousand tons".
    """
    text = answer[: 2 * MAX_ANSWER_CHARS].lower().translate(_HELD_OUT_MARKS)
    text = _SHORT.sub(lambda match: f" {_SPELLED[match[1]]}", _BRACKETS.sub(r"-\1", text))
    words = text.strip(" .\n").split()
    if not 0 < len(words) <= MAX_HELD_OUT_WORDS:
        return 0.0
    place = next((n for n, word in enumerate(words) if any(map(str.isdigit, word))), len(words) - 1)
    number, end = words[place], words[place + 1 :]
    if _NUMBER.fullmatch(plain := number.replace(",", "")):
        number = f"{Decimal(plain).normalize():f}"
    unit, asked = item["unit"].split(), item["unit_asked"].split()
    return float(number == item["figure"] and end in [unit + asked[:count] for count in range(len(asked) + 1)])
