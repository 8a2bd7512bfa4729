"""Dead letters over HTTP: found, shown, delivered again and thrown away, one by one or all that match.

Executions that are stuck are listed with them: whoever looks for what is given up looks here.
"""

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
from headgate.serve.http.operations import AccessPolicy, Answer, Call, NoQuery, Operation, operation_routes
from headgate.serve.http.raw_json import ErrorView, error_view
from headgate.serve.rest.durable.models import Duration, Limit, Name
from headgate.serve.rest.durable.stuck import StuckLetters, StuckPage, StuckView
from headgate.serve.runtime.thread_pool import WorkPool

# Among the events are those of every dataset.
_PART: Final = AccessPolicy(Permission.EVENT_READ, Permission.EVENT_WRITE, Reach.ALL)


class Kind(enum.StrEnum):
    """What can be given up."""

    DELIVERY = "delivery"
    EXECUTION = "execution"


class DeadLetterQuery(Struct, forbid_unknown_fields=True):
    """Which dead letters: those that match all that is given. Ages count from when it was given up.

    Without a kind, both are listed: first executions that are stuck, then deliveries. A subscription and a type are
    those of deliveries.
    """

    kind: Kind | None = None
    subscription: str | None = None
    type: str | None = None
    older_than: Duration | None = None
    newer_than: Duration | None = None
    limit: Limit = 100
    cursor: str | None = None


class DeadLetterView(Struct, frozen=True):
    """A delivery that failed for good."""

    subscription: str
    event_id: str
    attempts: int
    scheduled_at: str
    dead_at: str
    error: ErrorView
    event: Raw


class DeadLetterList(Struct, frozen=True):
    """Some dead letters, and the cursor of the next page if there is one. A page may be short, or empty.

    Deliveries that failed for good are in `dead_letters`, executions that are stuck in `executions`.
    """

    dead_letters: list[DeadLetterView]
    executions: list[StuckView]
    cursor: str | None = None


class Redeliver(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters of a subscription: these, or, without any, up to `limit` that match all that is given.

    With `dry_run` they are only counted. The answer's cursor goes on with those that follow.
    """

    subscription: Name
    event_ids: list[str] = []
    type: str | None = None
    older_than: Duration | None = None
    newer_than: Duration | None = None
    dry_run: bool = False
    limit: Limit = 1000
    cursor: str | None = None

    @property
    def has_filter(self) -> bool:
        """Whether something is asked besides the subscription."""
        return (self.type, self.older_than, self.newer_than) != (None, None, None)


class Purge(Redeliver, forbid_unknown_fields=True, kw_only=True):
    """As for delivering again; every dead letter of the subscription only if `all` says so."""

    all: bool = False


class LettersDone(Struct, frozen=True, omit_defaults=True):
    """How many it was done to, or, in a dry run, would be; `more` if there are others, after the cursor."""

    count: int
    more: bool
    cursor: str | None = None
    dry_run: bool = False


def dead_letter_routes(service: Service, pool: WorkPool) -> list[ControllerRouterHandler]:
    """Return the routes of dead letters."""
    return operation_routes(_DeadLetters(service).operations(), pool, _PART)


class _DeadLetters:
    def __init__(self, service: Service) -> None:
        self._bus = service.bus
        self._stuck = StuckLetters(service)

    def operations(self) -> list[Operation]:
        one, done = "/dead-letters/{subscription}/{event_id}", {200: LettersDone}
        again, away = "/dead-letters/redeliver", "/dead-letters/purge"
        return [
            Operation(
                "GET", "/dead-letters", "List dead letters", self.ls, {200: DeadLetterList}, query=DeadLetterQuery
            ),
            Operation("GET", one, "Show a dead letter", self.show, {200: DeadLetterView}),
            Operation("POST", again, "Deliver dead letters again", self.redeliver, done, body=Redeliver),
            Operation("POST", away, "Throw dead letters away", self.purge, done, body=Purge),
        ]

    def ls(self, call: Call[None, DeadLetterQuery]) -> Answer:
        asked = call.query
        if asked.kind is Kind.EXECUTION and (asked.subscription, asked.type) != (None, None):
            raise UserError("kind execution: a subscription and a type are those of deliveries; leave them out")
        is_of_deliveries = asked.kind is Kind.DELIVERY or (asked.subscription, asked.type) != (None, None)
        # One list after the other: a cursor begins with the one that it is in. Without that, it is in deliveries.
        place, _, inner = (asked.cursor or "").rpartition("|")
        is_first = asked.cursor is None or place == Kind.EXECUTION or asked.kind is Kind.EXECUTION
        stuck = StuckPage([])
        if is_first and not is_of_deliveries:
            ages = {"older_than": asked.older_than, "newer_than": asked.newer_than}
            stuck = self._stuck.page(**ages, limit=asked.limit, cursor=inner or None)
            inner = ""
            if stuck.cursor is not None:
                return Answer(DeadLetterList([], stuck.executions, f"{Kind.EXECUTION}|{stuck.cursor}"))
        left = asked.limit - len(stuck.executions)
        if asked.kind is Kind.EXECUTION:
            return Answer(DeadLetterList([], stuck.executions))
        if not left:
            return Answer(DeadLetterList([], stuck.executions, f"{Kind.DELIVERY}|"))
        page = self._page(replace(asked, limit=left, cursor=inner or None))
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
            raise UserError(
                "purge: say which dead letters by event_ids or a filter, or all of them by all, and not both"
            )
        return self._each(body, lambda letter: self._bus.purge(letter.subscription, letter.event_id))

    def _each(self, body: Redeliver, act: Callable[[DeadLetter], object]) -> Answer:
        letters, cursor = self._chosen(body)
        count = 0
        for letter in letters:
            try:
                if not body.dry_run:
                    act(letter)
            except (NotFoundError, ConflictError):
                if body.event_ids:
                    raise
                continue  # Another has taken it up.
            count += 1
        return Answer(LettersDone(count, more=cursor is not None, cursor=cursor, dry_run=body.dry_run))

    def _chosen(self, body: Redeliver) -> tuple[list[DeadLetter], str | None]:
        """Return the letters to act on, and where those that follow begin."""
        if not body.event_ids:
            page = self._page(body)
            return page.letters, page.cursor
        if body.has_filter or body.cursor is not None:
            raise UserError("event_ids: they are all that is done; leave the filter and the cursor out")
        # All of them before any is touched: one that is not there is most likely a slip.
        return [self._bus.dead_letter(body.subscription, event_id) for event_id in body.event_ids], None

    def _page(self, asked: DeadLetterQuery | Redeliver) -> DeadLetterPage:
        return self._bus.dead_letters(
            asked.subscription,
            type=asked.type,
            older_than_seconds=optional_seconds(asked.older_than, name="older_than"),
            newer_than_seconds=optional_seconds(asked.newer_than, name="newer_than"),
            limit=asked.limit,
            cursor=asked.cursor,
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
