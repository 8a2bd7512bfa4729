"""Templates: fill `${date}` and other names, and references to secrets, into a trigger's config.

The date is that of the run, never today's. `$${` stands for `${`. Unknown names, and date parts that the pipeline's
period does not have, are refused when the definition is loaded.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from headgate.errors import DefinitionError
from headgate.triggers.config import FieldProblem
from headgate.triggers.contract import FailureCategory, TriggerFailedError, TriggerOrder
from headgate.triggers.secret_sources import ENV, FILE, SecretSources

_REFERENCE: Final = re.compile(r"\$(\$?)\{([^{}]*)\}")
_OPEN: Final = re.compile(r"(?<!\$)\$\{(?![^{}]*\})")
_DATE: Final = re.compile(
    r"(?P<year>\d{4})-(?:W(?P<week>\d{2})|(?P<month>\d{2})(?:-(?P<day>\d{2})(?:T(?P<hour>\d{2})(?::(?P<minute>\d{2}))?)?)?)"
)
_PARTS: Final = ("year", "week", "month", "day", "hour", "minute")
# Date parts, with examples for an hourly run.
DATE_NAMES: Final = ("date", "date_compact", "day_compact", *_PARTS)
# Only of jobs that call back.
CALLBACK_NAMES: Final = ("callback_url", "callback_token")
NAMES: Final = (*DATE_NAMES, "schedule", "pipeline", "run_id", "attempt", *CALLBACK_NAMES)
_SECRET: Final = (ENV, FILE)


def date_values(date: str) -> dict[str, str]:
    """Return the values of a run's date: itself, without separators, its day as YYYYMMDD, and its parts."""
    match = _DATE.fullmatch(date)
    parts = {} if match is None else {name: part for name, part in match.groupdict().items() if part is not None}
    values = {"date": date, "date_compact": re.sub(r"[-:]", "", date), **parts}
    if "day" in parts:
        values["day_compact"] = parts["year"] + parts["month"] + parts["day"]
    return values


def order_values(order: TriggerOrder) -> dict[str, str]:
    """Return all values that templates of an order can name, except secrets."""
    values = date_values(order.date)
    values |= {
        "schedule": order.schedule,
        "pipeline": order.pipeline,
        "run_id": order.run_id,
        "attempt": str(order.attempt),
    }
    if order.callback_url is not None:
        values["callback_url"] = order.callback_url
    if order.callback_token is not None:
        values["callback_token"] = order.callback_token
    return values


def check(
    config: dict[str, Any],
    secret_fields: frozenset[str],
    secrets: SecretSources,
    *,
    date_example: str | None = None,
    late: frozenset[str] = frozenset(),
) -> None:
    """Raise `DefinitionError` for a template that can never be filled in, naming its field.

    With `date_example`, a date of the pipeline's period, date parts that it lacks are refused too. `late` are names
    that the trigger fills in itself.
    """
    lacking = set() if date_example is None else set(DATE_NAMES) - date_values(date_example).keys()
    for field, text in _texts(config, ""):
        if _OPEN.search(text):
            raise _problem(field, "${ is not closed", allowed="write ${date}, or $${ for the characters themselves")
        for escape, name in _REFERENCE.findall(text):
            if not escape and name not in late:
                _check_name(field, name, secret_fields, secrets, lacking)


def _check_name(
    field: str, name: str, secret_fields: frozenset[str], secrets: SecretSources, lacking: set[str]
) -> None:
    source, colon, reference = name.partition(":")
    if colon and source in _SECRET:
        if field.split(".")[0].split("[")[0] not in secret_fields:
            allowed = ", ".join(sorted(secret_fields)) or "none"
            raise _problem(field, "no secrets here", allowed=f"of this kind, fields that may have them: {allowed}")
        try:
            secrets.check(source, reference)
        except DefinitionError as exc:
            raise _problem(field, str(exc)) from exc
    elif name not in NAMES:
        known = ", ".join(f"${{{known}}}" for known in NAMES)
        near = difflib.get_close_matches(name, NAMES, 1)
        raise _problem(
            field,
            f"there is no ${{{name}}}",
            allowed=f"use one of {known}, ${{env:NAME}} or ${{file:NAME}}",
            suggestion=f"${{{near[0]}}}" if near else "",
        )
    elif name in lacking:
        raise _problem(field, f"dates of this pipeline's period have no {name}, so ${{{name}}} has no value")


class TemplateError(DefinitionError):
    """A template can never be filled in."""

    def __init__(self, problem: FieldProblem) -> None:
        super().__init__(problem.text())
        self.problem = problem


def _problem(field: str, fact: str, *, allowed: str = "", suggestion: str = "") -> TemplateError:
    steps = re.findall(r"[^.\[\]]+", field)
    path = tuple(int(step) if step.isdigit() else step for step in steps)
    return TemplateError(FieldProblem(path=path, fact=fact, allowed=allowed, suggestion=suggestion))


def render(
    config: dict[str, Any], values: dict[str, str], read_secret: Callable[[str, str], str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a copy of the config with templates filled in, and the secrets that are now in it.

    Raises `TriggerFailedError` for a name without a value.
    """
    revealed: list[str] = []

    def value_of(match: re.Match[str]) -> str:
        if match.group(1):
            return "${" + match.group(2) + "}"
        source, colon, reference = match.group(2).partition(":")
        if colon and source in _SECRET:
            revealed.append(read_secret(source, reference))
            return revealed[-1]
        if match.group(2) not in values:
            raise TriggerFailedError(
                f"${{{match.group(2)}}}: this run has none (its date is {values.get('date', '?')})",
                FailureCategory.PERMANENT,
            )
        return values[match.group(2)]

    def filled(value: Any) -> Any:  # noqa: ANN401 - any JSON
        if isinstance(value, str):
            return _REFERENCE.sub(value_of, value)
        if isinstance(value, dict):
            return {name: filled(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [filled(inner) for inner in value]
        return value

    return {name: filled(value) for name, value in config.items()}, tuple(dict.fromkeys(revealed))


def _texts(value: Any, field: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - any JSON
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts(inner, f"{field}.{name}" if field else str(name))
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from _texts(inner, f"{field}[{place}]")
