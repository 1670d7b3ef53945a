"""A YAML or JSON document of others, at a path or a URL, within bounds, with the lines of its parts."""

from __future__ import annotations

import asyncio
import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from yarl import URL

from agent_rft.actors.endpoints.answer import status_text
from agent_rft.actors.endpoints.network.address_guard import ForbiddenAddress, Guard
from agent_rft.actors.endpoints.network.transport import describe
from agent_rft.actors.endpoints.network.url import endpoint_mistake, safe_url
from agent_rft.errors import Problem, UserError
from agent_rft.rows.bounded_file import as_text, read_bounded
from agent_rft.spec.operator.allowed import parse_allowed
from agent_rft.spec.reader import KeyPath, Lines, field_name
from agent_rft.spec.schemas.form import shortened

MAX_BYTES = 8 << 20
"""Far more than operations for one agent need; its text is in memory several times while it is read."""
MAX_DEPTH = 200
MAX_FIELD_CHARS = 300
_OPENING = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_CLOSING = (yaml.MappingEndEvent, yaml.SequenceEndEvent)
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class _Loader(yaml.CSafeLoader):
    """Reads each key as its text, as JSON has it: YAML reads `on`, `1` and `200` as other values."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        self.flatten_mapping(node)  # type: ignore[no-untyped-call]  # what << merges
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


class Document:
    """A parsed document. `where` is its path or URL without secrets, for messages."""

    def __init__(self, text: str, where: str) -> None:
        """Parses the text.

        Raises:
            UserError: It is neither JSON nor YAML, is nested too deeply, or has aliases or lone surrogates.
        """
        self.where = where
        self._text = text
        self.raw: Any = self._parsed()

    def problem(self, code: str, path: KeyPath, message: str, remedy: str) -> Problem:
        """A problem with the part at this path."""
        field = shortened(field_name(path), MAX_FIELD_CHARS) or "the document"
        return Problem(code, field, message, remedy, self.where, self._lines.of(path))

    def _parsed(self) -> Any:
        try:
            if self._text.lstrip()[:1] in ("{", "["):
                raw = json.loads(self._text)
                if "\\u" in self._text and (at := _surrogate(raw)) is not None:
                    field = shortened(field_name(at), MAX_FIELD_CHARS) or "the document"
                    raise UserError(
                        f"{self.where}: {field} has half of a surrogate pair, such as \\ud800: write whole characters"
                    )
                return raw
            self._check_events()
            return yaml.load(self._text, _Loader)
        except json.JSONDecodeError as error:
            raise UserError(f"{self.where}:{error.lineno} is not valid JSON: {error.msg}") from None
        except yaml.MarkedYAMLError as error:
            line = f":{error.problem_mark.line + 1}" if error.problem_mark is not None else ""
            raise UserError(f"{self.where}{line} is not valid YAML: {error.problem}") from None
        except (yaml.YAMLError, ValueError) as error:
            raise UserError(f"{self.where} is neither JSON nor YAML: {str(error).splitlines()[0][:200]}") from None
        except RecursionError:
            raise UserError(f"{self.where} is nested too deeply") from None

    def _check_events(self) -> None:
        """Refuse what the parser, which is recursive and written in C, could not survive."""
        depth = 0
        for event in yaml.parse(self._text, yaml.CSafeLoader):
            line = event.start_mark.line + 1 if event.start_mark is not None else 1
            if isinstance(event, yaml.AliasEvent):
                raise UserError(
                    f"{self.where}:{line} has an alias (*{event.anchor}): write the value itself, or a $ref"
                )
            depth += isinstance(event, _OPENING) - isinstance(event, _CLOSING)
            if depth > MAX_DEPTH:
                raise UserError(f"{self.where}:{line} is nested more than {MAX_DEPTH} levels deep")

    @cached_property
    def _lines(self) -> Lines:
        """Needed for problems only: of a large document it takes seconds."""
        try:
            self._check_events()
            return Lines(yaml.compose(self._text, yaml.CSafeLoader))
        except (yaml.YAMLError, UserError):  # JSON is not always YAML: it may have tabs
            return Lines(None)


def _surrogate(value: Any) -> KeyPath | None:
    """Where a value or key has a lone surrogate, which UTF-8 cannot encode; YAML has none."""
    if isinstance(value, str):
        return () if _SURROGATE.search(value) else None
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        if isinstance(key, str) and _SURROGATE.search(key):
            return ()
        if (found := _surrogate(part)) is not None:
            return key, *found
    return None


def read_document(source: str) -> Document:
    """The document at a URL or path.

    Raises:
        UserError: It cannot be read or parsed.
    """
    if source.startswith(("http://", "https://")):
        body, where = fetched(source, MAX_BYTES), safe_url(source)
    else:
        body, where = read_bounded(Path(source), MAX_BYTES, "leave out what is not needed"), source
    return Document(as_text(body, where, "save it as UTF-8"), where)


TIMEOUT_S = 30.0
OWN_NETWORKS = ("127.0.0.0/8", "::1", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
"""Private networks are allowed, because the user of this machine typed the URL. Metadata, link-local and multicast
addresses are not."""
INSTEAD = "or save the file yourself and give its path"


def fetched(url: str, max_bytes: int) -> bytes:
    """Return the body of a successful answer. Redirects are not followed.

    Raises:
        UserError: The address has no document, or the document is too large.
    """
    if (mistake := endpoint_mistake(url, {})) is not None:
        raise UserError(f"--from: {mistake}")
    return asyncio.run(_get(url, max_bytes))


async def _get(url: str, max_bytes: int) -> bytes:
    shown = safe_url(url)
    guard = Guard([parse_allowed(network) for network in OWN_NETWORKS])
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(connector=guard.connector(URL(url)), timeout=timeout) as session,
            session.get(url, allow_redirects=False, headers={"Accept": "application/json, */*"}) as answer,
        ):
            if answer.status != 200:
                where = "; give the URL that it redirects to" if 300 <= answer.status < 400 else "; check the URL"
                raise UserError(f"{shown} answers {status_text(answer.status)}{where}, {INSTEAD}")
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > max_bytes:
                    raise UserError(f"{shown} is larger than {max_bytes:,} bytes, the most that is read")
            return bytes(body)
    except TimeoutError:
        raise UserError(f"{shown} did not answer within {TIMEOUT_S:g} s; try again, {INSTEAD}") from None
    except (aiohttp.ClientError, OSError) as error:
        why = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else None
        if isinstance(why, ForbiddenAddress):
            raise UserError(f"{shown} points to {why.address}, {why.why}, which is not read; {INSTEAD[3:]}") from None
        raise UserError(f"{shown} cannot be read: {describe(error)}; check the URL, {INSTEAD}") from None
