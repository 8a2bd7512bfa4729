"""Problems of a definition: code, location in the JSON, fact, allowed form and severity."""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Collection, Iterable
from typing import Final

from msgspec import Struct

from headgate.asl.compile.severities import Severity, Target
from headgate.asl.tasks.local_tasks import LocalTasks

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class ProblemCode(enum.StrEnum):
    """The kind of a problem. Stable: callers match on it."""

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
    ONLY_ON_AWS = "ONLY_ON_AWS"
    MISPLACED_CATCH_ALL = "MISPLACED_CATCH_ALL"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"
    UNRESOLVED_SUBSTITUTION = "UNRESOLVED_SUBSTITUTION"


class Problem(Struct, frozen=True):
    """One finding about a definition: a problem, unless its severity is lower."""

    path: str
    code: ProblemCode
    fact: str
    allowed: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        return f"{self.path}: {self.code}: {self.fact}; {self.allowed}"


class SourceLocation(Struct, frozen=True):
    """A location in a definition that collects problems. All locations of one validation share one list."""

    path: str
    problems: list[Problem]
    target: Target = Target.LOCAL
    # What Tasks can use here; None: not known, and nothing is refused for it.
    tasks: LocalTasks | None = None

    def at(self, *steps: str | int) -> SourceLocation:
        """Return an inner location: members by name, entries by index."""
        return SourceLocation(json_path(self.path, steps), self.problems, self.target, self.tasks)

    def report(self, code: ProblemCode, fact: str, allowed: str) -> None:
        """Report what is accepted nowhere."""
        self.problems.append(Problem(self.path, code, fact, allowed))

    def warn(self, code: ProblemCode, fact: str, allowed: str) -> None:
        """Report what is accepted, and probably a mistake."""
        self.problems.append(Problem(self.path, code, fact, allowed, Severity.WARNING))

    def report_only_aws(self, code: ProblemCode, fact: str, allowed: str) -> None:
        """Report what AWS alone can run: an error here, and a note in a definition for AWS."""
        severity = Severity.NOTE if self.target is Target.AWS else Severity.ERROR
        self.problems.append(Problem(self.path, code, fact, allowed, severity))


def json_path(start: str, steps: Iterable[str | int]) -> str:
    """Return the JSONPath of `steps` below `start`; a name that needs it is quoted in brackets."""
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
    """Return the known name closest to a mistyped one, or None."""
    folded = {candidate.casefold(): candidate for candidate in known}
    found = difflib.get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.7)
    return folded[found[0]] if found else None


def listed(names: Iterable[str], last: str = "or") -> str:
    """Return names as prose: `a, b or c`."""
    parts = list(names)
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} {last} {parts[-1]}"
