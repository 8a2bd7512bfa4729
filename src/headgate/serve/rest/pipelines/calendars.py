"""Calendar API: named calendars of days on which pipelines do not run."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import quote

from msgspec import Meta, Struct

from headgate.errors import ConflictError
from headgate.pipelines.catalog.calendar_store import CalendarStore, StoredCalendar
from headgate.pipelines.catalog.store import PipelineStore
from headgate.pipelines.definition.model import Exclusions
from headgate.serve.http.operations import PREFIX, Answer, Call, NoQuery, Operation
from headgate.serve.http.preconditions import etag, matching
from headgate.serve.http.problem import Problem
from headgate.serve.rest.pipelines.permissions import DEFINE, READ

_NAMED_MAX: Final = 5


class PutCalendar(Struct, forbid_unknown_fields=True, kw_only=True):
    """Excluded days; the rules add up. A calendar may extend another."""

    weekends: bool = False
    holidays: Annotated[str, Meta(max_length=40, examples=["DE", "DE-BY", "NYSE"])] | None = None
    days: Annotated[list[str], Meta(max_length=7, examples=[["friday"]])] = []
    dates: Annotated[list[str], Meta(max_length=5_000, examples=[["2026-12-24", "2026-12-31"]])] = []
    calendar: Annotated[str, Meta(max_length=80, examples=["company"])] | None = None


class CalendarView(Struct, frozen=True, kw_only=True):
    """A calendar and its last change."""

    name: str
    version: int
    weekends: bool
    holidays: str | None
    days: list[str]
    dates: list[str]
    calendar: str | None
    by: str
    at: str


class CalendarList(Struct, frozen=True):
    """All calendars, by name."""

    calendars: list[CalendarView]


def calendar_operations(calendars: CalendarStore, definitions: PipelineStore) -> list[Operation]:
    """Return the operations on calendars."""
    return _Calendars(calendars, definitions).operations()


class _Calendars:
    def __init__(self, calendars: CalendarStore, definitions: PipelineStore) -> None:
        self._calendars = calendars
        self._definitions = definitions

    def operations(self) -> list[Operation]:
        one = "/calendars/{name}"
        kept = {200: CalendarView, 201: CalendarView, 412: Problem}
        return [
            Operation("GET", "/calendars", "List calendars", self.ls, {200: CalendarList}, rule=READ),
            Operation("GET", one, "Show a calendar", self.show, {200: CalendarView}, rule=READ),
            Operation("PUT", one, "Store a calendar", self.put, kept, body=PutCalendar, rule=DEFINE),
            Operation(
                "DELETE", one, "Delete an unused calendar", self.delete,
                {204: None, 409: Problem, 412: Problem}, rule=DEFINE,
            ),
        ]  # fmt: skip

    def ls(self, _call: Call[None, NoQuery]) -> Answer:
        return Answer(CalendarList([_view(each) for each in self._calendars.ls()]))

    def show(self, call: Call[None, NoQuery]) -> Answer:
        found = self._calendars.get(call.path["name"])
        return Answer(_view(found), headers=etag(found.version))

    def put(self, call: Call[PutCalendar, NoQuery]) -> Answer:
        name, body = call.path["name"], call.body
        exclusions = Exclusions(
            weekends=body.weekends,
            holidays=body.holidays,
            days=tuple(body.days),
            dates=tuple(body.dates),
            calendar=body.calendar,
        )
        before = self._calendars.find(name)
        kept = matching(
            call.headers,
            None,
            lambda version: self._calendars.put(name, exclusions, call.principal.name, version=version),
        )
        is_new = before is None or before.version != kept.version
        headers = {**etag(kept.version), "location": f"{PREFIX}/calendars/{quote(name, safe='')}"}
        return Answer(_view(kept), 201 if is_new else 200, headers)

    def delete(self, call: Call[None, NoQuery]) -> Answer:
        name = call.path["name"]
        self._calendars.get(name)
        users = self._users(name)
        if users:
            more = f" and {len(users) - _NAMED_MAX} more" if len(users) > _NAMED_MAX else ""
            raise ConflictError(f"calendar {name}: {', '.join(users[:_NAMED_MAX])}{more} use it; change those first")
        matching(
            call.headers,
            None,
            lambda version: self._calendars.delete(name, call.principal.name, version=version),
        )
        return Answer(status=204)

    def _users(self, name: str) -> list[str]:
        """Return the pipelines and calendars that use this calendar."""
        calendars = [f"calendar {each.name}" for each in self._calendars.ls() if each.exclusions.calendar == name]
        pipelines = [
            f"pipeline {stored.pipeline.id}"
            for stored in self._definitions.all().pipelines
            if any(schedule.exclude.calendar == name for schedule in stored.pipeline.schedules)
        ]
        return [*calendars, *pipelines]


def _view(calendar: StoredCalendar) -> CalendarView:
    days = calendar.exclusions
    return CalendarView(
        name=calendar.name,
        version=calendar.version,
        weekends=days.weekends,
        holidays=days.holidays,
        days=list(days.days),
        dates=list(days.dates),
        calendar=days.calendar,
        by=calendar.by,
        at=calendar.at,
    )
