"""Retry and Catch fields: reports invalid entries, error names and delays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headgate.asl import errors
from headgate.asl.compile.field_checks import (
    Check,
    anything,
    assignment,
    fields,
    integer,
    jsonata,
    number,
    one_of,
    or_null,
    reference,
    template,
    text,
    wrong_type,
)
from headgate.asl.compile.problems import ProblemCode, SourceLocation, nearest
from headgate.asl.expressions.scope import Json
from headgate.asl.model.definition import Jitter, Language

# AWS: "greater than 0 and less than 31622400", which is a leap year.
_DELAY_SECONDS_MAX: Final = 31_622_399

_RETRIER: Final[Mapping[str, Check]] = {
    "ErrorEquals": anything,
    "IntervalSeconds": integer(1),
    "MaxAttempts": integer(0),
    "BackoffRate": number(1.0),
    "MaxDelaySeconds": integer(1, _DELAY_SECONDS_MAX),
    "JitterStrategy": one_of(*Jitter),
}
_CATCHERS: Final[Mapping[Language, Mapping[str, Check]]] = {
    Language.JSONPATH: {
        "ErrorEquals": anything,
        "Next": text,
        "ResultPath": or_null(reference),
        "Assign": assignment(template),
    },
    Language.JSONATA: {"ErrorEquals": anything, "Next": text, "Output": jsonata, "Assign": assignment(jsonata)},
}
_INTERVAL_SECONDS: Final = 1

_NAMES: Final = frozenset(
    value for value in vars(errors).values() if isinstance(value, str) and value.startswith("States.")
)


def check_retry(location: SourceLocation, value: Json) -> None:
    """Report the problems of a state's Retry."""
    for place, retrier, is_last in _entries(location, value):
        fields(place, retrier, _RETRIER, ("ErrorEquals",))
        if isinstance(retrier, dict):
            _check_errors(place, retrier, is_last=is_last)
            _check_delays(place, retrier)


def check_catch(location: SourceLocation, value: Json, language: Language) -> None:
    """Report the problems of a state's Catch."""
    for place, catcher, is_last in _entries(location, value):
        fields(place, catcher, _CATCHERS[language], ("ErrorEquals", "Next"))
        if isinstance(catcher, dict):
            _check_errors(place, catcher, is_last=is_last)


def _entries(location: SourceLocation, value: Json) -> list[tuple[SourceLocation, Json, bool]]:
    if not isinstance(value, list):
        wrong_type(location, value, "an array of objects")
        return []
    return [(location.at(index), entry, index == len(value) - 1) for index, entry in enumerate(value)]


def _check_errors(location: SourceLocation, entry: Mapping[str, Json], *, is_last: bool) -> None:
    if "ErrorEquals" not in entry:
        return
    place, names = location.at("ErrorEquals"), entry["ErrorEquals"]
    if not isinstance(names, list):
        wrong_type(place, names, "an array of error names")
        return
    if not names:
        place.report(
            ProblemCode.EMPTY, "it names no error", f"write at least one name, or {errors.ALL} for every error"
        )
    for index, name in enumerate(names):
        if not isinstance(name, str):
            wrong_type(place.at(index), name, "the name of an error")
        else:
            _check_name(place.at(index), name)
    if errors.ALL in names and (len(names) > 1 or not is_last):
        fact = f"{errors.ALL} is listed with other names" if len(names) > 1 else f"entries follow {errors.ALL}"
        place.report(ProblemCode.MISPLACED_CATCH_ALL, fact, f"write {errors.ALL} alone, and in the last entry")


def _check_name(location: SourceLocation, name: str) -> None:
    # AWS reserves this prefix. A name that resembles a reserved one is a typing error and would never match.
    if name.startswith("States.") and name not in _NAMES:
        meant = nearest(name, _NAMES)
        if meant is not None:
            location.report(ProblemCode.UNKNOWN_ERROR, f"no state fails with {name}", f"did you mean {meant}?")


def _check_delays(location: SourceLocation, retrier: Mapping[str, Json]) -> None:
    longest, interval = retrier.get("MaxDelaySeconds"), retrier.get("IntervalSeconds", _INTERVAL_SECONDS)
    if isinstance(longest, int) and isinstance(interval, int) and 0 < longest <= interval:
        fact = f"it is {longest}, and IntervalSeconds is {interval}"
        location.at("MaxDelaySeconds").report(ProblemCode.OUT_OF_RANGE, fact, "write more than IntervalSeconds")
