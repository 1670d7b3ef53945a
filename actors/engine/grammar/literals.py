"""Arguments that a family does not write as JSON, as a grammar of constrained decoding.

Types, names, choices and what is required are held. Patterns, lengths, ranges and conditions are not: a call that
breaks one gets the mistake as its result, as it does without a grammar.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent_rft.spec.schemas.form import MAX_DEPTH, REFERENCES, resolved

_KINDS: Final = ("string", "number", "boolean", "null", "array", "object")
_INTEGER: Final = '"-"? ("0" | [1-9] [0-9]{0,17})'
_NUMBER: Final = f'{_INTEGER} ("." [0-9]{{1,17}})? ([eE] [+-]? [0-9]{{1,3}})?'
_NAME: Final = "[A-Za-z_] [A-Za-z0-9_]{0,63}"


@dataclass(frozen=True, slots=True)
class Style:
    """How a family writes values.

    Attributes:
        text: The rule of a text.
        quote: The mark around a text that is given.
        escapes: Whether a text has a backslash before each mark that it contains, and no line break.
        argument: A name of an argument, up to its value.
        member: A name of a member of an object, up to its value.
        separator: The text between two of them, and between two items of a list.
        words: true, false and null.
        ordered: Whether names are sorted; else they come in the order of the schema.
    """

    text: str
    quote: str
    escapes: bool
    argument: str
    member: str
    separator: str
    words: tuple[str, str, str]
    ordered: bool

    def escaped(self, text: str) -> str:
        if not self.escapes:
            return text
        return text.replace("\\", "\\\\").replace(self.quote, f"\\{self.quote}").replace("\n", "\\n")


STYLES: Final[Mapping[str, Style]] = {
    "gemma": Style(
        text=r'''"<|\"|>" ([^<] | "<" [^|<])* "<|\"|>"''',
        quote='<|"|>',
        escapes=False,
        argument="{}:",
        member="{}:",
        separator=",",
        words=("true", "false", "null"),
        ordered=True,
    ),
    "python": Style(
        text=r'''"\'" ([^'\\\n] | "\\" [^\n])* "\'" | "\"" ([^"\\\n] | "\\" [^\n])* "\""''',
        quote="'",
        escapes=True,
        argument="{}=",
        member="'{}': ",
        separator=", ",
        words=("True", "False", "None"),
        ordered=False,
    ),
}


def arguments_format(schema: Mapping[str, Any], style: Style) -> dict[str, Any]:
    """The format of a call's arguments, without what is around all of them."""
    return {"type": "grammar", "grammar": _Writer(schema, style).written()}


class _Writer:
    """Writes the rules of one schema, one for each of its parts, so that a part may refer back to itself."""

    def __init__(self, root: Mapping[str, Any], style: Style) -> None:
        self._root = root
        self._style = style
        self._rules: list[str] = []
        self._values: dict[int, str] = {}
        self._anything: dict[str, Any] = {}

    def written(self) -> str:
        """The grammar. Its `root` are the arguments."""
        arguments = self._members(self._followed(self._root), self._style.argument)
        return "\n".join((f"root ::= {arguments}", *self._rules))

    def _followed(self, schema: Any) -> Any:
        """What a schema refers to; True, which allows anything, where that is not found, such as an anchor."""
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, dict):
                return schema
            name = next((schema[key] for key in REFERENCES if isinstance(schema.get(key), str)), None)
            if name is None:
                return schema
            found = resolved(self._root, name)
            schema = True if found is None else found[1]
        return True

    def _rule(self, body: str) -> str:
        self._rules.append(f"r{len(self._rules)} ::= {body}")
        return f"r{len(self._rules) - 1}"

    def _value(self, schema: Any) -> str:
        """The rule of a value, which is written once for each part of the schema."""
        schema = self._followed(schema)
        if not isinstance(schema, dict):
            schema = self._anything
        if id(schema) not in self._values:
            self._values[id(schema)] = f"r{len(self._rules)}"
            place = len(self._rules)
            self._rules.append("")
            self._rules[place] = f"r{place} ::= {self._body(schema)}"
        return self._values[id(schema)]

    def _body(self, schema: Mapping[str, Any]) -> str:
        if "const" in schema:
            return _text(self._literal(schema["const"]))
        if isinstance(choices := schema.get("enum"), list) and choices:
            return _either(_text(self._literal(choice)) for choice in choices)
        for key in ("anyOf", "oneOf"):
            if isinstance(several := schema.get(key), list) and several:
                return _either(map(self._value, several))
        if "allOf" in schema:  # what several schemas allow together is not worked out
            schema = {"type": schema.get("type")}
        kinds = schema.get("type") or ("object" if "properties" in schema else _KINDS)
        return _either(self._typed(kind, schema) for kind in ([kinds] if isinstance(kinds, str) else kinds))

    def _typed(self, kind: str, schema: Mapping[str, Any]) -> str:
        style = self._style
        match kind:
            case "object":
                return f'"{{" {self._members(schema, style.member)} "}}"'
            case "array":
                item = self._value(schema.get("items", True))
                return f'"[" ({item} ({_text(style.separator)} {item})*)? "]"'
            case "boolean":
                return _either(map(_text, style.words[:2]))
            case "null":
                return _text(style.words[2])
            case "integer":
                return _INTEGER
            case "number":
                return _NUMBER
            case _:
                return style.text

    def _members(self, schema: Any, form: str) -> str:
        """The rule of an object's members, each after its name."""
        style = self._style
        schema = schema if isinstance(schema, dict) else {}
        separator = _text(style.separator)
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            extra = schema.get("additionalProperties", True)
            if extra is False:
                return '""'
            before, after = form.split("{}")
            member = self._rule(f"{_text(before)} {_NAME} {_text(after)} {self._value(extra)}")
            return self._rule(f"({member} ({separator} {member})*)?")
        needed = schema.get("required") or ()
        # From the last to the first: what may follow another member, and what may be the first.
        follows = begins = '""'
        for name in sorted(properties, key=str.lower, reverse=True) if style.ordered else reversed(properties):
            member = f"{_text(form.format(style.escaped(name)))} {self._value(properties[name])}"
            begin, follow = f"{member} {follows}", f"{separator} {member} {follows}"
            if name in needed:
                begins, follows = self._rule(begin), self._rule(follow)
            else:
                begins, follows = self._rule(_either((begin, begins))), self._rule(_either((follow, follows)))
        return begins

    def _literal(self, value: Any) -> str:
        style = self._style
        match value:
            case bool() | None:
                return style.words[2 if value is None else 0 if value else 1]
            case str():
                return style.quote + style.escaped(value) + style.quote
            case list():
                return f"[{style.separator.join(map(self._literal, value))}]"
            case dict():
                names = sorted(value, key=str.lower) if style.ordered else value
                members = (style.member.format(style.escaped(name)) + self._literal(value[name]) for name in names)
                return f"{{{style.separator.join(members)}}}"
            case _:
                return json.dumps(value)


def _text(value: str) -> str:
    """A text as grammars write it: escaped as in JSON."""
    return json.dumps(value, ensure_ascii=False)


def _either(bodies: Iterable[str]) -> str:
    found = list(dict.fromkeys(bodies))
    return found[0] if len(found) == 1 else " | ".join(f"({body})" for body in found)
