"""Grammars for call arguments that a model family writes in its own literal syntax instead of JSON.

A grammar enforces types, names, enum values and required arguments, but not patterns, lengths, ranges or conditions. If
a call violates one of these, its tool result is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent_rft.spec.schemas.schema_limits import MAX_DEPTH, REFERENCES, resolve_reference

_TYPES: Final = ("string", "number", "boolean", "null", "array", "object")
_INTEGER: Final = '"-"? ("0" | [1-9] [0-9]{0,17})'
_NUMBER: Final = f'{_INTEGER} ("." [0-9]{{1,17}})? ([eE] [+-]? [0-9]{{1,3}})?'
_NAME: Final = "[A-Za-z_] [A-Za-z0-9_]{0,63}"


@dataclass(frozen=True, slots=True)
class LiteralStyle:
    """Syntax in which a model family writes the names and values of call arguments.

    Attributes:
        string_rule: Grammar rule that matches any string.
        quote: Delimiter before and after a string, used where the schema lists the allowed strings (const, enum).
        has_escapes: Whether strings escape the delimiter with a backslash and contain no line break.
        argument_format: Format of the text before an argument's value; `{}` stands for the argument's name.
        member_format: Format of the text before the value of an object's member; `{}` stands for the member's name.
        separator: Text between two arguments, members or list items.
        constant_words: The words for true, false and null.
        is_ordered: Whether arguments and members are sorted by name. Otherwise they have the order of the schema.
    """

    string_rule: str
    quote: str
    has_escapes: bool
    argument_format: str
    member_format: str
    separator: str
    constant_words: tuple[str, str, str]
    is_ordered: bool

    def escape(self, text: str) -> str:
        if not self.has_escapes:
            return text
        return text.replace("\\", "\\\\").replace(self.quote, f"\\{self.quote}").replace("\n", "\\n")


LITERAL_STYLES: Final[Mapping[str, LiteralStyle]] = {
    "gemma": LiteralStyle(
        string_rule=r'''"<|\"|>" ([^<] | "<" [^|<])* "<|\"|>"''',
        quote='<|"|>',
        has_escapes=False,
        argument_format="{}:",
        member_format="{}:",
        separator=",",
        constant_words=("true", "false", "null"),
        is_ordered=True,
    ),
    "python": LiteralStyle(
        string_rule=r'''"\'" ([^'\\\n] | "\\" [^\n])* "\'" | "\"" ([^"\\\n] | "\\" [^\n])* "\""''',
        quote="'",
        has_escapes=True,
        argument_format="{}=",
        member_format="'{}': ",
        separator=", ",
        constant_words=("True", "False", "None"),
        is_ordered=False,
    ),
}


def build_literal_format(schema: Mapping[str, Any], style: LiteralStyle) -> dict[str, Any]:
    """Return the xgrammar format of a call's arguments, without the brackets around the arguments."""
    return {"type": "grammar", "grammar": _GrammarWriter(schema, style).write()}


class _GrammarWriter:
    """Writer of a grammar with one rule for each part of a schema, so that recursive schemas are possible."""

    def __init__(self, root: Mapping[str, Any], style: LiteralStyle) -> None:
        self._root = root
        self._style = style
        self._rules: list[str] = []
        self._values: dict[int, str] = {}
        self._anything: dict[str, Any] = {}

    def write(self) -> str:
        """Return the text of the grammar. The rule `root` matches the arguments."""
        arguments = self._members_rule(self._follow_references(self._root), self._style.argument_format)
        return "\n".join((f"root ::= {arguments}", *self._rules))

    def _follow_references(self, schema: Any) -> Any:
        """Follow a schema's references. Return True, which allows any value, if a reference is not found."""
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, dict):
                return schema
            name = next((schema[key] for key in REFERENCES if isinstance(schema.get(key), str)), None)
            if name is None:
                return schema
            found = resolve_reference(self._root, name)
            schema = True if found is None else found[1]
        return True

    def _add_rule(self, body: str) -> str:
        self._rules.append(f"r{len(self._rules)} ::= {body}")
        return f"r{len(self._rules) - 1}"

    def _value_rule(self, schema: Any) -> str:
        """Return the name of the rule that matches values of `schema`; write the rule if it does not exist yet."""
        schema = self._follow_references(schema)
        if not isinstance(schema, dict):
            schema = self._anything
        if id(schema) not in self._values:
            self._values[id(schema)] = f"r{len(self._rules)}"
            place = len(self._rules)
            self._rules.append("")
            self._rules[place] = f"r{place} ::= {self._rule_body(schema)}"
        return self._values[id(schema)]

    def _rule_body(self, schema: Mapping[str, Any]) -> str:
        if "const" in schema:
            return _quote(self._format_literal(schema["const"]))
        if isinstance(choices := schema.get("enum"), list) and choices:
            return _join_alternatives(_quote(self._format_literal(choice)) for choice in choices)
        for key in ("anyOf", "oneOf"):
            if isinstance(several := schema.get(key), list) and several:
                return _join_alternatives(map(self._value_rule, several))
        if "allOf" in schema:  # intersections of schemas are not supported
            schema = {"type": schema.get("type")}
        kinds = schema.get("type") or ("object" if "properties" in schema else _TYPES)
        return _join_alternatives(
            self._type_body(kind, schema) for kind in ([kinds] if isinstance(kinds, str) else kinds)
        )

    def _type_body(self, kind: str, schema: Mapping[str, Any]) -> str:
        style = self._style
        match kind:
            case "object":
                return f'"{{" {self._members_rule(schema, style.member_format)} "}}"'
            case "array":
                item = self._value_rule(schema.get("items", True))
                return f'"[" ({item} ({_quote(style.separator)} {item})*)? "]"'
            case "boolean":
                return _join_alternatives(map(_quote, style.constant_words[:2]))
            case "null":
                return _quote(style.constant_words[2])
            case "integer":
                return _INTEGER
            case "number":
                return _NUMBER
            case _:
                return style.string_rule

    def _members_rule(self, schema: Any, name_format: str) -> str:
        """Return the rule that matches an object's members. `name_format` is the format of the text before a value."""
        style = self._style
        schema = schema if isinstance(schema, dict) else {}
        separator = _quote(style.separator)
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            extra = schema.get("additionalProperties", True)
            if extra is False:
                return '""'
            before, after = name_format.split("{}")
            member = self._add_rule(f"{_quote(before)} {_NAME} {_quote(after)} {self._value_rule(extra)}")
            return self._add_rule(f"({member} ({separator} {member})*)?")
        required_names = schema.get("required") or ()
        # From last to first: `follows` matches the rest after another member, `begins` matches it at the start.
        follows = begins = '""'
        for name in sorted(properties, key=str.lower, reverse=True) if style.is_ordered else reversed(properties):
            member = f"{_quote(name_format.format(style.escape(name)))} {self._value_rule(properties[name])}"
            begin, follow = f"{member} {follows}", f"{separator} {member} {follows}"
            if name in required_names:
                begins, follows = self._add_rule(begin), self._add_rule(follow)
            else:
                begins, follows = (
                    self._add_rule(_join_alternatives((begin, begins))),
                    self._add_rule(_join_alternatives((follow, follows))),
                )
        return begins

    def _format_literal(self, value: Any) -> str:
        style = self._style
        match value:
            case bool() | None:
                return style.constant_words[2 if value is None else 0 if value else 1]
            case str():
                return style.quote + style.escape(value) + style.quote
            case list():
                return f"[{style.separator.join(map(self._format_literal, value))}]"
            case dict():
                names = sorted(value, key=str.lower) if style.is_ordered else value
                members = (
                    style.member_format.format(style.escape(name)) + self._format_literal(value[name]) for name in names
                )
                return f"{{{style.separator.join(members)}}}"
            case _:
                return json.dumps(value)


def _quote(value: str) -> str:
    """Return a string literal of the grammar, escaped as in JSON."""
    return json.dumps(value, ensure_ascii=False)


def _join_alternatives(bodies: Iterable[str]) -> str:
    found = list(dict.fromkeys(bodies))
    return found[0] if len(found) == 1 else " | ".join(f"({body})" for body in found)
