"""Definition problems: source position, fact, allowed values, and the nearest known name."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from msgspec import Struct

from headgate.errors import DefinitionError

_LISTED_MAX: Final = 40
_SHOWN_CHARS_MAX: Final = 60


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One error or warning. `line` and `column` count from 1; 0 is unknown."""

    source: str
    fact: str
    field: str = ""
    allowed: str = ""
    suggestion: str = ""
    line: int = 0
    column: int = 0
    is_warning: bool = False

    def text(self) -> str:
        """Return it as one line, in the form that editors and terminals link."""
        place = ":".join([self.source, *(str(part) for part in (self.line, self.column) if part)])
        field = f"{self.field}: " if self.field else ""
        hint = f"; did you mean {self.suggestion}?" if self.suggestion else ""
        allowed = f"; {self.allowed}" if self.allowed else ""
        if hint and allowed:
            allowed = f" {self.allowed[0].upper()}{self.allowed[1:]}"
        return f"{place}: {'warning: ' if self.is_warning else ''}{field}{self.fact}{hint}{allowed}"


class InvalidPipelineError(DefinitionError):
    """A definition is invalid. `problems` has all problems with their positions."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        more = [f"and {len(problems) - _LISTED_MAX} more"] if len(problems) > _LISTED_MAX else []
        super().__init__("\n".join([*(problem.text() for problem in problems[:_LISTED_MAX]), *more]))
        self.problems = tuple(problems)


def errors_of(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems that are not warnings."""
    return [problem for problem in problems if not problem.is_warning]


def nearest(name: str, known: Collection[str]) -> str:
    """Return the most similar known name, or an empty text."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), by_lower, 1, 0.6)
    return by_lower[matches[0]] if matches else ""


def one_of(known: Iterable[str]) -> str:
    """Return the allowed names as a phrase."""
    return f"use one of {', '.join(known)}"


def shown(value: object) -> str:
    """Return a value as quoted in messages."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else text[: _SHOWN_CHARS_MAX - 1] + "…"
