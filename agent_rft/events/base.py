"""The base class of events. A kind of event is one class, which declares all that is specific to the kind.

- `level` is an argument of the class: `class DiskFull(Event, level="error")`.
- `__str__` returns the sentence that the live view, the API and events.jsonl show.
- `Private[str]` is the type of a field that only the operator sees: a server's clients get neither the field nor its
  text in the sentence.
- The docstring of the class and the strings below its fields are the reference.

Each class becomes a frozen dataclass with keyword arguments; it needs no decorator.
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
"""Type of a field that a server's clients do not see. Their sentence is made from an event in which it is empty."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True, kw_only=True)
class Event(ABC):
    """Base class of all events."""

    VERSION: ClassVar[int] = 1
    LEVEL: ClassVar[Level]
    PRIVATE: ClassVar[frozenset[str]]

    step: int | None = None
    """The step of the event; None: the last step that is done, which the stream fills in."""

    def __init_subclass__(cls, level: Level = "info") -> None:
        super().__init_subclass__()
        hints = get_type_hints(cls, include_extras=True)
        cls.LEVEL = level
        cls.PRIVATE = frozenset(name for name, hint in hints.items() if PRIVATE in getattr(hint, "__metadata__", ()))
        dataclass(frozen=True, kw_only=True)(cls)

    @abstractmethod
    def __str__(self) -> str:
        """Return the event in English, without its time and level."""

    @property
    def kind(self) -> str:
        return kind_of(type(self))

    @property
    def level(self) -> Level:
        return self.LEVEL

    @property
    def passing(self) -> bool:
        """Whether the event is only for views that show the present: it is not stored in the run folder."""
        return False

    @property
    def quiet(self) -> bool:
        """Whether the event is stored but not shown individually, since there may be thousands."""
        return False


def kind_of(cls: type[Event]) -> str:
    """The kind of an event type: `StepDone` -> `step_done`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


def append_reason(message: str, reason: str) -> str:
    """Return `message: reason`; only `message` if the reason is empty, because it is private."""
    return f"{message}: {reason}" if reason else message
