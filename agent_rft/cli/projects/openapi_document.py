"""Reader of untrusted YAML or JSON documents. It limits size and depth, and provides line numbers for messages."""

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

from agent_rft.actors.endpoints.http_response import format_status
from agent_rft.actors.endpoints.network.address_guard import AddressGuard, ForbiddenAddress
from agent_rft.actors.endpoints.network.endpoint_url_checks import find_endpoint_problem, redact_url
from agent_rft.actors.endpoints.network.http_transport import describe_transport_error
from agent_rft.errors import Problem, UserError
from agent_rft.rows.bounded_file import decode_utf8, read_bounded
from agent_rft.spec.config_reader import KeyPath, LineNumbers, format_key_path
from agent_rft.spec.operator.allowed_networks import parse_allowed
from agent_rft.spec.schemas.schema_limits import shorten

MAX_BYTES = 8 << 20
"""Maximum size of a document. Parsing takes several times as much memory."""
MAX_DEPTH = 200
MAX_FIELD_CHARS = 300
_OPENING = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_CLOSING = (yaml.MappingEndEvent, yaml.SequenceEndEvent)
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class _Loader(yaml.CSafeLoader):
    """YAML loader that reads keys and dates as strings, as in JSON.

    By default, PyYAML reads the key `on` as a boolean, and the keys `1` and `200` as numbers. PyYAML also reads dates
    as date objects, which rows cannot contain.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        self.flatten_mapping(node)  # type: ignore[no-untyped-call]  # applies merge keys (<<)
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


yaml.add_constructor("tag:yaml.org,2002:timestamp", yaml.SafeLoader.construct_yaml_str, _Loader)


class SourceDocument:
    """Parsed YAML or JSON document; `where` is the document's path, or its URL without secrets, for messages."""

    def __init__(self, text: str, where: str) -> None:
        """Parse the text.

        Raises:
            UserError: The text is neither JSON nor YAML, is nested too deeply, or has aliases or lone surrogates.
        """
        self.where = where
        self._text = text
        self.raw: Any = self._parse()

    def make_problem(self, code: str, path: KeyPath, message: str, fix: str) -> Problem:
        """Return a problem about the part of the document at `path`, with the number of its line."""
        field = shorten(format_key_path(path), MAX_FIELD_CHARS) or "the document"
        return Problem(code, field, message, fix, self.where, self._lines.find_line(path))

    def _parse(self) -> Any:
        try:
            if self._text.lstrip()[:1] in ("{", "["):
                raw = json.loads(self._text)
                if "\\u" in self._text and (at := _find_surrogate(raw)) is not None:
                    field = shorten(format_key_path(at), MAX_FIELD_CHARS) or "the document"
                    raise UserError(
                        f"{self.where}: {field} contains a lone surrogate, such as \\ud800: write complete characters"
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
        """Reject aliases and deep nesting, which could crash the recursive parser written in C."""
        depth = 0
        for event in yaml.parse(self._text, yaml.CSafeLoader):
            line = event.start_mark.line + 1 if event.start_mark is not None else 1
            if isinstance(event, yaml.AliasEvent):
                raise UserError(
                    f"{self.where}:{line} has an unsupported YAML alias (*{event.anchor}): write the value itself, or "
                    "a $ref"
                )
            depth += isinstance(event, _OPENING) - isinstance(event, _CLOSING)
            if depth > MAX_DEPTH:
                raise UserError(f"{self.where}:{line} is nested more than {MAX_DEPTH} levels deep")

    @cached_property
    def _lines(self) -> LineNumbers:
        """Line numbers of the document's keys, for error messages."""
        try:
            self._check_events()
            return LineNumbers(yaml.compose(self._text, yaml.CSafeLoader))
        except (yaml.YAMLError, UserError):  # JSON is not always YAML: it may have tabs
            return LineNumbers(None)


def _find_surrogate(value: Any) -> KeyPath | None:
    """Return the path of a lone surrogate in a JSON value; None if there is no lone surrogate.

    UTF-8 cannot encode lone surrogates. Documents in YAML cannot contain them.
    """
    if isinstance(value, str):
        return () if _SURROGATE.search(value) else None
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        if isinstance(key, str) and _SURROGATE.search(key):
            return ()
        if (found := _find_surrogate(part)) is not None:
            return key, *found
    return None


def read_document(source: str) -> SourceDocument:
    """Read and parse the document at a URL or path.

    Raises:
        UserError: The document cannot be read or parsed.
    """
    if source.startswith(("http://", "https://")):
        body, where = fetch_document(source, MAX_BYTES), redact_url(source)
    else:
        body, where = read_bounded(Path(source), MAX_BYTES, "remove the parts that are not needed"), source
    return SourceDocument(decode_utf8(body, where, "save the document as UTF-8"), where)


TIMEOUT_S = 30.0
OWN_NETWORKS = ("127.0.0.0/8", "::1", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
"""Loopback and private networks from which documents may be read. They are allowed because the user chose the URL."""
SAVE_HINT = "or save the file yourself and give its path"


def fetch_document(url: str, max_bytes: int) -> bytes:
    """Download the document at a URL and return its content. Redirects are not followed.

    Raises:
        UserError: The URL cannot be read, or the document is too large.
    """
    if (url_problem := find_endpoint_problem(url, {})) is not None:
        raise UserError(f"--from: {url_problem}")
    return asyncio.run(_fetch(url, max_bytes))


async def _fetch(url: str, max_bytes: int) -> bytes:
    shown = redact_url(url)
    guard = AddressGuard([parse_allowed(network) for network in OWN_NETWORKS])
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(connector=guard.make_connector(URL(url)), timeout=timeout) as session,
            session.get(url, allow_redirects=False, headers={"Accept": "application/json, */*"}) as answer,
        ):
            if answer.status != 200:
                where = "; give the URL of the redirect" if 300 <= answer.status < 400 else "; check the URL"
                raise UserError(f"{shown} answered {format_status(answer.status)}{where}, {SAVE_HINT}")
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > max_bytes:
                    raise UserError(f"{shown} is larger than the limit of {max_bytes:,} bytes")
            return bytes(body)
    except TimeoutError:
        raise UserError(f"{shown} did not answer within {TIMEOUT_S:g} s; try again, {SAVE_HINT}") from None
    except (aiohttp.ClientError, OSError) as error:
        why = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else None
        if isinstance(why, ForbiddenAddress):
            where = f"its host resolves to {why.address}, {why.why}"
            raise UserError(f"{shown} was not read, because {where}; {SAVE_HINT[3:]}") from None
        raise UserError(
            f"{shown} cannot be read: {describe_transport_error(error)}; check the URL, {SAVE_HINT}"
        ) from None
