"""Stuck executions as dead letters: what waits for a mended code, since when, and how it is made to go on."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from headgate import typed_decode
from headgate.durable.engine.stuck import STUCK_EVENT
from headgate.durable.model.duration import optional_seconds
from headgate.durable.model.history import Status
from headgate.durable.model.records import Execution, instant
from headgate.durable.service import Service
from headgate.serve.http.raw_json import ErrorView, error_view
from headgate.serve.rest.durable.models import Duration

# How many of the events that tell of executions which got stuck are looked through for when that was.
_EVENTS_MAX: Final = 1000


class StuckView(Struct, frozen=True):
    """An execution that is stuck. `since` is empty if that was so long ago that nothing tells of it any more."""

    id: str
    workflow: str
    failures: int
    since: str
    error: ErrorView
    # What makes it go on, once its code is mended.
    redrive: str


class StuckPage(Struct, frozen=True):
    """Some executions that are stuck, the latest started first, and the cursor of the next page if there is one."""

    executions: list[StuckView]
    cursor: str | None = None


class _Told(Struct):
    subject: str = ""


class StuckLetters:
    """Lists what is stuck."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def page(
        self, *, older_than: Duration | None, newer_than: Duration | None, limit: int, cursor: str | None
    ) -> StuckPage:
        """Return those that have been stuck for so long, and no longer. Raises `CursorError`."""
        listing = self._service.client.list(status=Status.STUCK, limit=limit, cursor=cursor)
        since = self._since() if listing.executions else {}
        now_ms = int(self._service.clock.seconds() * 1000)
        oldest = optional_seconds(newer_than, name="newer_than")
        youngest = optional_seconds(older_than, name="older_than")

        def is_wanted(row: Execution) -> bool:
            # What nothing tells of any more has been stuck for longer than events are kept.
            age_seconds = (now_ms - since.get(row.execution_id, 0)) / 1000
            return (youngest is None or age_seconds >= youngest) and (oldest is None or age_seconds <= oldest)

        views = [_view(row, since.get(row.execution_id)) for row in listing.executions if is_wanted(row)]
        return StuckPage(views, listing.cursor)

    def _since(self) -> dict[str, int]:
        """Return when executions last got stuck, by their ids: the rows do not say it, the events do."""
        told = self._service.bus.tail(None, type=STUCK_EVENT, limit=_EVENTS_MAX)
        return {typed_decode.from_json(each.body, _Told).subject: each.accepted_at_ms for each in told}


def _view(row: Execution, since_ms: int | None) -> StuckView:
    return StuckView(
        id=row.execution_id,
        workflow=row.workflow,
        failures=row.failures,
        since="" if since_ms is None else instant(since_ms),
        error=error_view(row.failure) or ErrorView("", ""),
        redrive=f"headgate execution redrive {row.execution_id}",
    )
