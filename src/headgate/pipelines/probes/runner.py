"""Probe runner: looks once, compares what it saw with the expectations, and returns the result.

No error leaves it: a probe that cannot look is UNKNOWN, with a category and without any secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import structlog
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import HeadgateError
from headgate.pipelines.definition.model import Json
from headgate.pipelines.enums import FailureCategory, Verdict
from headgate.pipelines.field_values import MISSING, field_of
from headgate.pipelines.probes.errors import ProbeFailedError
from headgate.pipelines.probes.files import FileLooks
from headgate.pipelines.probes.http import HttpLooks
from headgate.pipelines.probes.model import Expectation, Probe, ProbeResult, Sighting
from headgate.pipelines.probes.sql import SqlLooks
from headgate.pipelines.probes.tables import TableLooks
from headgate.pipelines.rules.operators import compile_operator
from headgate.triggers.secret_sources import SecretSources
from headgate.triggers.templates import date_values, render

REASON_CHARS_MAX: Final = 1_000
_FUTURE_SECONDS: Final = 300.0
_HIDDEN: Final = "***"
# The expectation of a probe that names none.
_DEFAULTS: Final[dict[str, tuple[Expectation, ...]]] = {
    "sql": (Expectation(),),
    "files": (Expectation(field="count", check="gte", value=1),),
    "delta": (Expectation(field="exists", check="equals", value=True),),
    "iceberg": (Expectation(field="snapshot_id"),),
    "http": (Expectation(field="ok", check="equals", value=True),),
}
_log = structlog.get_logger(__name__)


class ProbeRunner:
    """Runs probes. Safe to use from many threads."""

    def __init__(
        self,
        clock: Clock,
        secrets: SecretSources,
        *,
        sql: SqlLooks,
        files: FileLooks,
        tables: TableLooks,
        http: HttpLooks,
    ) -> None:
        self._clock = clock
        self._secrets = secrets
        self._sql = sql
        self._files = files
        self._tables = tables
        self._http = http

    def run(self, probe: Probe, period: str = "") -> ProbeResult:
        """Look once, for one period if the probe has periods, and return the result."""
        return self._run(probe, period, self._look)

    def run_schema(self, probe: Probe, table: str = "") -> ProbeResult:
        """Read the columns of a table: `seen` has the type of each by name. A Delta or Iceberg probe is its table."""
        return self._run(probe, "", lambda rendered, _period: self._look_at_schema(rendered, table))

    def _run(self, probe: Probe, period: str, look: Callable[[Probe, str], Sighting]) -> ProbeResult:
        now = self._clock.now()
        began = self._clock.monotonic()
        hidden: tuple[str, ...] = ()
        try:
            rendered, hidden = self._rendered(probe, period)
            seen = look(rendered, period).data
            verdict, reason = judge(probe, seen, now)
            category = None
        except ProbeFailedError as exc:
            seen, verdict, reason, category = {}, Verdict.UNKNOWN, str(exc), exc.category
        except HeadgateError as exc:
            seen, verdict, reason, category = {}, Verdict.UNKNOWN, exc.message, FailureCategory.PERMANENT
        except Exception as exc:  # noqa: BLE001 - an error of a library must not stop the other probes
            _log.warning("probe crashed", probe=probe.id, error=type(exc).__name__)
            text = f"{type(exc).__name__}: {exc}"
            seen, verdict, reason, category = {}, Verdict.UNKNOWN, text, FailureCategory.EVALUATOR_CRASH
        return ProbeResult(
            verdict=verdict,
            reason=_without(reason, hidden)[:REASON_CHARS_MAX],
            at_ms=round(now.timestamp() * 1000),
            duration_ms=max(0, round((self._clock.monotonic() - began) * 1000)),
            period=period,
            seen=seen,
            category=category,
        )

    def _rendered(self, probe: Probe, period: str) -> tuple[Probe, tuple[str, ...]]:
        """Return the probe with dates and secrets filled in, and those secrets."""
        values = date_values(period) if period else {}
        part = getattr(probe, probe.kind)
        names = {"sql": ("password",), "http": ("url", "headers")}.get(probe.kind, ("path",))
        given: dict[str, Any] = {name: getattr(part, name) for name in names}
        filled, hidden = render(given, values, self._secrets.read)
        return replace(probe, **{probe.kind: replace(part, **filled)}), hidden

    def _look(self, probe: Probe, period: str) -> Sighting:
        seconds = float(probe.timeout)
        if probe.sql is not None:
            return self._sql.look(probe.sql, date_values(period) if period else {}, seconds)
        if probe.files is not None:
            return self._files.look(probe.files, seconds)
        if probe.delta is not None:
            return self._tables.delta(probe.delta)
        if probe.iceberg is not None:
            return self._tables.iceberg(probe.iceberg)
        assert probe.http is not None, "a probe has one kind"
        return self._http.look(probe.http, seconds)

    def _look_at_schema(self, probe: Probe, table: str) -> Sighting:
        if probe.sql is not None:
            return self._sql.columns(probe.sql, table, float(probe.timeout))
        if probe.delta is not None:
            return self._tables.delta_columns(probe.delta)
        assert probe.iceberg is not None, "files have no schema"
        return self._tables.iceberg_columns(probe.iceberg)


def judge(probe: Probe, seen: Mapping[str, Json], now: datetime) -> tuple[Verdict, str]:
    """Compare what was seen with the expectations, all of which must hold.

    A field that is missing or null does not meet an expectation: the probe did look.
    """
    reasons: list[str] = []
    is_met = True
    now_ms = now.timestamp() * 1000
    for expectation in expectations(probe):
        value = field_of(dict(seen), expectation.field)
        if value is MISSING or value is None:
            verdict, reason = Verdict.FAIL, "is missing"
        elif expectation.check == "exists":
            verdict, reason = Verdict.PASS, f"is {value}"
        else:
            operator = compile_operator(expectation.check, expectation.value, future_max_seconds=_FUTURE_SECONDS)
            verdict, reason = operator(value, now_ms)
        if verdict is Verdict.UNKNOWN:
            return verdict, f"{expectation.field} {reason}"
        is_met &= verdict is Verdict.PASS
        reasons.append(f"{expectation.field} {reason}")
    return (Verdict.PASS if is_met else Verdict.FAIL), "; ".join(reasons)


def expectations(probe: Probe) -> tuple[Expectation, ...]:
    """Return the expectations of a probe, or those of its kind."""
    if probe.expect:
        return probe.expect
    is_marked = probe.files is not None and probe.files.marker is not None
    complete = (Expectation(field="complete", check="equals", value=True),) if is_marked else ()
    return (*_DEFAULTS[probe.kind], *complete)


def _without(text: str, hidden: tuple[str, ...]) -> str:
    """Return a text without secrets."""
    for secret in hidden:
        text = text.replace(secret, _HIDDEN)
    return " ".join(text.split())
