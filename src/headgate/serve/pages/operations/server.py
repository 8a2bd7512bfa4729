"""Operations page: health checks with remedies, and charts of throughput, latency, capacity and work of this server."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.bootstrap.backup_record import BackupRecord
from headgate.health.model.enums import IncidentStatus, Severity
from headgate.health.model.timestamps import instant, milliseconds
from headgate.serve.metrics_history import SAMPLE_SECONDS, SAMPLES_MAX, Changes, Measure, Sample
from headgate.serve.pages.api_calls import ApiCaller
from headgate.serve.pages.labels import command, number, span
from headgate.serve.pages.live_updates import OF_SERVER, changes_of
from headgate.serve.pages.page import Chip, Page, PageRequest, PageRoute, chips
from headgate.serve.probes import WATCHDOG, Check, Report, Status
from headgate.serve.server_monitor import ServerMonitor

ADDRESS: Final = "/ui/operations"
FILTERS: Final = ("within",)
WITHIN: Final[Mapping[str, int]] = {"15m": 900, "1h": 3_600, "6h": 21_600}
_WITHIN_DEFAULT: Final = "1h"
# Points of a line; more samples are averaged.
POINTS_MAX: Final = 120
INCIDENTS_MAX: Final = 100
TABLES_MAX: Final = 12
# The growth of the store is stated from this time on.
_GROWTH_SECONDS_MIN: Final = 600
BACKUP_SECONDS_MAX: Final = 2 * 86_400
_DAY_SECONDS: Final = 86_400
_PER_SECOND: Final = "/s"


class Figure(Struct, frozen=True, kw_only=True):
    """A number of the page. `tone` is bad or warn if it needs someone."""

    label: str
    value: str
    note: str = ""
    tone: str = ""


class Plot(Struct, frozen=True, kw_only=True):
    """A chart with its title, and a sentence about what to expect of it."""

    title: str
    chart: Any
    note: str = ""


class Group(Struct, frozen=True, kw_only=True):
    """Charts of one kind."""

    title: str
    plots: list[Plot]
    note: str = ""


# Name, measure and tone of a line.
Line = tuple[str, Measure, str]


class TableUse(Struct, frozen=True, kw_only=True):
    """A table with its rows, or with the write units that it used, and its share of the largest, 0 to 100."""

    name: str
    count: str
    share: float


class OperationsPage(Struct, frozen=True, kw_only=True):
    """View of the page."""

    status: Status
    checks: list[Check]
    sentence: str
    troubles: list[Check]
    figures: list[Figure]
    groups: list[Group]
    transitions: list[tuple[str, str, int]]
    transitions_since: str | None
    incidents: str
    tables: list[TableUse]
    is_units: bool
    backup: BackupRecord | None
    is_backup_known: bool
    backup_tone: str
    chips: list[Chip]
    since: str | None
    samples: int
    sample_seconds: int = int(SAMPLE_SECONDS)
    kept_hours: int = round(SAMPLES_MAX * SAMPLE_SECONDS / 3600)


def pages(monitor: ServerMonitor) -> tuple[PageRoute, ...]:
    """Return the page of a server."""

    def page(api: ApiCaller, request: PageRequest) -> Page:
        api.require(Permission.SERVER_READ)
        return Page(
            template="operations.html",
            title="Operations",
            view=operations_page(api, monitor, request.query),
            json="/health/deep",
            cli=command("doctor"),
            changes=changes_of(of=OF_SERVER),
            section="operations",
        )

    return (PageRoute("/operations", page, FILTERS),)


def operations_page(api: ApiCaller, monitor: ServerMonitor, query: Mapping[str, Any]) -> OperationsPage:
    """Return the page. Blocks for the deep check."""
    report = monitor.report()
    chosen = query.get("within") if query.get("within") in WITHIN else _WITHIN_DEFAULT
    every = monitor.history.samples()
    oldest_ms = every[0].at_ms if every else 0
    start_ms = max(api.now_ms - WITHIN[str(chosen)] * 1000, oldest_ms)
    samples = [each for each in every if each.at_ms >= start_ms]
    changes = monitor.history.changes()
    active = _incidents(api)
    backup = monitor.last_backup()
    troubles = [each for each in report.checks if each.status is not Status.OK]
    uses = {} if changes is None else changes.write_units or changes.rows
    return OperationsPage(
        status=report.status,
        checks=sorted(report.checks, key=_order),
        sentence=_sentence(report, troubles),
        troubles=sorted(troubles, key=_order),
        figures=[*_figures(every, samples), *_watchdog(report)],
        groups=_groups(samples, start_ms, api.now_ms),
        transitions=_transitions(changes),
        transitions_since=None if changes is None else instant(changes.since_ms),
        incidents=active,
        tables=_uses(uses),
        is_units=changes is not None and bool(changes.write_units),
        backup=backup,
        is_backup_known=monitor.knows_backups,
        backup_tone=_backup_tone(backup, api.now_ms),
        chips=chips(ADDRESS, {"within": chosen}, "within", [(f"Last {each}", each) for each in WITHIN]),
        since=instant(every[0].at_ms) if every else None,
        samples=len(every),
    )


def _sentence(report: Report, troubles: Sequence[Check]) -> str:
    if not troubles:
        return f"All {len(report.checks)} checks pass."
    names = ", ".join(each.name for each in troubles)
    return f"{len(troubles)} of {len(report.checks)} checks need someone: {names}."


def _order(check: Check) -> tuple[int, bool]:
    """Sort key: worst first, and background work last."""
    return (Status.FAILED, Status.DEGRADED, Status.OK).index(check.status), check.name.startswith("sweep")


def _watchdog(report: Report) -> list[Figure]:
    """Return the state of the watchdog, where one is to run."""
    found = [each for each in report.checks if each.name == WATCHDOG]
    return [
        Figure(
            label="Watchdog",
            value="running" if each.status is Status.OK else each.status.value,
            note=each.fact,
            tone="" if each.status is Status.OK else "warn",
        )
        for each in found
    ]


def _backup_tone(backup: BackupRecord | None, now_ms: int) -> str:
    if backup is None:
        return "warn"
    return "warn" if now_ms - milliseconds(backup.at) > BACKUP_SECONDS_MAX * 1000 else ""


def _incidents(api: ApiCaller) -> str:
    """Return the active incidents by severity in words; empty if the reader may not see them."""
    if not api.may(Permission.INCIDENT_READ):
        return ""
    states = [IncidentStatus.OPEN.value, IncidentStatus.ACKNOWLEDGED.value]
    found = api.listed("GET /incidents", most=INCIDENTS_MAX, query={"status": states})
    counts = Counter(each["severity"] for each in found.items)
    parts = [f"{each.value} {counts[each.value]}" for each in Severity if counts[each.value]]
    total = f"{len(found.items)}{'+' if found.has_more else ''}"
    return f"{total} ({', '.join(parts)})" if parts else total


def _figures(every: Sequence[Sample], samples: Sequence[Sample]) -> list[Figure]:
    if not samples:
        return []
    last = samples[-1]
    lookups = _total(samples, Measure.CACHE_LOOKUPS)
    hits = _total(samples, Measure.CACHE_HITS)
    errors, shed = _counted(samples, Measure.ERRORS), _counted(samples, Measure.SHED)
    limited, throttles = _counted(samples, Measure.LIMITED), _counted(samples, Measure.THROTTLES)
    known_ms = [each[Measure.API_P99] for each in samples if _is_known(each[Measure.API_P99])]
    slowest_ms = max(known_ms, default=None)
    return [
        Figure(label="Reads", value=_rate(last, Measure.READS)),
        Figure(label="Writes", value=_rate(last, Measure.WRITES), note=f"{_rate(last, Measure.COMMITS)} commits"),
        Figure(
            label="Cache hits",
            value=f"{100 * hits / lookups:.0f} %" if lookups else "-",
            note=f"of {number(lookups)} lookups" if lookups else "no lookups in this range",
        ),
        Figure(
            label="API, p99",
            value="-" if slowest_ms is None else f"{number(slowest_ms)} ms",
            note=f"in the slowest {SAMPLE_SECONDS:.0f} s",
        ),
        Figure(label="Server errors", value=number(errors), note="answers 5xx", tone="bad" if errors else ""),
        Figure(
            label="Refused",
            value=number(shed + limited),
            note=f"{number(shed)} shed, {number(limited)} over a limit",
            tone="warn" if shed + limited else "",
        ),
        Figure(label="Throttled", value=number(throttles), note="by the store", tone="warn" if throttles else ""),
        Figure(label="Memory", value=_size(last[Measure.MEMORY_BYTES]), note="of this process"),
        Figure(label="Store", value=_size(last[Measure.STORE_BYTES]), note=_growth(every)),
    ]


def _growth(samples: Sequence[Sample]) -> str:
    """Return how fast the store grows, once that is known."""
    known = [each for each in samples if _is_known(each[Measure.STORE_BYTES])]
    if not known:
        return "not measured on this backend"
    seconds = (known[-1].at_ms - known[0].at_ms) / 1000
    if seconds < _GROWTH_SECONDS_MIN:
        return "growth is known after 10 min"
    grown = (known[-1][Measure.STORE_BYTES] - known[0][Measure.STORE_BYTES]) / seconds * _DAY_SECONDS
    return f"{'+' if grown >= 0 else '-'}{_size(abs(grown))} a day, from {span(seconds)}"


def _groups(samples: Sequence[Sample], start_ms: int, now_ms: int) -> list[Group]:
    """Return the charts: throughput, latency, capacity and throttling, and what the work is about."""

    def plot(title: str, unit: str, *lines: Line, note: str = "", scale: float = 1.0) -> Plot:
        series = [
            {"name": name, "points": _points(samples, measure, scale), "tone": tone} for name, measure, tone in lines
        ]
        return Plot(title=title, note=note, chart={"series": series, "unit": unit, "from": start_ms, "to": now_ms})

    def latency(title: str, reads: Measure, writes: Measure) -> Plot:
        return plot(title, " ms", ("reads", reads, "busy"), ("writes", writes, "good"))

    m = Measure
    return [
        Group(
            title="Throughput",
            plots=[
                plot("Store calls", "/s", ("reads", m.READS, "busy"), ("writes", m.WRITES, "good")),
                plot("Cache hits", " %", ("hits", m.CACHE_HIT_PERCENT, "good"), note="Lookups that memory answered."),
                plot("API", "/s", ("requests", m.REQUESTS, "busy"), ("errors", m.ERRORS, "bad")),
            ],
        ),
        Group(
            title="Latency, p99",
            note="Where a line has no point, nothing was called.",
            plots=[
                latency("Signal state", m.SIGNAL_READ_P99, m.SIGNAL_WRITE_P99),
                latency("Incident index", m.INCIDENT_READ_P99, m.INCIDENT_WRITE_P99),
                latency("Evidence cache", m.EVIDENCE_READ_P99, m.EVIDENCE_WRITE_P99),
                plot("API", " ms", ("answers", m.API_P99, "busy")),
            ],
        ),
        Group(
            title="Capacity and throttling",
            plots=[
                plot(
                    "Refused and throttled", "/s",
                    ("throttled by the store", m.THROTTLES, "bad"),
                    ("shed under overload", m.SHED, "warn"), ("over a rate limit", m.LIMITED, "odd"),
                    ("failed logins", m.FAILED_LOGINS, "busy"), note="All should be 0.",
                ),
                plot("Commits", "/s", ("commits", m.COMMITS, "good"), ("conflicts", m.CONFLICTS, "warn")),
                plot(
                    "Store size, MiB", "",
                    ("database", m.STORE_BYTES, "busy"), ("write-ahead log", m.WAL_BYTES, "odd"),
                    scale=1 / 2**20,
                ),
                plot("Memory, MiB", "", ("resident", m.MEMORY_BYTES, "busy"), scale=1 / 2**20),
                plot("Thread pool", "", ("calls running or queued", m.WORK_ACCEPTED, "busy")),
            ],
        ),
        Group(
            title="Signals and alerts",
            plots=[
                plot(
                    "Signals a minute", "",
                    ("updates", m.SIGNAL_UPDATES, "busy"), ("transitions", m.TRANSITIONS, "warn"),
                    scale=60.0,
                ),
                plot("Failed alert deliveries a minute", "", ("attempts", m.ALERT_FAILURES, "bad"), scale=60.0),
            ],
        ),
    ]  # fmt: skip


def _points(samples: Sequence[Sample], measure: Measure, scale: float) -> list[tuple[int, float]]:
    """Return the known values over time; neighbours are averaged if there are many."""
    stride = max(1, math.ceil(len(samples) / POINTS_MAX))
    points = []
    # Groups begin at the newest sample.
    for end in range(len(samples), 0, -stride):
        group = samples[max(0, end - stride) : end]
        known = [each[measure] * scale for each in group if _is_known(each[measure])]
        if known:
            points.append((group[-1].at_ms, round(sum(known) / len(known), 3)))
    return points[::-1]


def _is_known(value: float) -> bool:
    return not math.isnan(value)


def _total(samples: Sequence[Sample], measure: Measure) -> float:
    """Return what a rate counted in these samples."""
    return sum(each[measure] for each in samples if _is_known(each[measure])) * SAMPLE_SECONDS


def _counted(samples: Sequence[Sample], measure: Measure) -> int:
    return round(_total(samples, measure))


def _rate(sample: Sample, measure: Measure) -> str:
    return f"{sample[measure]:,.3g}{_PER_SECOND}" if _is_known(sample[measure]) else "-"


def _size(count: float) -> str:
    """Return bytes in the unit that fits."""
    if not _is_known(count):
        return "-"
    for unit, least in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= least:
            return f"{number(round(count / least, 1))} {unit}"
    return f"{count:.0f} B"


def _transitions(changes: Changes | None) -> list[tuple[str, str, int]]:
    """Return the transitions between states, most frequent first."""
    found = {} if changes is None else changes.transitions
    return sorted(
        ((before, after, round(count)) for (before, after), count in found.items()), key=lambda each: -each[2]
    )


def _uses(uses: Mapping[str, float]) -> list[TableUse]:
    largest = sorted(uses.items(), key=lambda each: -each[1])[:TABLES_MAX]
    most = largest[0][1] if largest else 0
    return [
        TableUse(name=name, count=number(count), share=round(100 * count / most, 1)) for name, count in largest if count
    ]
