"""SQL count: the built-in evaluator that counts in a SQLite file, which it opens read-only."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from headgate.clock import Clock, SystemClock
from headgate.errors import DefinitionError
from headgate.file_roots import FileRoots
from headgate.pipelines.definition.model import Json
from headgate.pipelines.enums import FailureCategory
from headgate.pipelines.field_values import number, shown
from headgate.pipelines.traits.config import number_or_none, text
from headgate.pipelines.traits.probes import allowed_path
from headgate.pipelines.traits.protocol import Answer, Question, failure, not_met, passed, timed_out

_SQLITE: Final = ("sqlite:///", "sqlite:")
# SQLite VM steps between two checks of the time limit: some milliseconds.
_STEPS: Final = 100_000
_BUSY_SECONDS: Final = 2.0
_READING: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR})
_REAL_TIME: Final = SystemClock()


def sql_count(question: Question, files: FileRoots | None = None, clock: Clock = _REAL_TIME) -> Answer:
    """Whether the one number that `query` selects from a SQLite `database` is from `min` to `max`.

    Without either it has to be at least 1. `:date`, `:schedule` and `:pipeline` can be used in the query, beside the
    `parameters` of the config.
    """
    low, high = number_or_none(question.config, "min"), number_or_none(question.config, "max")
    if low is None and high is None:
        low = 1
    query, parameters = text(question.config, "query"), _parameters(question)
    path = allowed_path(_database(text(question.config, "database")), files)
    ends_at = clock.monotonic() + question.timeout_seconds
    try:
        with closing(_opened(path, min(_BUSY_SECONDS, question.timeout_seconds))) as connection:
            # Checked again after opening: a link may have replaced it.
            allowed_path(str(path), files)
            connection.set_progress_handler(lambda: int(clock.monotonic() >= ends_at), _STEPS)
            row = connection.execute(query, parameters).fetchone()
    except (sqlite3.Error, sqlite3.Warning) as exc:
        return _refused(exc, path, question)
    read = None if row is None or len(row) != 1 else number(row[0])
    if read is None:
        return failure(
            FailureCategory.PERMANENT, f"the query selects {shown(row)}, and not one number; count something"
        )
    value = {"count": read}
    if low is not None and read < low:
        return not_met(f"the query counts {read:g}, less than {low:g}", value)
    if high is not None and read > high:
        return not_met(f"the query counts {read:g}, more than {high:g}", value)
    return passed(f"the query counts {read:g}", value)


def _opened(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """Open a database read-only, whatever the query says."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=busy_seconds)
    connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY)
    return connection


def _refused(exc: Exception, path: Path, question: Question) -> Answer:
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_INTERRUPT:
        return timed_out(question.timeout_seconds)
    category = FailureCategory.TRANSIENT if code in _BUSY else FailureCategory.PERMANENT
    return failure(category, f"database {path}: {exc}")


def _parameters(question: Question) -> dict[str, Json]:
    given = question.config.get("parameters", {})
    if not isinstance(given, Mapping) or any(isinstance(value, dict | list) for value in given.values()):
        raise DefinitionError(f"config: parameters is {shown(given)}; give an object of names and plain values")
    ours = {"date": question.date, "schedule": question.schedule_id, "pipeline": question.pipeline_id}
    return {**ours, **given}


def _database(given: str) -> str:
    for prefix in _SQLITE:
        if given.startswith(prefix):
            return given.removeprefix(prefix)
    scheme, colon, _ = given.partition("://")
    if colon:
        raise DefinitionError(f"config: database is of {scheme}; the path of a SQLite file is supported")
    return given
