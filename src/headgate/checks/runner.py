"""Check runner: measures once through the probes, judges the measurement, and returns the outcome. It stores nothing.

No error leaves it: a check that cannot be measured or judged is UNKNOWN with its reason, and without any secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import structlog

from headgate.checks import config_checks, judgement
from headgate.checks.catalog import KnownCheck
from headgate.checks.history import History
from headgate.checks.judgement import HOUR_MS, Ruling
from headgate.checks.model import (
    RESULT_KINDS,
    AnomalyCheck,
    AnomalyOf,
    Check,
    CheckFile,
    ConfigCheck,
    Outcome,
    VolumeCheck,
)
from headgate.checks.queries import query_of
from headgate.clock import Clock, epoch_ms
from headgate.errors import HeadgateError
from headgate.health.model.enums import SignalState
from headgate.health.model.expected_bands import Band, IsHoliday, WarmUp, band_of, day_of, fit_day
from headgate.pipelines.definition.model import Exclusions, Json
from headgate.pipelines.enums import Verdict
from headgate.pipelines.field_values import number
from headgate.pipelines.probes.model import Probe, ProbeResult, SqlProbe
from headgate.pipelines.probes.runner import ProbeRunner
from headgate.pipelines.schedule.calendars import Calendars, why_excluded

_ROWS: Final = "rows"
_FILES: Final = "files"
_UNITS: Final = {AnomalyOf.VOLUME: "rows", AnomalyOf.DURATION: "seconds"}
_log = structlog.get_logger(__name__)


class CheckRunner:
    """Runs checks. Safe to use from many threads."""

    def __init__(self, clock: Clock, probes: ProbeRunner, history: History, calendars: Callable[[], Calendars]) -> None:
        self._clock = clock
        self._probes = probes
        self._history = history
        self._calendars = calendars

    def run(self, known: KnownCheck, dataset_urn: str) -> Outcome:
        """Run a check of a dataset, which is registered as `dataset_urn`."""
        now_ms, began = epoch_ms(self._clock), self._clock.monotonic()
        try:
            return self._run(known.file, known.check, dataset_urn, now_ms, began)
        except HeadgateError as exc:
            reason = exc.message
        except Exception as exc:  # noqa: BLE001 - a bug in one kind must not stop the others; probes catch their libraries' errors
            _log.warning("check crashed", check=str(known.key), error=type(exc).__name__)
            reason = f"{type(exc).__name__}: {exc}"[:500]
        return judgement.unknown(reason, now_ms, self._took_ms(began))

    def is_judged(self, known: KnownCheck, dataset_urn: str) -> bool:
        """Whether a check is judged now. One of a config alone needs data that no other tool has judged.

        Raises `TransientError`.
        """
        check = known.check
        if not known.is_promised or not isinstance(check, ConfigCheck):
            return True
        if self._history.is_reported(dataset_urn, RESULT_KINDS[check.kind]):
            return False
        if check.events is not None:
            signal = self._history.last_volume(dataset_urn)
            # A reporter that states the limit has compared with it.
            is_compared = signal is not None and signal.value.slo_threshold == check.events.min > 0
            return signal is not None and signal.volume is not None and not is_compared
        start_ms, end_ms = judgement.last_hour(epoch_ms(self._clock))
        if check.contract is not None and self._history.evidence(dataset_urn, start_ms, end_ms):
            return True
        return start_ms // HOUR_MS in self._history.volumes(dataset_urn)

    def _run(self, file: CheckFile, check: Check, urn: str, now_ms: int, began: float) -> Outcome:
        if isinstance(check, ConfigCheck) and check.is_of_history:
            return self._config(check, urn, now_ms, began)
        if check.anomaly is not None:
            return self._anomaly(check, check.anomaly, urn, now_ms, began)
        window = judgement.last_hour(now_ms)
        measured = self._measure(file, check, window)
        if measured.verdict is Verdict.UNKNOWN:
            return judgement.unknown(measured.reason, now_ms, self._took_ms(began))
        count: int | None = None
        is_hourly = check.volume is not None and check.volume.column is not None
        if measured.seen.get("exists") is False:
            state, reason = check.severity.state, "the table does not exist"
        elif check.volume is not None:
            seen = self._seen(measured, judgement.COUNT_FIELDS[_kind_of(file)])
            found = number(seen)
            count = int(found) if is_hourly and found is not None else None
            state, reason = self._volume(check, check.volume, file, urn, seen, window)
        else:
            state, reason = self._judged(file, check, measured, now_ms)
        return Outcome(
            state=state,
            reason=reason,
            at_ms=now_ms,
            window_start_ms=window[0] if is_hourly else now_ms,
            window_end_ms=window[1] if is_hourly else now_ms,
            duration_ms=self._took_ms(began),
            value=_number(measured.seen.get("value")),
            failures=_failures(check, measured, state),
            count=count,
        )

    def _judged(self, file: CheckFile, check: Check, measured: ProbeResult, now_ms: int) -> Ruling:
        if check.freshness is not None:
            newest = self._seen(measured, judgement.TIME_FIELDS[_kind_of(file)])
            return judgement.judge_freshness(check.freshness, check.severity.state, newest, now_ms)
        if check.schema is not None:
            columns = measured.seen.get("columns")
            assert isinstance(columns, dict), "the schema of a table has columns"
            named = {str(name): str(kind) for name, kind in columns.items()}
            return judgement.judge_schema(check.schema, check.severity.state, named)
        return judgement.judge_value(check, self._seen(measured, "value"), now_ms)

    def _measure(self, file: CheckFile, check: Check, window: tuple[int, int]) -> ProbeResult:
        source = file.source
        assert source is not None, "validated: a check that reads has a source"
        if source.sql is None:
            probe = Probe(
                id=check.id, timeout=file.timeout, files=source.files, delta=source.delta, iceberg=source.iceberg
            )
            return self._probes.run_schema(probe) if check.schema is not None else self._probes.run(probe)
        table = source.sql.table or ""
        query = query_of(check, table, window) or ""
        probe = Probe(
            id=check.id,
            timeout=file.timeout,
            sql=SqlProbe(url=source.sql.url, password=source.sql.password, query=query or "SELECT 1"),
        )
        return self._probes.run_schema(probe, table) if check.schema is not None else self._probes.run(probe)

    @staticmethod
    def _seen(measured: ProbeResult, field: str) -> Json:
        return measured.seen.get(field)

    def _volume(
        self, check: Check, volume: VolumeCheck, file: CheckFile, urn: str, seen: Json, window: tuple[int, int]
    ) -> Ruling:
        hour = window[0] // HOUR_MS
        band: Band | WarmUp | None = None
        if volume.column is not None and volume.expected:
            is_holiday = self._is_holiday(volume.holidays, volume.calendar)
            band = fitted_band(self._history.volumes(urn), hour, is_holiday)
        unit = _FILES if _kind_of(file) == "files" else _ROWS
        return judgement.judge_volume(volume, check.severity.state, seen, unit, band, hour)

    def _anomaly(self, check: Check, anomaly: AnomalyCheck, urn: str, now_ms: int, began: float) -> Outcome:
        start_ms, end_ms = judgement.last_hour(now_ms)
        hour, failed = start_ms // HOUR_MS, check.severity.state
        values = self._history.volumes(urn) if anomaly.pipeline is None else self._history.durations(anomaly.pipeline)
        value = values.get(hour)
        if anomaly.of is AnomalyOf.DURATION and value is None:
            # Runs are not hourly: the latest one is judged, by the hour in which it ran.
            hour = max((each for each in values if each <= hour), default=hour)
            value = values.get(hour)
        if anomaly.baseline is not None:
            state, reason = judgement.judge_baseline(
                anomaly, failed, value, self._history.baseline(urn, anomaly.baseline)
            )
        else:
            band = fitted_band(values, hour, self._is_holiday(anomaly.holidays, anomaly.calendar))
            state, reason = judgement.judge_anomaly(failed, value, band, hour, _UNITS[anomaly.of])
        return Outcome(
            state=state,
            reason=reason,
            at_ms=now_ms,
            window_start_ms=hour * HOUR_MS,
            window_end_ms=min((hour + 1) * HOUR_MS, end_ms),
            duration_ms=self._took_ms(began),
            value=value,
        )

    def _config(self, check: ConfigCheck, urn: str, now_ms: int, began: float) -> Outcome:
        failed = check.severity.state
        start_ms, end_ms = judgement.last_hour(now_ms)
        if check.events is not None:
            signal = self._history.last_volume(urn)
            # Without a count there is no volume of an hour.
            count = None if signal is None or signal.volume is None else signal.value.metrics.evidence_count
            window = "" if signal is None else f"{signal.value.window_start} to {signal.value.window_end}"
            state, reason = config_checks.judge_events(check.events, failed, count, window)
        elif check.deviation is not None:
            values = self._history.volumes(urn)
            state, reason = config_checks.judge_deviation(check.deviation, failed, values, start_ms // HOUR_MS)
        else:
            assert check.contract is not None, "a check has one kind"
            evidence = self._history.evidence(urn, start_ms, end_ms)
            counted = self._history.volumes(urn).get(start_ms // HOUR_MS)
            state, reason = config_checks.judge_contract(check.contract, failed, evidence, counted)
        return Outcome(
            state=state,
            reason=reason,
            at_ms=now_ms,
            window_start_ms=start_ms,
            window_end_ms=end_ms,
            duration_ms=self._took_ms(began),
        )

    def _is_holiday(self, holidays: str | None, calendar: str | None) -> IsHoliday:
        return holiday_test(holidays, calendar, self._calendars())

    def _took_ms(self, began: float) -> int:
        return max(0, round((self._clock.monotonic() - began) * 1000))


def fitted_band(values: Mapping[int, float], hour: int, is_holiday: IsHoliday) -> Band | WarmUp:
    """Return the band of an hour, fitted to the history before its day."""
    return band_of(values, fit_day(values, day_of(hour), is_holiday), hour, is_holiday)


def holiday_test(holidays: str | None, calendar: str | None, calendars: Calendars) -> IsHoliday:
    """Return whether an hour is on a holiday of a country or of a named calendar. Raises `DefinitionError`."""
    if holidays is None and calendar is None:
        return lambda _hour: False
    exclusions = Exclusions(holidays=holidays, calendar=calendar)
    known: dict[int, bool] = {}

    def is_holiday(hour: int) -> bool:
        day = hour // 24
        if day not in known:
            at = datetime.fromtimestamp(day * 86_400, UTC).date()
            known[day] = why_excluded(exclusions, at, calendars) is not None
        return known[day]

    return is_holiday


def _kind_of(file: CheckFile) -> str:
    assert file.source is not None, "validated: a check that reads has a source"
    return next(name for name in ("sql", "files", "delta", "iceberg") if getattr(file.source, name) is not None)


def _number(value: Json) -> float | None:
    found = number(value)
    return None if found is None else float(found)


def _failures(check: Check, measured: ProbeResult, state: SignalState) -> int | None:
    found = number(measured.seen.get("value"))
    return int(found) if check.unique is not None and found is not None and state.is_breach else None
