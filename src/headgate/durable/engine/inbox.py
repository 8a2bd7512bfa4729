"""Inboxes: the messages stored for executions, read as events of a turn, and events stored for a later turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from headgate.durable.engine.turn_commit import SOURCES_MAX, Source
from headgate.durable.model.history import Started, TerminateRequested, Woken, load_event
from headgate.durable.model.records import MESSAGES, Execution, message, message_of, timer_id, timer_of
from headgate.durable.model.starts import ANY_RUN, START_SEQ
from headgate.errors import ConflictError, HeadgateError, InvalidPayloadError
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import INBOXES, TIMERS
from headgate.store.model.requests import Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

_OLDEST: Final = Sort(Range.BEGINS_WITH, MESSAGES)


class Inboxes:
    """The inboxes of the executions of a store."""

    def __init__(self, store: Store, ids: IdMaker) -> None:
        self._store = store
        self._ids = ids

    def read(self, execution_id: str) -> list[Source]:
        """Return the oldest messages in order of arrival: up to one more than a turn takes.

        Raises `InvalidPayloadError` if one cannot be decoded, unless another requests termination.
        """
        page = self._store.query(
            Query(table=INBOXES, partition=execution_id, sort=_OLDEST, limit=SOURCES_MAX + 1, consistent=True)
        )
        sources: list[Source] = []
        unreadable: InvalidPayloadError | None = None
        for item in page.items:
            row = message_of(item)
            try:
                sources.append(
                    Source(load_event(row.body), row.consumed(), row.run, row.first_run, row.at_ms, row.traceparent)
                )
            except msgspec.DecodeError as exc:
                unreadable = InvalidPayloadError(
                    f"execution {execution_id} message {row.message_id}: it cannot be read ({exc}); "
                    "a newer version of Headgate may have written it: upgrade this worker"
                )
        if unreadable is None:
            return sources
        terminations = [source for source in sources if isinstance(source.event, TerminateRequested)]
        if not terminations:
            raise unreadable
        return terminations

    def store_writes(self, execution_id: str, source: Source, now_ms: int) -> list[Write]:
        """Return the writes that move an event which is only in memory into the inbox."""
        assert source.removal is not None
        stored = message(
            execution_id, source.event, now_ms, self._ids.ulid(), run=source.run, first_run=source.first_run
        )
        return [source.removal, stored.put()]

    def store(self, execution_id: str, sources: Sequence[Source], now_ms: int) -> None:
        """Move the events that are only in memory into the inbox, for a later turn."""
        in_memory = [source for source in sources if not is_message(source) and source.removal is not None]
        self._transact_each([self.store_writes(execution_id, source, now_ms) for source in in_memory])

    def discard(self, sources: Sequence[Source]) -> None:
        """Delete messages that no turn will consume."""
        if sources:
            self._transact_each([[source.removal] for source in sources if source.removal is not None])

    def _transact_each(self, transactions: list[list[Write]]) -> None:
        if not transactions:
            return
        for refusal in self._store.transact_many(transactions):
            # A conflict means that another worker has already done it.
            if isinstance(refusal, HeadgateError) and not isinstance(refusal, ConflictError):
                raise refusal


def delayed_start(store: Store, row: Execution) -> list[Source]:
    """Return the delayed start of the current run as an event; none if it has started or has its start message."""
    # The first run of a life of the id, or a further attempt of a retry policy.
    keys = [Key(timer_id(row.execution_id, run, START_SEQ)) for run in (ANY_RUN, row.run)]
    for item in store.get_many(TIMERS, keys, consistent=True):
        timer = None if item is None else timer_of(item)
        event = None if timer is None or timer.event is None else load_event(timer.event)
        # The timer may belong to an earlier life of the id.
        if timer is not None and isinstance(event, Started) and event.run == row.run:
            return [Source(event, timer.fired(), row.run)]
    return []


def is_message(source: Source) -> bool:
    """Whether an event is stored in the inbox, and not only in memory."""
    return source.removal is not None and source.removal.table is INBOXES


def is_stale(source: Source, row: Execution) -> bool:
    """Whether an event is for an earlier run, or for an earlier life of the id."""
    return 0 < source.run < row.run or 0 < source.first_run < row.first_run


def is_ahead(source: Source, row: Execution) -> bool:
    """Whether an event is for a later run than this copy of the row has."""
    return source.run > row.run or source.first_run > row.first_run


def in_order(sources: Sequence[Source]) -> list[Source]:
    """Return the events with the start first: after a clock was set back, a message may sort before it."""
    return sorted(sources, key=lambda source: not isinstance(source.event, Started))


def holds(sources: Sequence[Source], kind: type[Woken | TerminateRequested | Started]) -> bool:
    """Whether one of the events is of this kind."""
    # A loop rather than `any`: every turn calls this for a few events, and a generator costs more than they do.
    for source in sources:  # noqa: SIM110 - as above
        if type(source.event) is kind:
            return True
    return False


def sort_sources(sources: Sequence[Source], row: Execution) -> tuple[list[Source], list[Source], list[Source]] | None:
    """Split events into those of this turn, those of a later turn, and stale ones.

    A turn takes one event per removed row: of two ends of the same activity, the second is found stale later. None if
    an event is for a later run than this copy of the row has.
    """
    first: dict[Key, Source] = {}
    current: list[Source] = []
    later: list[Source] = []
    stale: list[Source] = []
    for source in sources:
        if is_ahead(source, row):
            return None
        if is_stale(source, row):
            stale.append(source)
        elif source.removal is None or first.setdefault(source.removal.key, source) is source:
            current.append(source)
        else:
            later.append(source)
    return current, later, stale
