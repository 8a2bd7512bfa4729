"""Dead letter API: list, show, redeliver and purge failed deliveries. The list includes stuck executions."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

from litestar.types import ControllerRouterHandler
from msgspec import Raw, Struct
from msgspec.structs import replace

from headgate.auth.roles import Permission
from headgate.auth.rules import Reach
from headgate.durable.bus.bus import DeadLetter, DeadLetterPage
from headgate.durable.model.duration import optional_seconds
from headgate.durable.model.records import instant
from headgate.durable.service import Service
from headgate.errors import ConflictError, NotFoundError, UserError
from headgate.serve.http.operations import AccessPolicy, Answer, Auditing, Call, NoQuery, Operation, operation_routes
from headgate.serve.http.raw_json import ErrorView, error_view
from headgate.serve.rest.durable.stuck import StuckExecutions, StuckPage, StuckView
from headgate.serve.rest.parameters import Cursor, Duration, EventPattern, Limit, Name
from headgate.serve.runtime.thread_pool import WorkPool

# Events of every dataset are included.
_POLICY: Final = AccessPolicy(Permission.EVENT_READ, Permission.EVENT_WRITE, Reach.ALL)


class DeadLetterKind(enum.StrEnum):
    """Kinds of dead letters."""

    DELIVERY = "delivery"
    EXECUTION = "execution"


class DeadLetterQuery(Struct, forbid_unknown_fields=True):
    """Filter of dead letters; all conditions must match. Ages count from the last failed attempt.

    Without a kind, stuck executions are listed first, then deliveries. Subscription and type apply to deliveries.
    """

    kind: DeadLetterKind | None = None
    subscription: Name | None = None
    type: EventPattern | None = None
    older_than: Duration | None = None
    newer_than: Duration | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


class DeadLetterView(Struct, frozen=True):
    """A delivery that exhausted its retries."""

    subscription: str
    event_id: str
    attempts: int
    scheduled_at: str
    dead_at: str
    error: ErrorView
    event: Raw


class DeadLetterList(Struct, frozen=True):
    """A page of dead letters. A page may be short or empty and still have a cursor.

    `dead_letters` holds failed deliveries, `executions` holds stuck executions.
    """

    dead_letters: list[DeadLetterView]
    executions: list[StuckView]
    cursor: str | None = None


class Redeliver(Struct, forbid_unknown_fields=True, kw_only=True):
    """Dead letters of a subscription to redeliver: by id, or up to `limit` that match the filter.

    With `dry_run` they are only counted. The cursor in the response continues after them.
    """

    subscription: Name
    event_ids: list[str] = []
    type: EventPattern | None = None
    older_than: Duration | None = None
    newer_than: Duration | None = None
    dry_run: bool = False
    limit: Limit = 1000
    cursor: Cursor | None = None

    @property
    def has_filter(self) -> bool:
        """Whether there is a condition besides the subscription."""
        return (self.type, self.older_than, self.newer_than) != (None, None, None)


class Purge(Redeliver, forbid_unknown_fields=True, kw_only=True):
    """Dead letters to purge, selected as for redelivery; `all` purges every dead letter of the subscription."""

    all: bool = False


class BulkResult(Struct, frozen=True, omit_defaults=True):
    """Number of dead letters processed, or matched in a dry run; `more` follow after the cursor."""

    count: int
    more: bool
    cursor: str | None = None
    dry_run: bool = False


def dead_letter_routes(
    service: Service, pool: WorkPool, *, auditing: Auditing | None = None
) -> list[ControllerRouterHandler]:
    """Return the routes of dead letters."""
    return operation_routes(_DeadLetters(service).operations(), pool, _POLICY, auditing=auditing)


class _DeadLetters:
    def __init__(self, service: Service) -> None:
        self._bus = service.bus
        self._stuck = StuckExecutions(service)

    def operations(self) -> list[Operation]:
        one, done = "/dead-letters/{subscription}/{event_id}", {200: BulkResult}
        redeliver, purge = "/dead-letters/redeliver", "/dead-letters/purge"
        return [
            Operation(
                "GET", "/dead-letters", "List dead letters", self.ls, {200: DeadLetterList}, query=DeadLetterQuery
            ),
            Operation("GET", one, "Show a dead letter", self.show, {200: DeadLetterView}),
            Operation("POST", redeliver, "Redeliver dead letters", self.redeliver, done, body=Redeliver),
            Operation("POST", purge, "Purge dead letters", self.purge, done, body=Purge),
        ]

    def ls(self, call: Call[None, DeadLetterQuery]) -> Answer:
        query = call.query
        if query.kind is DeadLetterKind.EXECUTION and (query.subscription, query.type) != (None, None):
            raise UserError("kind execution: subscription and type apply to deliveries only; omit them")
        is_deliveries_only = query.kind is DeadLetterKind.DELIVERY or (query.subscription, query.type) != (None, None)
        # The cursor starts with the list that it points into; without a prefix it points into deliveries.
        place, _, inner = (query.cursor or "").rpartition("|")
        is_first = query.cursor is None or place == DeadLetterKind.EXECUTION or query.kind is DeadLetterKind.EXECUTION
        stuck = StuckPage([])
        if is_first and not is_deliveries_only:
            ages = {"older_than": query.older_than, "newer_than": query.newer_than}
            stuck = self._stuck.page(**ages, limit=query.limit, cursor=inner or None)
            inner = ""
            if stuck.cursor is not None:
                return Answer(DeadLetterList([], stuck.executions, f"{DeadLetterKind.EXECUTION}|{stuck.cursor}"))
        remaining = query.limit - len(stuck.executions)
        if query.kind is DeadLetterKind.EXECUTION:
            return Answer(DeadLetterList([], stuck.executions))
        if not remaining:
            return Answer(DeadLetterList([], stuck.executions, f"{DeadLetterKind.DELIVERY}|"))
        page = self._page(replace(query, limit=remaining, cursor=inner or None))
        return Answer(DeadLetterList([_view(letter) for letter in page.letters], stuck.executions, page.cursor))

    def show(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(_view(self._bus.dead_letter(call.path["subscription"], call.path["event_id"])))

    def redeliver(self, call: Call[Redeliver, NoQuery]) -> Answer:
        self._bus.subscription(call.body.subscription).check_in_force()
        return self._each(call.body, lambda letter: self._bus.redeliver(letter.subscription, letter.event_id))

    def purge(self, call: Call[Purge, NoQuery]) -> Answer:
        body = call.body
        self._bus.subscription(body.subscription)
        if body.all == (body.has_filter or bool(body.event_ids)):
            raise UserError("purge: select dead letters by event_ids or a filter, or set all; not both")
        return self._each(body, lambda letter: self._bus.purge(letter.subscription, letter.event_id))

    def _each(self, body: Redeliver, act: Callable[[DeadLetter], object]) -> Answer:
        letters, cursor = self._selected(body)
        count = 0
        for letter in letters:
            try:
                if not body.dry_run:
                    act(letter)
            except (NotFoundError, ConflictError):
                if body.event_ids:
                    raise
                continue  # Handled concurrently by another request.
            count += 1
        return Answer(BulkResult(count, more=cursor is not None, cursor=cursor, dry_run=body.dry_run))

    def _selected(self, body: Redeliver) -> tuple[list[DeadLetter], str | None]:
        """Return the selected letters, and the cursor after them."""
        if not body.event_ids:
            page = self._page(body)
            return page.letters, page.cursor
        if body.has_filter or body.cursor is not None:
            raise UserError("event_ids: cannot be combined with a filter or a cursor")
        # Read all before the first change: a missing one is most likely a mistake.
        return [self._bus.dead_letter(body.subscription, event_id) for event_id in body.event_ids], None

    def _page(self, query: DeadLetterQuery | Redeliver) -> DeadLetterPage:
        return self._bus.dead_letters(
            query.subscription,
            type=query.type,
            older_than_seconds=optional_seconds(query.older_than, name="older_than"),
            newer_than_seconds=optional_seconds(query.newer_than, name="newer_than"),
            limit=query.limit,
            cursor=query.cursor,
        )


def _view(letter: DeadLetter) -> DeadLetterView:
    error = error_view(letter.error)
    assert error is not None, "a dead letter has the error of its last attempt"
    return DeadLetterView(
        subscription=letter.subscription,
        event_id=letter.event_id,
        attempts=letter.attempts,
        scheduled_at=instant(letter.scheduled_at_ms),
        dead_at=instant(letter.dead_at_ms),
        error=error,
        event=Raw(letter.body.encode()),
    )
