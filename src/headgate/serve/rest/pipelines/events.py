"""Events of pipelines over HTTP, of one or of all; and how expectations of them came out."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from headgate.durable.bus.bus import Bus
from headgate.durable.bus.event_log import StoredEvent, first_id
from headgate.durable.model.records import instant
from headgate.errors import InvalidPayloadError
from headgate.notify.enums import Severity
from headgate.notify.notices import TYPE_PREFIX, Notice, event_type
from headgate.pipelines.definition.problems import nearest
from headgate.pipelines.enums import ExpectationKind, ExpectationVerdict
from headgate.pipelines.events.names import ALIASES, EventName
from headgate.pipelines.events.outbox import StoredPipelineEvent
from headgate.pipelines.service import PipelineService
from headgate.pipelines.watchdog.verdicts import StoredVerdict, Verdicts
from headgate.serve.http.operations import Answer, Call, Operation
from headgate.serve.rest.durable.models import Limit
from headgate.serve.rest.pipelines.models import ScheduleName, shown
from headgate.serve.rest.pipelines.permissions import READ

Moment = Annotated[datetime, Meta(tz=True, examples=["2026-03-03T06:00:00Z"])]
Name = Annotated[str, Meta(max_length=60, examples=["JOB_FAILED", "SLA_BREACH"])]
# What anyone may have put on the bus under such a type is not one of ours.
_NOTICE: Final = msgspec.json.Decoder(Notice)


class EventsQuery(Struct, forbid_unknown_fields=True):
    """Which events: of a time, of any of some names. With names, a page is what remains of a page of all."""

    since: Moment | None = None
    until: Moment | None = None
    name: list[Name] = []
    limit: Limit = 100
    cursor: str | None = None
    oldest_first: bool = False


class AllEventsQuery(Struct, forbid_unknown_fields=True):
    """Which events: up to `limit` after a cursor or from a moment on, or else the latest."""

    since: Moment | None = None
    name: Name | None = None
    limit: Limit = 100
    cursor: str | None = None


class ExpectationsQuery(Struct, forbid_unknown_fields=True):
    """Expectations that came out so, or all of one pipeline."""

    verdict: ExpectationVerdict | None = None
    pipeline: str | None = None
    schedule: ScheduleName | None = None
    since: Moment | None = None
    limit: Limit = 100
    cursor: str | None = None


class PipelineEventView(Struct, frozen=True, kw_only=True):
    """Something that happened. `text` is the line that people read."""

    event_id: str
    name: str
    pipeline_id: str
    schedule_id: str
    date: str
    run_id: str
    severity: Severity
    timestamp: str
    text: str
    message: str
    detail: dict[str, Any]


class PipelineEventPage(Struct, frozen=True):
    """Some events. A page may be short, or empty, although there are more: the cursor tells."""

    events: list[PipelineEventView]
    cursor: str | None = None


class ExpectationView(Struct, frozen=True, kw_only=True):
    """How something that was expected by a time came out. `margin_seconds` is how long before its time it happened."""

    pipeline_id: str
    schedule_id: str
    date: str
    kind: ExpectationKind
    verdict: ExpectationVerdict
    due_at: str
    judged_at: str | None
    margin_seconds: float | None
    warned: bool
    reason: str


class ExpectationPage(Struct, frozen=True):
    """Some expectations, those that were due last first."""

    expectations: list[ExpectationView]
    cursor: str | None = None


def event_operations(pipelines: PipelineService, bus: Bus) -> list[Operation]:
    """Return what can be asked of events and expectations."""
    return _Events(pipelines, bus).operations()


class _Events:
    def __init__(self, pipelines: PipelineService, bus: Bus) -> None:
        self._definitions = pipelines.definitions
        self._events = pipelines.events
        self._bus = bus
        self._verdicts = Verdicts(pipelines.store, pipelines.clock, pipelines.event_writer)

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET", "/pipelines/{id}/events", "List what happened to it, the latest first", self.ls,
                {200: PipelineEventPage}, query=EventsQuery, rule=READ,
            ),
            Operation(
                "GET", "/pipeline-events", "List what happened to all pipelines, in order", self.ls_all,
                {200: PipelineEventPage}, query=AllEventsQuery, rule=READ,
            ),
            Operation(
                "GET", "/expectations", "List how expectations came out", self.expectations, {200: ExpectationPage},
                query=ExpectationsQuery, rule=READ,
            ),
        ]  # fmt: skip

    def ls(self, call: Call[None, EventsQuery]) -> Answer:
        asked = call.query
        page = self._events.ls(
            call.path["id"],
            since_ms=_ms(asked.since),
            until_ms=_ms(asked.until),
            names=[_name(each).value for each in asked.name],
            limit=asked.limit,
            cursor=asked.cursor,
            descending=not asked.oldest_first,
        )
        if not page.events and asked.cursor is None and page.cursor is None:
            # What is deleted has events still; what has none may be a wrong name.
            self._definitions.get(call.path["id"])
        return Answer(PipelineEventPage([_view(each) for each in page.events], page.cursor))

    def ls_all(self, call: Call[None, AllEventsQuery]) -> Answer:
        asked = call.query
        if asked.cursor is not None and asked.since is not None:
            raise InvalidPayloadError("since: it is given with a cursor; give one of them")
        since_ms = _ms(asked.since)
        after = asked.cursor if since_ms is None else first_id(since_ms)
        wanted = f"{TYPE_PREFIX}*" if asked.name is None else event_type(_name(asked.name).value)
        found = self._bus.tail(after, type=wanted, limit=asked.limit)
        views = [view for view in map(_on_bus, found) if view is not None]
        return Answer(PipelineEventPage(views, found[-1].event_id if found else after))

    def expectations(self, call: Call[None, ExpectationsQuery]) -> Answer:
        asked = call.query
        if asked.pipeline is None:
            if asked.verdict is None:
                raise InvalidPayloadError(
                    f"verdict: it is missing; name a pipeline, or one of {', '.join(ExpectationVerdict)}"
                )
            page = self._verdicts.ls_by_verdict(
                asked.verdict, since=asked.since, limit=asked.limit, cursor=asked.cursor
            )
        else:
            self._definitions.get(asked.pipeline)
            page = self._verdicts.ls(
                asked.pipeline, schedule_id=asked.schedule or "", limit=asked.limit, cursor=asked.cursor
            )
        found = [shown(ExpectationView, each) for each in page.verdicts if _is_wanted(each, asked)]
        return Answer(ExpectationPage(found, page.cursor))


def _view(event: StoredPipelineEvent) -> PipelineEventView:
    return shown(PipelineEventView, event)


def _on_bus(stored: StoredEvent) -> PipelineEventView | None:
    try:
        notice = _NOTICE.decode(msgspec.json.encode(stored.event.data))
    except msgspec.ValidationError:
        return None
    return shown(PipelineEventView, notice, name=notice.event, timestamp=instant(notice.at_ms))


def _name(given: str) -> EventName:
    wanted = given.strip().upper()
    known = ALIASES.get(wanted)
    if known is not None:
        return known
    try:
        return EventName(wanted)
    except ValueError as exc:
        near = nearest(wanted, [each.value for each in EventName])
        hint = f"; did you mean {near}?" if near else "; the catalogue of events has the names"
        raise InvalidPayloadError(f"name {given[:60]!r}: there is no such event{hint}") from exc


def _is_wanted(verdict: StoredVerdict, asked: ExpectationsQuery) -> bool:
    if asked.verdict is not None and verdict.verdict is not asked.verdict:
        return False
    if asked.schedule is not None and verdict.schedule_id != asked.schedule:
        return False
    since_ms = _ms(asked.since)
    return since_ms is None or verdict.due_at >= instant(since_ms)


def _ms(moment: datetime | None) -> int | None:
    # Nothing was kept before 1970, and keys have no digits for it.
    return None if moment is None else max(0, round(moment.timestamp() * 1000))
