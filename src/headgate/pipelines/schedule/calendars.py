"""Calendars: which days are excluded or included for a pipeline.

Days are those of the run, never today. Exclusions add up. With inclusions, only the named days are due, and an
exclusion still wins. A business day is neither a weekend nor excluded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from headgate.errors import DefinitionError
from headgate.pipelines.definition.model import Exclusions, Inclusions

if TYPE_CHECKING:
    from holidays import HolidayBase

# Named calendars. One may build on another.
Calendars = Mapping[str, Exclusions]

# Upper bound for business days in a month.
_BUSINESS_DAYS_MAX: Final = 23
_WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_WEEKEND: Final = frozenset({5, 6})


class _Year(NamedTuple):
    """The holidays of one year with their names, and the weekend days of the country."""

    holidays: Mapping[date, str]
    weekend: frozenset[int]


def is_excluded(exclusions: Exclusions, inclusions: Inclusions, day: date, calendars: Calendars) -> bool:
    """Whether nothing is due on a day: it is excluded, or not included.

    Raises `DefinitionError` as `check_calendar` does.
    """
    return why_excluded(exclusions, day, calendars) is not None or not is_included(
        inclusions, exclusions, day, calendars
    )


def why_excluded(exclusions: Exclusions, day: date, calendars: Calendars) -> str | None:
    """Return why a day is excluded; None: it is not. Raises `DefinitionError`."""
    return next((reason for each in _with_named(exclusions, calendars) if (reason := _why(each, day))), None)


def is_included(inclusions: Inclusions, exclusions: Exclusions, day: date, calendars: Calendars) -> bool:
    """Whether the inclusions contain a day. Without any, every day is included. Raises `DefinitionError`."""
    if not inclusions.dates and not inclusions.business_days:
        return True
    if day in _dates(inclusions.dates):
        return True
    return _is_nth_business_day(inclusions.business_days, exclusions, day, calendars)


def is_business_day(exclusions: Exclusions, day: date, calendars: Calendars) -> bool:
    """Whether a day is neither a weekend nor excluded. Raises `DefinitionError`."""
    weekend = frozenset().union(*(_weekend(each, day.year) for each in _with_named(exclusions, calendars)))
    return day.weekday() not in weekend and why_excluded(exclusions, day, calendars) is None


def business_days(exclusions: Exclusions, year: int, month: int, calendars: Calendars) -> list[date]:
    """Return the business days of a month, in order. Raises `DefinitionError`."""
    first = date(year, month, 1)
    days = [first + timedelta(days=number) for number in range(31)]
    return [day for day in days if day.month == month and is_business_day(exclusions, day, calendars)]


def exclusion_reason(exclusions: Exclusions, days: Sequence[date], calendars: Calendars) -> str | None:
    """Return why a period is excluded, which needs all its days to be; None: it is not. Raises `DefinitionError`."""
    reasons = [why_excluded(exclusions, day, calendars) for day in days]
    return None if None in reasons or not reasons else reasons[0]


def check_calendar(exclusions: Exclusions, inclusions: Inclusions, calendars: Calendars | None = None) -> None:
    """Raise `DefinitionError` for an invalid date, weekday, holiday calendar or number.

    Names of calendars are resolved only if `calendars` is given.
    """
    known = (
        exclusions
        if calendars is not None
        else Exclusions(
            weekends=exclusions.weekends, holidays=exclusions.holidays, days=exclusions.days, dates=exclusions.dates
        )
    )
    for each in _with_named(known, calendars or {}):
        _weekdays(each.days)
        _dates(each.dates)
        if each.holidays is not None:
            _year(each.holidays, 2026)
    _dates(inclusions.dates)
    for number in inclusions.business_days:
        if not 1 <= abs(number) <= _BUSINESS_DAYS_MAX:
            raise DefinitionError(
                f"include.business_days {number}: from 1 (the first of a month) to {_BUSINESS_DAYS_MAX}, "
                f"or from -1 (the last) to -{_BUSINESS_DAYS_MAX}"
            )


def _with_named(exclusions: Exclusions, calendars: Calendars) -> list[Exclusions]:
    """Return the exclusions and the calendars they build on, each once."""
    chain = [exclusions]
    names: set[str] = set()
    while (name := chain[-1].calendar) is not None and name not in names:
        names.add(name)
        if name not in calendars:
            known = ", ".join(sorted(calendars)) or "none"
            raise DefinitionError(f"exclude.calendar {name!r}: there is no such calendar; known calendars: {known}")
        chain.append(calendars[name])
    return chain


def _why(exclusions: Exclusions, day: date) -> str | None:
    if exclusions.weekends and day.weekday() in _weekend(exclusions, day.year):
        return f"{day}: weekend"
    if day.weekday() in _weekdays(exclusions.days):
        return f"{day}: every {_WEEKDAYS[day.weekday()].capitalize()} is excluded"
    if day in _dates(exclusions.dates):
        return f"{day}: the date is excluded"
    if exclusions.holidays is None:
        return None
    name = _year(exclusions.holidays, day.year).holidays.get(day)
    return None if name is None else f"{day}: {name} ({exclusions.holidays})"


def _is_nth_business_day(numbers: Sequence[int], exclusions: Exclusions, day: date, calendars: Calendars) -> bool:
    if not numbers:
        return False
    days = business_days(exclusions, day.year, day.month, calendars)
    if day not in days:
        return False
    place = days.index(day)
    return place + 1 in numbers or place - len(days) in numbers


def _weekend(exclusions: Exclusions, year: int) -> frozenset[int]:
    """Return the weekend days of the country of the holidays, or Saturday and Sunday."""
    return _WEEKEND if exclusions.holidays is None else _year(exclusions.holidays, year).weekend


@lru_cache(maxsize=1024)
def _dates(texts: tuple[str, ...]) -> frozenset[date]:
    try:
        return frozenset(date.fromisoformat(text) for text in texts)
    except ValueError as exc:
        raise DefinitionError(f'dates {", ".join(texts)[:200]}: {exc}; use days such as "2026-12-24"') from exc


@lru_cache(maxsize=256)
def _weekdays(names: tuple[str, ...]) -> frozenset[int]:
    return frozenset(_weekday(name) for name in names)


def _weekday(name: str) -> int:
    wanted = name.strip().lower()
    for number, full in enumerate(_WEEKDAYS):
        if wanted in (full, full[:3]):
            return number
    raise DefinitionError(f"days {name!r} is not a weekday: use {', '.join(_WEEKDAYS)}, or their first three letters")


@lru_cache(maxsize=4096)
def _year(name: str, year: int) -> _Year:
    """Return one year of a country ("DE"), a region ("DE-BY") or a market ("NYSE").

    Copied a year at a time: the tables of the library grow while they are read.
    """
    # Imported on first use: the library loads all countries.
    import holidays

    country, _, part = name.partition("-")
    try:
        calendar = holidays.country_holidays(country, subdiv=part or None, years=year, expand=False)
    except NotImplementedError:
        calendar = _market(name, year)
    return _Year(dict(calendar.items()), frozenset(int(day) for day in calendar.weekend))


def _market(name: str, year: int) -> HolidayBase:
    import holidays

    try:
        return holidays.financial_holidays(name, years=year, expand=False)
    except NotImplementedError as exc:
        raise DefinitionError(
            f'exclude.holidays {name!r}: no such holidays; use a country ("DE", "US"), a part of one ("DE-BY") '
            'or a market ("NYSE", "ECB")'
        ) from exc
