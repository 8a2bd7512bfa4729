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
from headgate.asl.model.transitions import all_machines, states_of

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

_PREFIX: Final = "States."
_NAMES: Final = frozenset(
    value for value in vars(errors).values() if isinstance(value, str) and value.startswith(_PREFIX)
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


def check_error_names(location: SourceLocation, definition: Json) -> None:
    """Warn of error names that resemble a reserved one, at any depth.

    AWS reserves the prefix `States.` and accepts any name with it. A name that no Fail of the machine has is probably
    mistyped, and never matches.
    """
    machines = list(all_machines(definition))
    raised = {state.get("Error") for each in machines for state in states_of(each.machine).values()}
    for nested in machines:
        for name, state in states_of(nested.machine).items():
            for field in ("Retry", "Catch"):
                entries = state.get(field)
                for index, entry in enumerate(entries if isinstance(entries, list) else ()):
                    names = entry.get("ErrorEquals") if isinstance(entry, dict) else None
                    for place, error in enumerate(names if isinstance(names, list) else ()):
                        if isinstance(error, str) and error.startswith(_PREFIX) and error not in _NAMES | raised:
                            steps = (*nested.steps, "States", name, field, index, "ErrorEquals", place)
                            _warn_of_name(location.at(*steps), error)


def _warn_of_name(location: SourceLocation, name: str) -> None:
    # The prefix is the same in all of them and says nothing.
    meant = nearest(name.removeprefix(_PREFIX), [known.removeprefix(_PREFIX) for known in _NAMES])
    if meant is not None:
        location.warn(ProblemCode.UNKNOWN_ERROR, f"no state fails with {name}", f"did you mean {_PREFIX}{meant}?")


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
    if errors.ALL in names and (len(names) > 1 or not is_last):
        fact = f"{errors.ALL} is listed with other names" if len(names) > 1 else f"entries follow {errors.ALL}"
        place.report(ProblemCode.MISPLACED_CATCH_ALL, fact, f"write {errors.ALL} alone, and in the last entry")


def _check_delays(location: SourceLocation, retrier: Mapping[str, Json]) -> None:
    longest, interval = retrier.get("MaxDelaySeconds"), retrier.get("IntervalSeconds", _INTERVAL_SECONDS)
    if isinstance(longest, int) and isinstance(interval, int) and 0 < longest <= interval:
        fact = f"it is {longest}, and IntervalSeconds is {interval}"
        location.at("MaxDelaySeconds").report(ProblemCode.OUT_OF_RANGE, fact, "write more than IntervalSeconds")
