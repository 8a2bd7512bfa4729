"""Check service: lists checks with their results, runs one now, and back-tests expected bands on stored history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct

from headgate.checks.catalog import CheckCatalog, KnownCheck
from headgate.checks.config_checks import not_evaluated
from headgate.checks.history import StoredHistory
from headgate.checks.model import RESULT_KINDS, AnomalyOf, Outcome
from headgate.checks.promised import PromisedChecks
from headgate.checks.runner import CheckRunner, holiday_test
from headgate.checks.state import CheckKey, CheckState, CheckStates
from headgate.clock import Clock, epoch_ms
from headgate.errors import InvalidPayloadError, NotFoundError
from headgate.health.model.expected_bands import (
    DAY_HOURS,
    WEEKS_MAX,
    Band,
    DayFit,
    IsHoliday,
    band_of,
    day_of,
    explain,
    fit_day,
)
from headgate.health.model.timestamps import instant
from headgate.health.results.model import CHECK_SOURCE, ReportedResult
from headgate.health.service import HealthService
from headgate.pipelines.definition.problems import nearest
from headgate.pipelines.schedule.calendars import Calendars

HOUR_MS: Final = 3_600_000
DAYS_MAX: Final = WEEKS_MAX * 7


class CheckStatus(Struct, frozen=True, kw_only=True):
    """A check with its schedule and its stored result, if it has run."""

    known: KnownCheck
    dataset_urn: str
    state: CheckState | None
    result: ReportedResult | None


class ExpectedHour(Struct, frozen=True, kw_only=True):
    """The expected band of one hour and its value. `low` and `high` are None in the warm-up."""

    hour: str
    value: float | None
    expected: float | None = None
    low: float | None = None
    high: float | None = None
    is_flagged: bool = False
    reason: str = ""


class ExpectedHours(Struct, frozen=True, kw_only=True):
    """The hours of some days, oldest first. `judged` have a band and a value, `warm_up` lack the band."""

    dataset_urn: str
    check_id: str | None
    unit: str
    days: int
    judged: int
    warm_up: int
    flagged: int
    hours: list[ExpectedHour]


class CheckService:
    """What processes ask of checks. Safe to use from many threads."""

    def __init__(
        self,
        clock: Clock,
        health: HealthService,
        catalog: CheckCatalog,
        runner: CheckRunner,
        states: CheckStates,
        promised: PromisedChecks,
        history: StoredHistory,
        calendars: Callable[[], Calendars],
    ) -> None:
        self._clock = clock
        self._health = health
        self._catalog = catalog
        self._runner = runner
        self._states = states
        self._promised = promised
        self._history = history
        self._calendars = calendars

    def ls(self, dataset_urn: str | None = None) -> list[CheckStatus]:
        """Return the checks of a dataset, or all, by dataset and id."""
        named = [(each, self._health.registered(each.file.dataset)) for each in self._catalog.all()]
        wanted = [(each, urn) for each, urn in named if dataset_urn in (None, urn)]
        promised = self._promised.all() if dataset_urn is None else self._promised.of(dataset_urn)
        wanted += [(each, each.file.dataset) for each in promised]
        states = self._states.of([each.key for each, _ in wanted])
        results = self._results({urn for _, urn in wanted})
        return [
            CheckStatus(
                known=each,
                dataset_urn=urn,
                state=states.get(each.key),
                result=results.get((urn, RESULT_KINDS[each.check.kind].value, each.check.id)),
            )
            for each, urn in wanted
        ]

    def get(self, dataset_urn: str, check_id: str) -> CheckStatus:
        """Return a check. Raises `NotFoundError`."""
        known = self.known(dataset_urn, check_id)
        [found] = [each for each in self.ls(dataset_urn) if each.known.key == known.key]
        return found

    def known(self, dataset_urn: str, check_id: str) -> KnownCheck:
        """Return the definition of a check. Raises `NotFoundError` with the nearest name."""
        own = {
            each.check.id: each
            for each in self._catalog.all()
            if dataset_urn in (each.file.dataset, self._health.registered(each.file.dataset))
        }
        own |= {each.check.id: each for each in self._promised.of(self._health.registered(dataset_urn))}
        if check_id not in own:
            hint = nearest(check_id, own)
            meant = f"; did you mean {hint}?" if hint else "; define it in the folder checks of the project"
            raise NotFoundError(f"check {check_id[:80]!r} of {dataset_urn}: there is none{meant}")
        return own[check_id]

    def not_evaluated(self, dataset_urn: str) -> list[str]:
        """Return what the config of a dataset promises of fields and no check of its table evaluates."""
        files = [each.file for each in self._catalog.files()]
        own = [each for each in files if self._health.registered(each.dataset) == dataset_urn]
        return [text for file in own for text in not_evaluated(file, self._health.registry.find(dataset_urn))]

    def try_check(self, dataset_urn: str, check_id: str) -> Outcome:
        """Run a check now and store nothing."""
        return self._runner.run(self.known(dataset_urn, check_id), self._health.registered(dataset_urn))

    def request(self, dataset_urn: str, check_id: str, by: str) -> CheckKey:
        """Make a check due now; the poller runs it. The request is durable when this returns."""
        known = self.known(dataset_urn, check_id)
        self._states.request(known.key, f"request by {by}", known.digest)
        return known.key

    def backtest(self, dataset_urn: str, check_id: str, days: int) -> ExpectedHours:
        """Judge the stored hours of some days by the bands that were known before each day.

        Raises `InvalidPayloadError` for a check without an expected band.
        """
        known = self.known(dataset_urn, check_id)
        urn, check = self._health.registered(dataset_urn), known.check
        part = check.anomaly or check.volume
        is_hourly = check.anomaly is not None or (check.volume is not None and check.volume.column is not None)
        if part is None or not is_hourly:
            raise InvalidPayloadError(
                f"check {check_id}: it has no expected band to back-test; use a check of kind anomaly"
            )
        is_duration = check.anomaly is not None and check.anomaly.of is AnomalyOf.DURATION
        pipeline = None if check.anomaly is None else check.anomaly.pipeline
        values = self._history.volumes(urn) if pipeline is None else self._history.durations(pipeline)
        is_holiday = holiday_test(part.holidays, part.calendar, self._calendars())
        unit = "seconds" if is_duration else "rows"
        return self._judged(urn, check_id, values, is_holiday, unit, days)

    def expected_volumes(self, dataset_urn: str, days: int) -> ExpectedHours:
        """Return the expected bands of the hourly volumes, with the holidays of the dataset's first volume check."""
        is_holiday: IsHoliday = holiday_test(None, None, {})
        named: str | None = None
        for each in self._catalog.all():
            part = each.check.volume or each.check.anomaly
            is_volume = part is not None and (each.check.anomaly is None or each.check.anomaly.of is AnomalyOf.VOLUME)
            if part is not None and is_volume and self._health.registered(each.file.dataset) == dataset_urn:
                named = each.check.id
                is_holiday = holiday_test(part.holidays, part.calendar, self._calendars())
                break
        return self._judged(dataset_urn, named, self._history.volumes(dataset_urn), is_holiday, "rows", days)

    def _judged(
        self, urn: str, check_id: str | None, values: Mapping[int, float], is_holiday: IsHoliday, unit: str, days: int
    ) -> ExpectedHours:
        if not 1 <= days <= DAYS_MAX:
            raise InvalidPayloadError(f"days {days}: give 1 to {DAYS_MAX}")
        present = epoch_ms(self._clock) // HOUR_MS
        hours = [
            _expected_hour(values, fit, hour, is_holiday, unit, is_over=hour < present)
            for hour, fit in _fits(values, range(present - days * DAY_HOURS + 1, present + 1), is_holiday)
        ]
        judged = sum(each.low is not None and each.value is not None for each in hours)
        return ExpectedHours(
            dataset_urn=urn,
            check_id=check_id,
            unit=unit,
            days=days,
            judged=judged,
            warm_up=sum(each.low is None for each in hours),
            flagged=sum(each.is_flagged for each in hours),
            hours=hours,
        )

    def _results(self, urns: Iterable[str]) -> dict[tuple[str, str, str], ReportedResult]:
        named = sorted(urns)
        return {
            (each.dataset_urn, each.kind.value, each.test_id): each
            for found in self._health.results.of_many(named)
            for each in found
            if each.source == CHECK_SOURCE
        }


def _fits(values: Mapping[int, float], hours: range, is_holiday: IsHoliday) -> Iterable[tuple[int, DayFit]]:
    """Yield each hour with the fit of its day."""
    fit: DayFit | None = None
    for hour in hours:
        if fit is None or fit.first_hour != day_of(hour):
            fit = fit_day(values, day_of(hour), is_holiday)
        yield hour, fit


def _expected_hour(
    values: Mapping[int, float], fit: DayFit, hour: int, is_holiday: IsHoliday, unit: str, *, is_over: bool
) -> ExpectedHour:
    band, value, at = band_of(values, fit, hour, is_holiday), values.get(hour), instant(hour * HOUR_MS)
    if not isinstance(band, Band):
        return ExpectedHour(hour=at, value=value, reason=band.reason)
    is_flagged = value is not None and is_over and not band.contains(value)
    return ExpectedHour(
        hour=at,
        value=value,
        expected=round(band.expected, 3),
        low=round(max(0.0, band.low), 3),
        high=round(band.high, 3),
        is_flagged=is_flagged,
        reason="" if value is None else explain(value, band, hour, unit),
    )
