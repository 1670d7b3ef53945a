"""Base class of events. Each kind of event is one class, which declares everything that is specific to the kind.

- `level` is a class argument: `class DiskFull(Event, level="error")`.
- `__str__` returns the sentence that the live view, the API and events.jsonl show.
- `Private[str]` is the type of a field that only the operator sees. A server's clients do not get the field, and the
  sentence that they get does not contain the field's value.
- The page on events in docs/reference is generated from the class docstrings and the strings below the fields.

Subclasses automatically become frozen, keyword-only dataclasses, without a decorator.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeVar, dataclass_transform, get_type_hints

Level = Literal["info", "warn", "error"]
T = TypeVar("T")
PRIVATE = "private"
Private = Annotated[T, PRIVATE]
"""Type of a field that is hidden from a server's clients."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True, kw_only=True)
class Event(ABC):
    """Base class of all events."""

    VERSION: ClassVar[int] = 1
    LEVEL: ClassVar[Level]
    PRIVATE: ClassVar[frozenset[str]]

    step: int | None = None
    """Training step of the event. If it is None, the event stream fills in the last completed step."""

    def __init_subclass__(cls, level: Level = "info") -> None:
        super().__init_subclass__()
        hints = get_type_hints(cls, include_extras=True)
        cls.LEVEL = level
        cls.PRIVATE = frozenset(name for name, hint in hints.items() if PRIVATE in getattr(hint, "__metadata__", ()))
        dataclass(frozen=True, kw_only=True)(cls)

    @abstractmethod
    def __str__(self) -> str:
        """Return the event as an English sentence, without its time and level."""

    @property
    def kind(self) -> str:
        return event_kind(type(self))

    @property
    def level(self) -> Level:
        return self.LEVEL

    @property
    def is_transient(self) -> bool:
        """Whether the event is only for live views and is not stored in the run folder."""
        return False

    @property
    def is_quiet(self) -> bool:
        """Whether the event is not shown individually, because a run may emit thousands of such events."""
        return False


def event_kind(cls: type[Event]) -> str:
    """Return the kind of an event class: `StepDone` -> `step_done`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


def append_reason(message: str, reason: str) -> str:
    """Return `message: reason`, or only `message` if `reason` is empty.

    Events for a server's clients have an empty reason, because the reason is a private field.
    """
    return f"{message}: {reason}" if reason else message
