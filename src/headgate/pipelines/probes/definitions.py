"""Probe definitions: loads the folder `probes` of a project, and reports all problems by file and line.

Probes are defined in the project folder only. A definition that came through the API may read a probe by its name and
cannot make one, because a probe reads files and databases with the server's rights.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct

from headgate.errors import DefinitionError, UserError
from headgate.pipelines.definition.definition_files import definition_files, definition_text
from headgate.pipelines.definition.model import Period
from headgate.pipelines.definition.problems import Problem, errors_of, one_of, shown
from headgate.pipelines.definition.source_map import Node, Unreadable, documents
from headgate.pipelines.definition.typed_decoder import DecodeReport, read_struct
from headgate.pipelines.definition.typed_decoder import Path as FieldPath
from headgate.pipelines.probes import http, sql
from headgate.pipelines.probes.model import KINDS, Expectation, Probe
from headgate.pipelines.rules.operators import CHECKS, compile_operator
from headgate.pipelines.schedule.local_time import zone_of
from headgate.triggers import templates
from headgate.triggers.secret_sources import SecretSources

FOLDER: Final = "probes"
ID: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,126}[a-z0-9]")
EVERY_SECONDS_MIN: Final = 1
EVERY_SECONDS_MAX: Final = 86_400
TIMEOUT_SECONDS_MAX: Final = 300
PERIODS_MAX: Final = 31
SECRET_FIELDS: Final = frozenset({"password", "headers"})
_PERIODS: Final = tuple(period for period in Period if period is not Period.CUSTOM)
_EXAMPLES: Final = {
    Period.HOURLY: "2026-03-03T07",
    Period.DAILY: "2026-03-03",
    Period.WEEKLY: "2026-W10",
    Period.MONTHLY: "2026-03",
}
# References are checked for their form; they are resolved when the probe runs.
_SECRETS: Final = SecretSources({}, folder=Path())


class LoadedProbe(Struct, frozen=True, kw_only=True):
    """A probe with its source position."""

    probe: Probe
    source: str
    line: int


class LoadedProbes(Struct, frozen=True, kw_only=True):
    """The valid probes, and the problems of the others."""

    probes: tuple[LoadedProbe, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def ids(self) -> frozenset[str]:
        """The ids of the valid probes."""
        return frozenset(each.probe.id for each in self.probes)


def load_probes(folder: Path) -> LoadedProbes:
    """Return the probes of all YAML and JSON files below a folder. A missing folder has none."""
    found: list[LoadedProbe] = []
    problems: list[Problem] = []
    for path, source in definition_files(folder, FOLDER):
        loaded = load_probe_file(path, source)
        found += loaded.probes
        problems += loaded.problems
    return _once(found, problems)


def load_probe_file(path: Path, source: str) -> LoadedProbes:
    """Return the probes of a file."""
    text = definition_text(path, source)
    return LoadedProbes(problems=(text,)) if isinstance(text, Problem) else load_probe_text(text, source)


def load_probe_text(text: str, source: str) -> LoadedProbes:
    """Return the probes of a YAML or JSON text of one or more documents."""
    try:
        nodes = documents(text, source)
    except Unreadable as exc:
        return LoadedProbes(problems=(exc.problem,))
    found: list[LoadedProbe] = []
    problems: list[Problem] = []
    for node in nodes:
        probe, bad = _load(node, source)
        problems += sorted(bad, key=lambda problem: (problem.line, problem.column))
        if probe is not None:
            found.append(LoadedProbe(probe=probe, source=source, line=node.line))
    return _once(found, problems)


def _once(found: list[LoadedProbe], problems: list[Problem]) -> LoadedProbes:
    first: dict[str, LoadedProbe] = {}
    twice: set[str] = set()
    for each in found:
        other = first.setdefault(each.probe.id, each)
        if other is not each:
            twice.add(each.probe.id)
            fact = f"{each.probe.id!r} is defined at {other.source}:{other.line} too"
            allowed = "give each an id of its own"
            problems.append(
                Problem(source=each.source, line=each.line, column=1, field="id", fact=fact, allowed=allowed)
            )
    kept = tuple(each for each in found if each.probe.id not in twice)
    return LoadedProbes(probes=kept, problems=tuple(problems))


def _load(node: Node, source: str) -> tuple[Probe | None, list[Problem]]:
    reading = DecodeReport(source, node)
    probe = read_struct(node, Probe, reading)
    if isinstance(node.value, dict):
        _Checks(probe, reading).check()
    return (None if errors_of(reading.problems) else probe), reading.problems


class _Checks:
    """Checks one probe."""

    def __init__(self, probe: Probe, reading: DecodeReport) -> None:
        self._probe = probe
        self._report = reading.report

    def check(self) -> None:
        probe = self._probe
        if not ID.fullmatch(probe.id):
            allowed = "use 2 to 128 lower-case letters, digits, '.', '_' and '-', with a letter or digit at both ends"
            self._report(("id",), f"{shown(probe.id)} cannot be an id", allowed=allowed)
        kinds = [name for name in KINDS if getattr(probe, name) is not None]
        if len(kinds) != 1:
            fact = f"it has {' and '.join(kinds)}" if kinds else "it has none of its kinds"
            self._report((), fact, allowed=f"give exactly one of {', '.join(KINDS)}")
        self._check_times()
        self._check_kind()
        for index, expectation in enumerate(probe.expect):
            self._check_expectation(expectation, ("expect", index))

    def _check_times(self) -> None:
        probe = self._probe
        if not EVERY_SECONDS_MIN <= probe.every <= EVERY_SECONDS_MAX:
            self._report(("every",), f"{probe.every:g} s is out of bounds", allowed="use 1s to 1d")
        if not 0 < probe.timeout <= TIMEOUT_SECONDS_MAX:
            self._report(("timeout",), f"{probe.timeout:g} s is out of bounds", allowed="use more than 0 and up to 5m")
        if probe.period is not None and probe.period not in _PERIODS:
            self._report(("period",), f"a probe has no {probe.period} period", allowed=one_of(_PERIODS))
        if not 1 <= probe.periods <= PERIODS_MAX:
            self._report(("periods",), f"{probe.periods} is out of bounds", allowed=f"use 1 to {PERIODS_MAX}")
        try:
            zone_of(probe.timezone)
        except UserError as exc:
            self._report(("timezone",), str(exc))

    def _check_kind(self) -> None:
        probe = self._probe
        if probe.sql is not None:
            url, query = probe.sql.url, probe.sql.query
            self._attempt(("sql", "url"), lambda: sql.check_url(url))
            self._attempt(("sql", "query"), lambda: sql.check_query(query))
            self._check_secret(("sql", "password"), probe.sql.password)
            self._check_template(("sql", "url"), probe.sql.url)
            self._check_binds(probe.sql.query)
        if probe.http is not None:
            self._check_template(("http", "url"), probe.http.url)
            path = probe.http.value
            if path is not None:
                self._attempt(("http", "value"), lambda: http.check_path(path))
            for name, value in probe.http.headers.items():
                self._check_template(("http", "headers", name), value, is_secret=True)
        for kind in ("files", "delta", "iceberg"):
            part = getattr(probe, kind)
            if part is not None:
                self._check_template((kind, "path"), part.path)
        if probe.files is not None and probe.files.marker is not None and "/" in probe.files.marker:
            self._report(("files", "marker"), "it is no name of a file", allowed="give a name such as _SUCCESS")

    def _check_binds(self, query: str) -> None:
        used = sql.binds_of(query) & set(sql.BINDS)
        lacking = used - self._names()
        if lacking:
            name = sorted(lacking)[0]
            fact = f"it uses :{name}, and the probe has no period that has one"
            self._report(("sql", "query"), fact, allowed="give period: daily, or another that has it")

    def _names(self) -> set[str]:
        period = self._probe.period
        return set() if period not in _EXAMPLES else set(templates.date_values(_EXAMPLES[period]))

    def _check_secret(self, path: FieldPath, password: str | None) -> None:
        if password is None:
            return
        if not re.fullmatch(r"\$\{(env|file):[^{}]+\}", password):
            allowed = "refer to it: ${env:HG_SECRET_NAME} or ${file:NAME}"
            self._report(path, "it is no reference to a secret", allowed=allowed)
            return
        self._check_template(path, password, is_secret=True)

    def _check_template(self, path: FieldPath, text: str, *, is_secret: bool = False) -> None:
        def check() -> None:
            fields = frozenset({"text"}) if is_secret else frozenset[str]()
            templates.check({"text": text}, fields, _SECRETS)
            for name in re.findall(r"(?<!\$)\$\{([^{}:]*)\}", text):
                if name not in self._names():
                    raise DefinitionError(
                        f"${{{name}}} has no value; give the probe a period that has it, such as period: daily"
                    )

        self._attempt(path, check)

    def _check_expectation(self, expectation: Expectation, path: FieldPath) -> None:
        if expectation.check not in CHECKS:
            self._report((*path, "check"), f"{shown(expectation.check)} is not known", allowed=one_of(CHECKS))
        elif expectation.check != "exists":
            self._attempt(
                (*path, "value"),
                lambda: compile_operator(expectation.check, expectation.value, future_max_seconds=300.0),
            )

    def _attempt(self, path: FieldPath, check: Callable[[], object]) -> None:
        try:
            check()
        except UserError as exc:
            fact = str(exc).removeprefix("text: ")
            for name in ("url ", "query ", "value "):
                fact = fact.removeprefix(name)
            self._report(path, fact)
