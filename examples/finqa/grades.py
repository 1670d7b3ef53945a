"""Grading of answers: 1 for the right figure, 0.5 for the right figure in a wrong notation, otherwise 0.

`grade` is for training without a judge, `most` is the maximum for a judge, and `held_out` is never trained on.
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
"""Maximum number of figures for a judge. A few may show a calculation; more are a list of what was read."""
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
# The held-out grade has its own table of abbreviations, so that an error above does not affect both grades.
_SPELLED: Final = {
    **{"%": "percent", "per cent": "percent", "bp": "basis points", "bps": "basis points", "x": "times"},
    **{"k": "thousand", "m": "million", "mm": "million", "mn": "million", "b": "billion", "bn": "billion"},
}
_SHORT: Final = re.compile(r"(?<=[0-9]) ?(%|per cent|bps?|bn?|m[mn]?|k|x)(?!\w)")
_BRACKETS: Final = re.compile(r"\(([0-9.,]+)\)")
_HELD_OUT_MARKS: Final = str.maketrans({"$": "", "*": "", "`": "", "\N{MINUS SIGN}": "-"})


@dataclass(frozen=True, slots=True)
class Figure:
    """Number as written, with its unit and its currency, each "" if missing."""

    number: Decimal
    unit: str = ""
    currency: str = ""

    def __str__(self) -> str:
        return f"{self.currency}{self.number:f} {self.unit}".strip()

    @property
    def decimals(self) -> int:
        return decimals_of(self.number)

    def to(self, unit: str) -> Figure:
        """Return the same amount in another unit."""
        return Figure((self.number * SCALES[self.unit] / SCALES[unit]).normalize(), unit)


def decimals_of(number: Decimal) -> int:
    return max(0, -_exponent(number))


def rounded(number: Decimal, decimals: int) -> Decimal:
    """Round `number` to this many decimals; negative `decimals` round to tens, hundreds, and so on."""
    with localcontext(prec=80):
        return number.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP)


def figures(text: str) -> list[Figure]:
    """Return all figures in a text. Only ASCII digits count; look-alike characters do not."""
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
    """Grade one figure: 1 if it is the expected figure, 0.5 if it has the right value in a wrong notation, else 0.

    `exact` is the expected number with all known decimals, by which additional decimals are checked.

    Wrong notations are a fraction instead of a percentage and the reverse, the same amount in another scale, a missing
    unit, fewer digits (at least two, rounded correctly), and a fall that `words` express instead of the sign. Another
    amount, such as billions instead of millions, is wrong.
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
    """Return the grade for training without a judge. An answer must state one figure besides the question's figures."""
    if len(answer) > MAX_ANSWER_CHARS:
        return 0.0
    words, wanted = frozenset(_WORD.findall(answer.lower())), str(item["answer"])
    if wanted in ("yes", "no"):
        return float(words & {"yes", "no"} == {wanted})
    said = _said(answer, item)
    left = said.keys() - (_said(item["question"], item).keys() - {_wanted(item)})
    return _form(said[left.pop()], item, words) if len(left) == 1 else 0.0


def most(answer: str, item: Mapping[str, Any]) -> float:
    """Return the maximum grade that a judge may give: 1 if a short answer with few figures has the right figure."""
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
    """Return the figures of an answer: the figure in the requested scale -> the figure as written."""
    return {_in_scale(each, item): each for each in figures(answer.replace("*", "").replace("`", ""))}


def _form(said: Figure, item: Mapping[str, Any], words: frozenset[str]) -> float:
    """Return the better of two grades by `form`: in the scale that the question asks for, and as written."""
    right, exact = _wanted(item), Decimal(item["exact"])
    return max(form(each, right, exact, words) for each in (_in_scale(said, item), said))


def _in_scale(figure: Figure, item: Mapping[str, Any]) -> Figure:
    """Add the scale of the question, such as "in millions", to a figure without a unit.

    Percentages have no scale.
    """
    asked = _SCALE_ASKED.search(item["question"].lower())
    share = str(item["answer"]).endswith(("percent", "basis points"))
    return replace(figure, unit=asked[1]) if asked and not share and not figure.unit else figure


def held_out(answer: str, item: Mapping[str, Any]) -> float:
    """Return 1 if the answer ends with the report's figure and its unit, and no other word has a digit, else 0.

    The function compares strings and shares no code with `grade`. The row's `figure` and `unit` come from the report.
    `unit_asked` of the row, such as "million" or "thousand tons", may follow.
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
