"""Pipeline event API: events of one or all pipelines, and results of expectations."""

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
from headgate.pipelines.catalog.selection import selector
from headgate.pipelines.definition.problems import nearest
from headgate.pipelines.enums import ExpectationKind, ExpectationVerdict
from headgate.pipelines.events.names import ALIASES, EventName
from headgate.pipelines.events.outbox import StoredPipelineEvent
from headgate.pipelines.service import PipelineService
from headgate.pipelines.watchdog.verdicts import StoredVerdict, Verdicts
from headgate.serve.http.operations import Answer, Call, Operation
from headgate.serve.http.views import shown
from headgate.serve.rest.parameters import Cursor, Limit, Moment
from headgate.serve.rest.pipelines.lists import Owner, Tier
from headgate.serve.rest.pipelines.models import ScheduleName
from headgate.serve.rest.pipelines.permissions import READ

Name = Annotated[str, Meta(max_length=60, examples=["JOB_FAILED", "SLA_BREACH"])]
# Users may emit events of such a type; only ours have this source.
_NOTICE: Final = msgspec.json.Decoder(Notice)


class EventsQuery(Struct, forbid_unknown_fields=True):
    """Filter by time and names. With names, a page is filtered after reading and may be short."""

    since: Moment | None = None
    until: Moment | None = None
    name: list[Name] = []
    limit: Limit = 100
    cursor: Cursor | None = None
    oldest_first: bool = False


class AllEventsQuery(Struct, forbid_unknown_fields=True):
    """Up to `limit` events after a cursor or from a time on, or else the latest."""

    since: Moment | None = None
    name: Name | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


class ExpectationsQuery(Struct, forbid_unknown_fields=True):
    """Expectations of all pipelines with a verdict, or all of one pipeline."""

    owner: Owner | None = None
    tier: Tier | None = None
    verdict: ExpectationVerdict | None = None
    pipeline: str | None = None
    schedule: ScheduleName | None = None
    since: Moment | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


class PipelineEventView(Struct, frozen=True, kw_only=True):
    """An event. `text` is its line for people."""

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
    """A page of events. It may be short or empty and still have a cursor."""

    events: list[PipelineEventView]
    cursor: str | None = None


class ExpectationView(Struct, frozen=True, kw_only=True):
    """Result of an expectation. `margin_seconds` is the time left before the deadline."""

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
    """A page of expectations, latest due first."""

    expectations: list[ExpectationView]
    cursor: str | None = None


def event_operations(pipelines: PipelineService, bus: Bus) -> list[Operation]:
    """Return the operations on events and expectations."""
    return _Events(pipelines, bus).operations()


class _Events:
    def __init__(self, pipelines: PipelineService, bus: Bus) -> None:
        self._definitions = pipelines.definitions
        self._known = pipelines.known
        self._events = pipelines.events
        self._bus = bus
        self._verdicts = Verdicts(pipelines.store, pipelines.clock, pipelines.event_writer)

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET", "/pipelines/{id}/events", "List events of a pipeline, latest first", self.ls,
                {200: PipelineEventPage}, query=EventsQuery, rule=READ,
            ),
            Operation(
                "GET", "/pipeline-events", "List events of all pipelines, in order", self.ls_all,
                {200: PipelineEventPage}, query=AllEventsQuery, rule=READ,
            ),
            Operation(
                "GET", "/expectations", "List results of expectations", self.expectations, {200: ExpectationPage},
                query=ExpectationsQuery, rule=READ,
            ),
        ]  # fmt: skip

    def ls(self, call: Call[None, EventsQuery]) -> Answer:
        query = call.query
        page = self._events.ls(
            call.path["id"],
            since_ms=_ms(query.since),
            until_ms=_ms(query.until),
            names=[_name(each).value for each in query.name],
            limit=query.limit,
            cursor=query.cursor,
            descending=not query.oldest_first,
        )
        if not page.events and query.cursor is None and page.cursor is None:
            # A deleted pipeline still has events; a pipeline without events may be a wrong name.
            self._definitions.get(call.path["id"])
        return Answer(PipelineEventPage([_view(each) for each in page.events], page.cursor))

    def ls_all(self, call: Call[None, AllEventsQuery]) -> Answer:
        query = call.query
        if query.cursor is not None and query.since is not None:
            raise InvalidPayloadError("since: cannot be combined with a cursor")
        since_ms = _ms(query.since)
        after = query.cursor if since_ms is None else first_id(since_ms)
        wanted = f"{TYPE_PREFIX}*" if query.name is None else event_type(_name(query.name).value)
        found = self._bus.tail(after, type=wanted, limit=query.limit)
        views = [view for view in map(_on_bus, found) if view is not None]
        return Answer(PipelineEventPage(views, found[-1].event_id if found else after))

    def expectations(self, call: Call[None, ExpectationsQuery]) -> Answer:
        query = call.query
        if query.pipeline is None:
            if query.verdict is None:
                raise InvalidPayloadError(
                    f"verdict: missing; name a pipeline, or one of {', '.join(ExpectationVerdict)}"
                )
            page = self._verdicts.ls_by_verdict(
                query.verdict, since=query.since, limit=query.limit, cursor=query.cursor
            )
        else:
            self._definitions.get(query.pipeline)
            page = self._verdicts.ls(
                query.pipeline, schedule_id=query.schedule or "", limit=query.limit, cursor=query.cursor
            )
        is_selected = selector(self._known, owner=query.owner, tier=query.tier)
        wanted = [each for each in page.verdicts if _is_wanted(each, query) and is_selected(each.pipeline_id)]
        found = [shown(ExpectationView, each) for each in wanted]
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
        hint = f"; did you mean {near}?" if near else "; see the event catalogue"
        raise InvalidPayloadError(f"name {given[:60]!r}: unknown event{hint}") from exc


def _is_wanted(verdict: StoredVerdict, query: ExpectationsQuery) -> bool:
    if query.verdict is not None and verdict.verdict is not query.verdict:
        return False
    if query.schedule is not None and verdict.schedule_id != query.schedule:
        return False
    since_ms = _ms(query.since)
    return since_ms is None or verdict.due_at >= instant(since_ms)


def _ms(moment: datetime | None) -> int | None:
    # Keys have no digits for times before 1970.
    return None if moment is None else max(0, round(moment.timestamp() * 1000))
