"""Mail: what waits for an execution in the store, as sources of a turn, and what is put there for later."""

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


class Mail:
    """The inboxes of executions."""

    def __init__(self, store: Store, ids: IdMaker) -> None:
        self._store = store
        self._ids = ids

    def read(self, execution_id: str) -> list[Source]:
        """Return the first messages in the order of their arrival, and one more than a turn takes if there is.

        Raises `InvalidPayloadError` if one of them cannot be read, unless another asks to terminate.
        """
        page = self._store.query(
            Query(table=INBOXES, partition=execution_id, sort=_OLDEST, limit=SOURCES_MAX + 1, consistent=True)
        )
        found = [message_of(item) for item in page.items]
        sources: list[Source] = []
        unread: InvalidPayloadError | None = None
        for row in found:
            try:
                sources.append(Source(load_event(row.body), row.consumed(), row.run, row.first_run))
            except msgspec.DecodeError as exc:
                unread = InvalidPayloadError(
                    f"execution {execution_id} message {row.message_id}: it cannot be read ({exc}); "
                    "a newer version of Headgate may have written it: upgrade this worker"
                )
        if unread is None:
            return sources
        last_words = [source for source in sources if isinstance(source.event, TerminateRequested)]
        if not last_words:
            raise unread
        return last_words

    def kept(self, execution_id: str, source: Source, now_ms: int) -> list[Write]:
        """Return the writes that put into the inbox what is only in memory, and take it from where it was."""
        assert source.removal is not None
        told = message(execution_id, source.event, now_ms, self._ids.ulid(), run=source.run, first_run=source.first_run)
        return [source.removal, told.put()]

    def keep(self, execution_id: str, sources: Sequence[Source], now_ms: int) -> None:
        """Put what is only in memory into the inbox, for when the execution can go on."""
        self._each([self.kept(execution_id, s, now_ms) for s in sources if not is_mail(s) and s.removal is not None])

    def discard(self, sources: Sequence[Source]) -> None:
        """Take away what nobody will hear."""
        if sources:
            self._each([[source.removal] for source in sources if source.removal is not None])

    def _each(self, transactions: list[list[Write]]) -> None:
        if not transactions:
            return
        for refusal in self._store.transact_many(transactions):
            # Who lost the race for one of these has nothing left to do about it.
            if isinstance(refusal, HeadgateError) and not isinstance(refusal, ConflictError):
                raise refusal


def delayed_start(store: Store, row: Execution) -> list[Source]:
    """Return the start of a run that is to begin later, as one source; none if it has begun, or is in the inbox."""
    item = store.get(TIMERS, Key(timer_id(row.execution_id, ANY_RUN, START_SEQ)), consistent=True)
    timer = None if item is None else timer_of(item)
    event = None if timer is None or timer.event is None else load_event(timer.event)
    # One of an earlier life of the id is not this one's.
    if timer is None or not isinstance(event, Started) or event.run != row.run:
        return []
    return [Source(event, timer.fired(), row.run)]


def is_mail(source: Source) -> bool:
    """Whether this waits in the inbox, and not only in memory."""
    return source.removal is not None and source.removal.table is INBOXES


def is_stale(source: Source, row: Execution) -> bool:
    """Whether this was meant for a run, or for a life of the id, that is over."""
    return 0 < source.run < row.run or 0 < source.first_run < row.first_run


def is_ahead(source: Source, row: Execution) -> bool:
    """Whether this is meant for a run that the row, as it is known here, does not have yet."""
    return source.run > row.run or source.first_run > row.first_run


def in_order(sources: Sequence[Source]) -> list[Source]:
    """Return the sources with the start first: a clock that was set back may have put a message before it."""
    return sorted(sources, key=lambda source: not isinstance(source.event, Started))


def holds(sources: Sequence[Source], kind: type[Woken | TerminateRequested | Started]) -> bool:
    """Whether one of the sources is an event of this kind."""
    # A loop rather than `any`: every turn asks this of one source or a few, and a generator costs more than they do.
    for source in sources:  # noqa: SIM110 - as above
        if type(source.event) is kind:
            return True
    return False


def sort_out(heard: Sequence[Source], row: Execution) -> tuple[list[Source], list[Source], list[Source]] | None:
    """Return what is to be heard with one for each row, what comes after, and what is too late for this run.

    Of two claims to the same activity one is too late, and is told so afterwards. None if one of them is meant for
    a run that the row does not have yet.
    """
    first: dict[Key, Source] = {}
    current: list[Source] = []
    later: list[Source] = []
    stale: list[Source] = []
    for source in heard:
        if is_ahead(source, row):
            return None
        if is_stale(source, row):
            stale.append(source)
        elif source.removal is None or first.setdefault(source.removal.key, source) is source:
            current.append(source)
        else:
            later.append(source)
    return current, later, stale
