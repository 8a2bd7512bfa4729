"""Tests that producers report, as results: each has an id that is the same in every report of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.health.ingest.error_text import error_text
from headgate.health.ingest.facets import Assertion, Test
from headgate.health.model.enums import SignalState
from headgate.health.results.model import WORST

WHOLE_DATASET: Final = "dataset"
VALUE_LENGTH_MAX: Final = 200
_CODE_LENGTH: Final = 100
_FIELD_LENGTH: Final = 150
_NOT_CODE: Final = re.compile(r"[^A-Z0-9_]+")
_NOT_FIELD: Final = re.compile(r"[\s#\x00-\x1f\x7f]+")


class Check(Struct, frozen=True):
    """A test: its code and column in the form of a failure signature, its result, and what it found."""

    code: str
    field: str
    state: SignalState
    message: str = ""
    failures: int | None = None
    # Tells apart tests of one code and column. Empty if there is one.
    mark: str = ""

    @property
    def signature(self) -> str:
        return f"{self.code}:{self.field}"

    @property
    def test_id(self) -> str:
        return f"{self.signature}~{self.mark}" if self.mark else self.signature


def check(code: str, field: str | None, state: SignalState, message: str = "", failures: int | None = None) -> Check:
    """Return a test with its name in the form of a failure signature."""
    word = _NOT_CODE.sub("_", code.strip().upper()).strip("_")[:_CODE_LENGTH]
    place = _NOT_FIELD.sub("_", (field or "").strip())[:_FIELD_LENGTH]
    return Check(word or "CHECK", place or WHOLE_DATASET, state, error_text(message), failures)


def of_assertion(given: Assertion, dbt_table: str | None = None) -> Check:
    """Return the test of an assertion. `dbt_table` is the table if dbt made the assertion."""
    state = SignalState.OK if given.success else _failed(given.severity)
    code, column = given.assertion, given.column
    if dbt_table is not None and column is None:
        code, column = _dbt_name(given.assertion, dbt_table)
    return check(code, column, state, _found(given.expected, given.actual, state))


def _dbt_name(name: str, table: str) -> tuple[str, str | None]:
    """Return the code and column of a dbt test that is named after its kind, table and column."""
    for kind in ("not_null", "unique"):
        prefix = f"{kind}_{table}_"
        if name.startswith(prefix) and len(name) > len(prefix):
            return kind, name.removeprefix(prefix)
    return name, None


def of_test(given: Test) -> Check:
    """Return the check of a run's test. An unknown status does not count against the dataset."""
    status = given.status.strip().lower()
    state = {"pass": SignalState.OK, "fail": _failed(given.severity)}.get(status, SignalState.UNKNOWN)
    column = (given.params or {}).get("column")
    words = " ".join(part for part in (given.description, _found(given.expected, given.actual, state)) if part)
    return check(given.type or given.name, column if isinstance(column, str) else None, state, words)


def distinct(lists: Iterable[list[Check]]) -> Iterator[Check]:
    """Yield each test once, of the lists in which a report repeats them.

    Tests of one code and column within one list are different tests, and are numbered. If two lists differ about a
    test, the worse result counts.
    """
    found: dict[str, Check] = {}
    for each in lists:
        count: Counter[str] = Counter()
        for given in each:
            count[given.signature] += 1
            number = count[given.signature]
            marked = given if number == 1 else replace(given, mark=str(number))
            known = found.get(marked.test_id)
            if known is None or WORST.index(marked.state) < WORST.index(known.state):
                found[marked.test_id] = marked
    yield from found.values()


def _found(expected: Any, actual: Any, state: SignalState) -> str:  # noqa: ANN401 - any JSON value
    """Return what a failed test expected and found, or an empty text."""
    if not state.is_breach or (expected is None and actual is None):
        return ""
    return f"expected {str(expected)[:VALUE_LENGTH_MAX]}, actual {str(actual)[:VALUE_LENGTH_MAX]}"


def _failed(severity: str | None) -> SignalState:
    return SignalState.WARNING if (severity or "").strip().lower() in ("warn", "warning") else SignalState.CRITICAL
