"""Stuck executions, listed with dead letters: the error, since when, and the redrive command."""

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
from headgate.serve.rest.parameters import Duration

# Maximum stuck events searched for the time an execution got stuck.
_EVENTS_MAX: Final = 1000


class StuckView(Struct, frozen=True):
    """A stuck execution. `since` is empty if its stuck event has expired."""

    id: str
    workflow: str
    failures: int
    since: str
    error: ErrorView
    # The command that continues it after a fix.
    redrive: str


class StuckPage(Struct, frozen=True):
    """A page of stuck executions, latest started first."""

    executions: list[StuckView]
    cursor: str | None = None


class _StuckEvent(Struct):
    subject: str = ""


class StuckExecutions:
    """Lists stuck executions."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def page(
        self, *, older_than: Duration | None, newer_than: Duration | None, limit: int, cursor: str | None
    ) -> StuckPage:
        """Return executions stuck for a duration in the given range. Raises `CursorError`."""
        listing = self._service.client.list(status=Status.STUCK, limit=limit, cursor=cursor)
        since = self._since() if listing.executions else {}
        now_ms = int(self._service.clock.seconds() * 1000)
        oldest = optional_seconds(newer_than, name="newer_than")
        youngest = optional_seconds(older_than, name="older_than")

        def is_in_range(row: Execution) -> bool:
            # Without an event it has been stuck for longer than the event retention.
            age_seconds = (now_ms - since.get(row.execution_id, 0)) / 1000
            return (youngest is None or age_seconds >= youngest) and (oldest is None or age_seconds <= oldest)

        views = [_view(row, since.get(row.execution_id)) for row in listing.executions if is_in_range(row)]
        return StuckPage(views, listing.cursor)

    def _since(self) -> dict[str, int]:
        """Return when executions last got stuck, by id, from the events."""
        events = self._service.bus.tail(None, type=STUCK_EVENT, limit=_EVENTS_MAX)
        return {typed_decode.from_json(each.body, _StuckEvent).subject: each.accepted_at_ms for each in events}


def _view(row: Execution, since_ms: int | None) -> StuckView:
    return StuckView(
        id=row.execution_id,
        workflow=row.workflow,
        failures=row.failures,
        since="" if since_ms is None else instant(since_ms),
        error=error_view(row.failure) or ErrorView("", ""),
        redrive=f"headgate execution redrive {row.execution_id}",
    )
