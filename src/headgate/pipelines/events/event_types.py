"""Event types: the declaration of an event, with four constructors by severity and routing."""

from __future__ import annotations

import enum
import string
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.errors import InvalidPayloadError
from headgate.notify.enums import DefaultRoute, Severity
from headgate.pipelines.events.names import EventName

# Placeholders of every text besides the fields of its event.
SUBJECTS: Final = frozenset({"pipeline", "schedule", "date"})


class Scope(enum.StrEnum):
    """The subject of an alert: a period of a pipeline, the pipeline, or the installation."""

    PERIOD = "period"
    PIPELINE = "pipeline"
    INSTALLATION = "installation"


class EventType(Struct, frozen=True, kw_only=True):
    """One kind of event. `fields` must be in its detail; more may be.

    `text` is the line for people, with `{fields}` in it. `resolves` are the event types whose alerts it resolves.
    """

    name: EventName
    severity: Severity
    alerts: bool
    route: DefaultRoute
    text: str
    hint: str
    fields: tuple[str, ...]
    scope: Scope
    resolves: tuple[EventName, ...]

    def check(self, detail: Mapping[str, Any]) -> None:
        """Raise `InvalidPayloadError` if a field is missing."""
        missing = [name for name in self.fields if name not in detail]
        if missing:
            raise InvalidPayloadError(f"event {self.name}: its detail has no {missing}; it needs {list(self.fields)}")

    def line(self, pipeline_id: str, schedule_id: str, date: str, detail: Mapping[str, Any]) -> str:
        """Return the text with its fields filled in. Raises `InvalidPayloadError` if a field is missing."""
        self.check(detail)
        values = {name: detail[name] for name in self.fields if name not in SUBJECTS}
        return self.text.format(**values, pipeline=pipeline_id, schedule=schedule_id or "-", date=date or "-")

    def key(self, pipeline_id: str, schedule_id: str, date: str) -> str:
        """Return the alert key: the same for all events about the same subject."""
        match self.scope:
            case Scope.PERIOD:
                return f"{self.name}#{pipeline_id}#{schedule_id}#{date}"
            case Scope.PIPELINE:
                return f"{self.name}#{pipeline_id}"
            case Scope.INSTALLATION:
                return str(self.name)

    def placeholders(self) -> frozenset[str]:
        """Return the placeholders of the text."""
        return frozenset(name for _, name, _, _ in string.Formatter().parse(self.text) if name)


def page(
    name: EventName,
    text: str,
    hint: str,
    *fields: str,
    scope: Scope = Scope.PERIOD,
    resolves: tuple[EventName, ...] = (),
) -> EventType:
    """Declare an event that pages someone."""
    return _type(name, Severity.CRITICAL, DefaultRoute.PAGE, text, hint, fields, scope, resolves)


def warn(
    name: EventName,
    text: str,
    hint: str,
    *fields: str,
    scope: Scope = Scope.PERIOD,
    resolves: tuple[EventName, ...] = (),
) -> EventType:
    """Declare an event to look at within the day."""
    return _type(name, Severity.WARNING, DefaultRoute.NOTIFY, text, hint, fields, scope, resolves)


def inform(
    name: EventName,
    text: str,
    hint: str,
    *fields: str,
    scope: Scope = Scope.PERIOD,
    resolves: tuple[EventName, ...] = (),
) -> EventType:
    """Declare an event that people want to know although nothing is wrong."""
    return _type(name, Severity.INFO, DefaultRoute.NOTIFY, text, hint, fields, scope, resolves)


def note(
    name: EventName,
    text: str,
    *fields: str,
    severity: Severity = Severity.INFO,
    scope: Scope = Scope.PERIOD,
    resolves: tuple[EventName, ...] = (),
) -> EventType:
    """Declare an event that is stored, and sent only to channels that name it."""
    return EventType(
        name=name,
        severity=severity,
        alerts=False,
        route=DefaultRoute.LOG,
        text=text,
        hint="",
        fields=fields,
        scope=scope,
        resolves=resolves,
    )


def _type(
    name: EventName,
    severity: Severity,
    route: DefaultRoute,
    text: str,
    hint: str,
    fields: tuple[str, ...],
    scope: Scope,
    resolves: tuple[EventName, ...],
) -> EventType:
    return EventType(
        name=name,
        severity=severity,
        alerts=True,
        route=route,
        text=text,
        hint=hint,
        fields=fields,
        scope=scope,
        resolves=resolves,
    )
