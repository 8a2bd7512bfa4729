"""Findings: what is wrong with a definition, where in its JSON, and what would be right."""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Collection, Iterable
from typing import Final

from msgspec import Struct

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class Code(enum.StrEnum):
    """The kinds of problems. Stable: callers match on them."""

    DEFINITION_TOO_LARGE = "DEFINITION_TOO_LARGE"
    DEFINITION_TOO_DEEP = "DEFINITION_TOO_DEEP"
    WRONG_TYPE = "WRONG_TYPE"
    OUT_OF_RANGE = "OUT_OF_RANGE"
    UNKNOWN_VALUE = "UNKNOWN_VALUE"
    UNKNOWN_FIELD = "UNKNOWN_FIELD"
    FIELD_NOT_IN_STATE = "FIELD_NOT_IN_STATE"
    FIELD_NOT_IN_LANGUAGE = "FIELD_NOT_IN_LANGUAGE"
    FIELD_NOT_IN_INLINE_MAP = "FIELD_NOT_IN_INLINE_MAP"
    NOT_IN_EXPRESS = "NOT_IN_EXPRESS"
    MISSING_FIELD = "MISSING_FIELD"
    CONFLICTING_FIELDS = "CONFLICTING_FIELDS"
    EMPTY = "EMPTY"
    BAD_NAME = "BAD_NAME"
    DUPLICATE_STATE = "DUPLICATE_STATE"
    UNKNOWN_STATE = "UNKNOWN_STATE"
    UNREACHABLE_STATE = "UNREACHABLE_STATE"
    NO_END = "NO_END"
    IDLE_LOOP = "IDLE_LOOP"
    UNBOUNDED_LOOP = "UNBOUNDED_LOOP"
    BUDGET_EXCEEDED = "BUDGET_EXCEEDED"
    BAD_PATH = "BAD_PATH"
    BAD_REFERENCE_PATH = "BAD_REFERENCE_PATH"
    BAD_TEMPLATE = "BAD_TEMPLATE"
    BAD_JSONATA = "BAD_JSONATA"
    BAD_RULE = "BAD_RULE"
    BAD_TIMESTAMP = "BAD_TIMESTAMP"
    BAD_VARIABLE = "BAD_VARIABLE"
    BAD_LABEL = "BAD_LABEL"
    BAD_RESOURCE = "BAD_RESOURCE"
    MISPLACED_CATCH_ALL = "MISPLACED_CATCH_ALL"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"
    UNRESOLVED_SUBSTITUTION = "UNRESOLVED_SUBSTITUTION"


class Problem(Struct, frozen=True):
    """One thing that is wrong: where, what kind, the fact, and what is allowed."""

    path: str
    code: Code
    fact: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.path}: {self.code}: {self.fact}; {self.allowed}"


class Spot(Struct, frozen=True):
    """A place in a definition at which problems can be reported. All spots of one check share one list."""

    path: str
    found: list[Problem]

    def at(self, *steps: str | int) -> Spot:
        """Return the spot further in: members by name, entries by number."""
        return Spot(json_path(self.path, steps), self.found)

    def report(self, code: Code, fact: str, allowed: str) -> None:
        self.found.append(Problem(self.path, code, fact, allowed))


def json_path(start: str, steps: Iterable[str | int]) -> str:
    """Return the JSON path that leads from `start` on, with names in brackets where a dot would not do."""
    parts = [start]
    for step in steps:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif _PLAIN_NAME.fullmatch(step):
            parts.append(f".{step}")
        else:
            escaped = step.replace("\\", "\\\\").replace("'", "\\'")
            parts.append(f"['{escaped}']")
    return "".join(parts)


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that was probably meant, if any is near."""
    folded = {candidate.casefold(): candidate for candidate in known}
    found = difflib.get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.7)
    return folded[found[0]] if found else None


def listed(names: Iterable[str], last: str = "or") -> str:
    """Return names as a person lists them: `a, b or c`."""
    parts = list(names)
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} {last} {parts[-1]}"
