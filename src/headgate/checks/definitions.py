"""Check definitions: loads the folder `checks` of a project, and reports all problems by file and line.

Checks are defined in the project folder only, as probes are: they read files and databases with the server's rights.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from headgate.checks.model import KINDS, AnomalyCheck, AnomalyOf, Check, CheckFile, VolumeCheck
from headgate.checks.queries import COLUMN, TABLE, query_of
from headgate.errors import UserError
from headgate.health.model.urns import dataset_urn
from headgate.pipelines.definition.definition_files import definition_files, definition_text
from headgate.pipelines.definition.model import Exclusions, Inclusions
from headgate.pipelines.definition.problems import Problem, errors_of, one_of, shown
from headgate.pipelines.definition.source_map import Node, Unreadable, documents
from headgate.pipelines.definition.typed_decoder import DecodeReport, read_struct
from headgate.pipelines.definition.typed_decoder import Path as FieldPath
from headgate.pipelines.probes import sql
from headgate.pipelines.rules.operators import CHECKS, compile_operator
from headgate.pipelines.schedule.calendars import check_calendar

FOLDER: Final = "checks"
ID: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}[a-z0-9]")
EVERY_SECONDS_MIN: Final = 1
EVERY_SECONDS_MAX: Final = 7 * 86_400
TIMEOUT_SECONDS_MAX: Final = 300
CHECKS_MAX: Final = 200
# Ids of checks that follow from the config of a dataset begin with this.
CONFIG_PREFIX: Final = "config."
_PASSWORD: Final = re.compile(r"\$\{(env|file):[^{}]+\}")
_SOURCES: Final = ("sql", "files", "delta", "iceberg")
# The kinds of source that a kind of check can read; without an entry it needs none.
_READS: Final = {
    "freshness": ("sql", "files", "delta", "iceberg"),
    "volume": ("sql", "files", "delta", "iceberg"),
    "schema": ("sql", "delta", "iceberg"),
    "null_share": ("sql",),
    "unique": ("sql",),
    "sql": ("sql",),
}


class LoadedChecks(Struct, frozen=True, kw_only=True):
    """The valid check files by dataset, with their positions, and the problems of the others."""

    files: tuple[LoadedFile, ...] = ()
    problems: tuple[Problem, ...] = ()


class LoadedFile(Struct, frozen=True, kw_only=True):
    """A check file with its source position."""

    file: CheckFile
    source: str
    line: int


def load_checks(folder: Path) -> LoadedChecks:
    """Return the check files below a folder. A missing folder has none."""
    found: list[LoadedFile] = []
    problems: list[Problem] = []
    for path, source in definition_files(folder, FOLDER):
        loaded = load_check_file(path, source)
        found += loaded.files
        problems += loaded.problems
    return _once(found, problems)


def load_check_file(path: Path, source: str) -> LoadedChecks:
    """Return the checks of a file."""
    text = definition_text(path, source)
    return LoadedChecks(problems=(text,)) if isinstance(text, Problem) else load_check_text(text, source)


def load_check_text(text: str, source: str) -> LoadedChecks:
    """Return the checks of a YAML or JSON text of one or more documents, one for each dataset."""
    try:
        nodes = documents(text, source)
    except Unreadable as exc:
        return LoadedChecks(problems=(exc.problem,))
    found: list[LoadedFile] = []
    problems: list[Problem] = []
    for node in nodes:
        file, bad = _load(node, source)
        problems += sorted(bad, key=lambda problem: (problem.line, problem.column))
        if file is not None:
            found.append(LoadedFile(file=file, source=source, line=node.line))
    return _once(found, problems)


def _once(found: list[LoadedFile], problems: list[Problem]) -> LoadedChecks:
    first: dict[str, LoadedFile] = {}
    twice: set[str] = set()
    for each in found:
        other = first.setdefault(each.file.dataset, each)
        if other is not each:
            twice.add(each.file.dataset)
            problems.append(
                Problem(
                    source=each.source,
                    line=each.line,
                    column=1,
                    field="dataset",
                    fact=f"{each.file.dataset!r} has checks at {other.source}:{other.line} too",
                    allowed="put the checks of a dataset into one document",
                )
            )
    return LoadedChecks(files=tuple(each for each in found if each.file.dataset not in twice), problems=tuple(problems))


def _load(node: Node, source: str) -> tuple[CheckFile | None, list[Problem]]:
    reading = DecodeReport(source, node)
    file = read_struct(node, CheckFile, reading)
    if isinstance(node.value, dict):
        _Validation(file, reading).validate()
    return (None if errors_of(reading.problems) else file), reading.problems


class _Validation:
    """Validates one check file."""

    def __init__(self, file: CheckFile, reading: DecodeReport) -> None:
        self._file = file
        self._report = reading.report
        self._is_bad = reading.is_bad

    def validate(self) -> None:
        file = self._file
        self._attempt(("dataset",), lambda: dataset_urn(file.dataset))
        if file.every is not None and not EVERY_SECONDS_MIN <= file.every <= EVERY_SECONDS_MAX:
            self._report(("every",), f"{file.every:g} s is out of bounds", allowed="use 1s to 7d")
        if not 0 < file.timeout <= TIMEOUT_SECONDS_MAX:
            self._report(("timeout",), f"{file.timeout:g} s is out of bounds", allowed="use more than 0 and up to 5m")
        if file.every is None and not file.after_runs:
            self._report(("every",), "the checks never run", allowed="give every, or after_runs: true")
        if not file.checks and not file.from_config:
            self._report(("checks",), "there is no check", allowed="give at least one")
        if len(file.checks) > CHECKS_MAX:
            self._report(("checks",), f"{len(file.checks)} checks", allowed=f"give at most {CHECKS_MAX}")
        self._validate_source()
        seen: set[str] = set()
        for index, check in enumerate(file.checks):
            if check.id in seen:
                self._report(("checks", index, "id"), f"{shown(check.id)} is given twice", allowed="give each its own")
            seen.add(check.id)
            self._validate_check(check, ("checks", index))

    def _validate_source(self) -> None:
        source = self._file.source
        if source is None:
            return
        kinds = [name for name in _SOURCES if getattr(source, name) is not None]
        if len(kinds) != 1:
            fact = f"it has {' and '.join(kinds)}" if kinds else "it has none of its kinds"
            self._report(("source",), fact, allowed=f"give exactly one of {', '.join(_SOURCES)}")
        given = source.sql
        if given is None:
            return
        self._attempt(("source", "sql", "url"), lambda: sql.check_url(given.url))
        if given.password is not None and not _PASSWORD.fullmatch(given.password):
            allowed = "refer to it: ${env:HG_SECRET_NAME} or ${file:NAME}"
            self._report(("source", "sql", "password"), "it is no reference to a secret", allowed=allowed)
        if given.table is not None and not TABLE.fullmatch(given.table):
            allowed = "give table, schema.table or catalog.schema.table of letters, digits, '_' and '$'"
            self._report(("source", "sql", "table"), f"{shown(given.table)} is no name of a table", allowed=allowed)

    def _validate_check(self, check: Check, path: FieldPath) -> None:
        if not ID.fullmatch(check.id) or check.id.startswith(CONFIG_PREFIX):
            allowed = (
                "use 2 to 64 lower-case letters, digits, '.', '_' and '-', with a letter or digit at both ends; "
                f"{CONFIG_PREFIX} begins the ids of checks that follow from the config"
            )
            self._report((*path, "id"), f"{shown(check.id)} cannot be an id", allowed=allowed)
        kinds = [name for name in KINDS if getattr(check, name) is not None]
        if len(kinds) != 1:
            fact = f"it has {' and '.join(kinds)}" if kinds else "it has none of its kinds"
            self._report(path, fact, allowed=f"give exactly one of {', '.join(KINDS)}")
            return
        self._validate_reads(check, kinds[0], path)
        self._validate_kind(check, path)

    def _validate_reads(self, check: Check, kind: str, path: FieldPath) -> None:
        """Validate that the source has what the check reads."""
        if kind not in _READS:
            return
        source = self._file.source
        has = None if source is None else next((name for name in _SOURCES if getattr(source, name) is not None), None)
        if has is None:
            self._report((*path, kind), "there is no source to read", allowed="give source")
        elif has not in _READS[kind]:
            self._report((*path, kind), f"it cannot read {has}", allowed=f"use a source of {one_of(_READS[kind])}")
        elif source is not None and source.sql is not None and kind != "sql":
            table_path: FieldPath = ("source", "sql")
            if source.sql.table is None:
                self._report(table_path, f"check {check.id} needs a table", allowed="give table")
            elif kind == "freshness" and check.freshness is not None and check.freshness.column is None:
                self._report((*path, kind), "a table needs a time column", allowed="give column")
            elif not list(self._columns(check, path)) and TABLE.fullmatch(source.sql.table):
                query = query_of(check, source.sql.table, (0, 1))
                if query is not None:
                    self._attempt((*path, "where"), lambda: sql.check_query(query))

    def _columns(self, check: Check, path: FieldPath) -> Iterator[str]:
        """Report the invalid names of columns, and yield them."""
        named: list[tuple[FieldPath, str | None]] = []
        if check.unique is not None:
            named = [((*path, "unique", "columns", index), name) for index, name in enumerate(check.unique.columns)]
        for kind in ("freshness", "volume", "null_share"):
            part = getattr(check, kind)
            if part is not None:
                named.append(((*path, kind, "column"), part.column))
        for place, name in named:
            if name is not None and not COLUMN.fullmatch(name):
                allowed = "use letters, digits, '_' and '$'"
                self._report(place, f"{shown(name)} is no name of a column", allowed=allowed)
                yield name

    def _validate_kind(self, check: Check, path: FieldPath) -> None:
        if check.where is not None and (check.volume or check.null_share or check.unique) is None:
            self._report((*path, "where"), f"a check of kind {check.kind} has no condition", allowed="leave it out")
        fresh = check.freshness
        is_read = not self._is_bad((*path, "freshness"))
        if fresh is not None and is_read and fresh.warn_age is not None and fresh.warn_age >= fresh.max_age:
            self._report((*path, "freshness", "warn_age"), "it is not less than max_age", allowed="give a shorter age")
        if check.schema is not None and not check.schema.columns:
            self._report((*path, "schema", "columns"), "it names no column", allowed="give at least one")
        if check.null_share is not None and not 0 <= check.null_share.max <= 1:
            self._report((*path, "null_share", "max"), "it is no share", allowed="give 0 to 1")
        if check.unique is not None and not check.unique.columns:
            self._report((*path, "unique", "columns"), "it names no column", allowed="give at least one")
        if check.volume is not None:
            self._validate_volume(check.volume, (*path, "volume"))
        if check.anomaly is not None:
            self._validate_anomaly(check.anomaly, (*path, "anomaly"))
        if check.sql is not None:
            self._validate_sql(check.sql.query, check.sql.check, check.sql.value, (*path, "sql"))

    def _validate_volume(self, volume: VolumeCheck, path: FieldPath) -> None:
        if volume.min is not None and volume.max is not None and volume.min > volume.max:
            self._report((*path, "min"), "it is more than max", allowed="give at most max")
        if volume.column is None and volume.min is None and volume.max is None:
            allowed = "give min or max, or a time column, by which the rows of an hour are counted"
            self._report(path, "it judges nothing", allowed=allowed)
        self._validate_holidays(volume.holidays, (*path, "holidays"))

    def _validate_anomaly(self, anomaly: AnomalyCheck, path: FieldPath) -> None:
        if anomaly.deviations <= 0:
            self._report((*path, "deviations"), "it is not more than 0", allowed="give a number such as 4")
        if (anomaly.of is AnomalyOf.DURATION) != (anomaly.pipeline is not None):
            lacks = anomaly.pipeline is None
            fact = "the pipeline whose runs are judged is missing" if lacks else "it is for durations"
            self._report((*path, "pipeline"), fact, allowed="give of: duration with pipeline: ID")
        self._validate_holidays(anomaly.holidays, (*path, "holidays"))

    def _validate_holidays(self, holidays: str | None, path: FieldPath) -> None:
        if holidays is not None:
            self._attempt(path, lambda: check_calendar(Exclusions(holidays=holidays), Inclusions()))

    def _validate_sql(self, query: str, check: str, value: object, path: FieldPath) -> None:
        self._attempt((*path, "query"), lambda: sql.check_query(query))
        binds = sorted(sql.binds_of(query) & set(sql.BINDS))
        if binds:
            self._report((*path, "query"), f"it uses :{binds[0]}, and a check has no period", allowed="leave it out")
        if check not in CHECKS:
            self._report((*path, "check"), f"{shown(check)} is not known", allowed=one_of(CHECKS))
        elif check != "exists":
            self._attempt((*path, "value"), lambda: compile_operator(check, value, future_max_seconds=300.0))

    def _attempt(self, path: FieldPath, check: Callable[[], object]) -> None:
        try:
            check()
        except UserError as exc:
            fact = exc.message
            for name in ("url ", "query ", "value "):
                fact = fact.removeprefix(name)
            self._report(path, fact)
