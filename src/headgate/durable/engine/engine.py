"""The engine: takes executions that have something to hear through their next turn, many to a commit.

Whoever calls `cycle` leads it: one at a time. Live interpreters are kept, so that a turn costs the same at step 10,000
as at step 10; whatever is not in memory is replayed from its history. The version of the execution's row is the fence:
who loses a race for it drops what it had computed and reads again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import structlog
from msgspec import Struct

from headgate.clock import Clock
from headgate.durable.engine.dispatcher import Dispatcher, Step
from headgate.durable.engine.inbox import Mail, delayed_start, holds, in_order, is_mail, sort_out
from headgate.durable.engine.ready_queue import ReadyList, Work
from headgate.durable.engine.stuck import setback
from headgate.durable.engine.turn_commit import SOURCES_MAX, Draft, Outlook, Source, draft_turn
from headgate.durable.model.definitions import WorkflowDefinition
from headgate.durable.model.failures import ErrorInfo, describe
from headgate.durable.model.history import (
    Close,
    Command,
    EmitEvent,
    Event,
    Started,
    Status,
    TerminateRequested,
    Turn,
    Woken,
)
from headgate.durable.model.history_reader import read_run
from headgate.durable.model.records import Activity, Execution, execution_of
from headgate.durable.replay.interpreter import Interpreter
from headgate.durable.replay.open_work import open_work
from headgate.errors import (
    ConflictError,
    DeterminismError,
    FatalError,
    HeadgateError,
    InvalidPayloadError,
    TransientError,
)
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import EXECUTIONS
from headgate.store.model.requests import Check, Delete, Put, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

CYCLE_MAX: Final = 128
LIVE_MAX: Final = 2_000
_log = structlog.get_logger(__name__)


class Claims(Protocol):
    """Who runs activities here, and how many more can be taken on."""

    @property
    def worker_id(self) -> str:
        """The id under which this process works."""

    def claim(self, activity: Activity) -> Activity | None:
        """Return the activity as claimed by this worker, if it is to run it."""

    def membership(self) -> Write:
        """Return the check that has to go with every claim."""

    def expelled(self) -> None:
        """The check was refused."""

    def give_back(self, activities: Sequence[Activity]) -> None:
        """Claims that were not committed."""


class Live(Struct):
    """An execution in memory: its row as last committed, and its code as far as it has come."""

    row: Execution
    interpreter: Interpreter


class Engine:
    """Advances the executions of one app. Safe to tell things from any thread; `cycle` is for one at a time."""

    def __init__(
        self,
        workflows: Mapping[str, WorkflowDefinition],
        store: Store,
        clock: Clock,
        ids: IdMaker,
        *,
        claims: Claims,
        emit: Callable[[Execution, EmitEvent], list[Write]],
        live_max: int = LIVE_MAX,
        replay_always: bool = False,
    ) -> None:
        self.closed: Callable[[Execution], None] = lambda _: None
        self.timers_made: Callable[[Sequence[int]], None] = lambda _: None
        # Told the ids of activities that a turn has taken back.
        self.cancelled: Callable[[Sequence[str]], None] = lambda _: None
        self._workflows = workflows
        self._store = store
        self._clock = clock
        self._ids = ids
        self._claims = claims
        self._emit = emit
        self._live_max = live_max
        self._replay_always = replay_always
        self.ready = ReadyList(clock)
        self._mail = Mail(store, ids)
        self._live: OrderedDict[str, Live] = OrderedDict()
        self._dispatcher = Dispatcher(store, self._retention_of)

    # Told by others.

    def tell(self, execution_id: str, source: Source) -> None:
        """Have the execution hear this in its next turn."""
        self.ready.tell(execution_id, [source])

    def look(self, execution_id: str) -> None:
        """Have the execution's inbox read in the next cycle."""
        self.ready.look(execution_id)

    @property
    def has_work(self) -> bool:
        """Whether a cycle would find something to do."""
        return bool(self.ready)

    # Led by one at a time.

    def cycle(self) -> list[Activity]:
        """Take everyone who is ready one turn further, in one commit, and return what this worker claimed to run.

        Raises what the store raises if it cannot be written; whatever was to be heard is then heard later.
        """
        try:
            return self._cycle(self.ready.take(CYCLE_MAX))
        finally:
            self.ready.settle()

    def _cycle(self, batch: Sequence[tuple[str, Work]]) -> list[Activity]:
        drafts: list[tuple[str, Work, Draft]] = []
        transactions: list[list[Write]] = []
        for execution_id, work in batch:
            try:
                draft = self._draft(execution_id, work)
            except Exception:
                self.ready.put_back(batch)
                self._drop_all(batch)
                raise
            if draft is not None:
                drafts.append((execution_id, work, draft))
                transactions.append(draft.writes)
        try:
            outcomes = self._commit(transactions)
        except Exception:
            # Unknown which of them happened: everyone is read anew, and what was claimed is left to its lease.
            self._claims.give_back([activity for _, _, draft in drafts for activity in draft.claims])
            self.ready.put_back([(execution_id, work) for execution_id, work, _ in drafts])
            self._drop_all(batch)
            raise
        claims: list[Activity] = []
        for (execution_id, work, draft), refusal in zip(drafts, outcomes, strict=True):
            if refusal is None:
                self._committed(draft)
                claims.extend(draft.claims)
            else:
                self._lost(execution_id, work, draft, refusal)
        self._evict_surplus()
        return claims

    def drop(self) -> None:
        """Let go of every execution in memory."""
        for execution_id in list(self._live):
            self._evict(execution_id)

    # One execution.

    def _draft(self, execution_id: str, work: Work) -> Draft | None:
        try:
            return self._drafted(execution_id, work)
        except InvalidPayloadError as exc:
            return self._unreadable(execution_id, work, exc)

    def _unreadable(self, execution_id: str, work: Work, error: InvalidPayloadError) -> Draft | None:
        """What was written for this execution cannot be read here: it waits, and others go on."""
        self._evict(execution_id)
        row = self._row(execution_id)
        is_ours = row is not None and row.workflow in self._workflows and not row.status.is_closed
        if row is not None and is_ours and self._may_try(row, work.sources):
            return self._set_back(row, work.sources, error)
        self._mail.keep(execution_id, work.sources, self._now_ms())
        self.ready.shelve(execution_id)
        return None

    def _drafted(self, execution_id: str, work: Work) -> Draft | None:
        heard = work.sources
        # Whoever is woken after a failed turn is to hear what that turn would have.
        if work.look or holds(heard, Woken):
            # Before the row: what was there before an execution was seen to have ended is nobody's any more.
            heard = in_order([*self._mail.read(execution_id), *heard])
        live = self._live.get(execution_id)
        row = live.row if live is not None else self._row(execution_id)
        if row is None or row.workflow not in self._workflows:
            # Someone else's to advance: what was told here must not be lost with this process.
            self._mail.keep(execution_id, work.sources, self._now_ms())
            self.ready.shelve(execution_id)
            return None
        if row.dispatched is not None:
            try:
                row = self._finish_dispatch(row, None)
            except ConflictError:
                self._again(execution_id, work)
                return None
        sorted_out = sort_out(heard, row)
        if sorted_out is None:
            self._again(execution_id, work)
            return None
        current, later, stale = sorted_out
        if row.status.is_closed:
            self._mail.discard([*stale, *current, *later])
            return None
        self._mail.discard(stale)
        sources, later = current[:SOURCES_MAX], [*current[SOURCES_MAX:], *later]
        if not sources:
            return None
        if not self._may_try(row, sources):
            self._mail.keep(execution_id, [*sources, *later], self._now_ms())
            self.ready.shelve(execution_id)
            return None
        if later:
            self.ready.tell(execution_id, [source for source in later if not is_mail(source)])
            self.ready.look(execution_id)
        return self._try_advance(row, sources)

    def _again(self, execution_id: str, work: Work) -> None:
        """Another worker has gone further than this one knows: read everything anew."""
        self._evict(execution_id)
        self.ready.put_back([(execution_id, work)])

    def _try_advance(self, row: Execution, sources: list[Source]) -> Draft:
        try:
            return self._advance(row, sources)
        except Exception as exc:
            if isinstance(exc, HeadgateError) and _is_the_stores(exc):
                raise
            return self._set_back(row, sources, exc)

    def _advance(self, row: Execution, sources: list[Source]) -> Draft:
        now_ms = self._now_ms()
        if holds(sources, TerminateRequested):
            draft = draft_turn(*self._terminated(row, sources), (), self._outlook(now_ms))
            self._evict(row.execution_id)
            return draft
        live = self._load(row.execution_id, row)
        events: list[Event] = [source.event for source in sources]
        consumed, issued = live.interpreter.advance(now_ms, events)
        notes, live.interpreter.notes = live.interpreter.notes, []
        awaits = live.interpreter.mailbox.awaited() if live.interpreter.closed is None else ()
        return draft_turn(row, sources[:consumed], issued, notes, self._outlook(live.interpreter.at_ms), awaits)

    def _terminated(
        self, row: Execution, sources: list[Source]
    ) -> tuple[Execution, Sequence[Source], Sequence[Command]]:
        """Return a turn that ends an execution without asking its code."""
        event = next(s.event for s in sources if isinstance(s.event, TerminateRequested))
        work = open_work(read_run(self._store, row))
        if not work.has_begun and not holds(sources, Started):
            # A start that was to come later: it goes into the history, and must not begin what has this id by then.
            sources = [*delayed_start(self._store, row), *sources]
        error = ErrorInfo(type="Terminated", message=event.reason or "terminated")
        return row, sources, [*work.closing(), Close(Status.TERMINATED, error=error)]

    def _load(self, execution_id: str, row: Execution) -> Live:
        live = self._live.get(execution_id)
        if live is not None and live.row.version == row.version:
            self._live.move_to_end(execution_id)
            return live
        if live is not None:
            self._evict(execution_id)
        workflow = self._workflows[row.workflow]
        interpreter = Interpreter(workflow.function, workflow.signature, execution_id)
        try:
            for turn in read_run(self._store, row):
                interpreter.replay(turn)
        except BaseException:
            interpreter.evict()
            raise
        live = Live(row, interpreter)
        self._live[execution_id] = live
        return live

    def _row(self, execution_id: str) -> Execution | None:
        item = self._store.get(EXECUTIONS, Key(execution_id), consistent=True)
        return None if item is None else execution_of(item)

    def _may_try(self, row: Execution, sources: Sequence[Source]) -> bool:
        if row.status is Status.RUNNING and row.retry_at_ms is None:
            return True
        if holds(sources, TerminateRequested):
            return True
        if row.status is Status.STUCK:
            return False
        return holds(sources, Woken) or row.retry_at_ms is None or self._now_ms() >= row.retry_at_ms

    def _set_back(self, row: Execution, sources: Sequence[Source], error: Exception) -> Draft:
        self._evict(row.execution_id)
        now_ms = self._now_ms()
        _log.warning("turn failed", execution_id=row.execution_id, turn=row.turn + 1, error=str(error))
        draft = setback(row, describe(error), now_ms, self._outlook(now_ms))
        for source in sources:
            if isinstance(source.event, Woken):
                self._drop_woken(draft, source)
            elif not is_mail(source):
                draft.writes.extend(self._mail.kept(row.execution_id, source, now_ms))
        return draft

    def _drop_woken(self, draft: Draft, source: Source) -> None:
        """A reason to look again is used up; its timer may just have been set anew."""
        set_again = {write.item.get("timer_id") for write in draft.writes if isinstance(write, Put)}
        if isinstance(source.removal, Delete) and source.removal.key.partition not in set_again:
            draft.writes.append(source.removal)

    def _finish_dispatch(self, row: Execution, turn: Turn | None) -> Execution:
        self._evict_if_older(row)
        done = self._dispatcher.finish(row, self._outlook(self._now_ms()), turn, self._dispatched)
        live = self._live.get(row.execution_id)
        if live is not None:
            live.row = done
        return done

    def _dispatched(self, step: Step) -> None:
        for execution_id in step.mail_for:
            self.look(execution_id)
        if step.timers_due_ms:
            self.timers_made(step.timers_due_ms)
        if step.cancelled:
            self.cancelled(step.cancelled)

    # After the commit.

    def _committed(self, draft: Draft) -> None:
        row = draft.execution
        if draft.timers_due_ms:
            self.timers_made(draft.timers_due_ms)
        if draft.cancelled:
            self.cancelled(draft.cancelled)
        if draft.mail_for is not None:
            self.look(draft.mail_for)
        live = self._live.get(row.execution_id)
        if live is not None:
            live.row = row
        if row.dispatched is not None:
            try:
                self._finish_dispatch(row, draft.turn)
            except ConflictError:
                # Someone else carries on with it.
                self._evict(row.execution_id)
            except TransientError as exc:
                # The turn is committed, and what is left of it is done with the next look. Others need not wait for it.
                _log.warning("the store is busy", execution_id=row.execution_id, error=str(exc))
                self._evict(row.execution_id)
                self.look(row.execution_id)
        if live is not None and (live.interpreter.closed is not None or self._replay_always):
            self._evict(row.execution_id)
        if row.status.is_closed:
            self.closed(row)

    def _lost(self, execution_id: str, work: Work, draft: Draft, refusal: HeadgateError) -> None:
        self._evict(execution_id)
        self._claims.give_back(draft.claims)
        if not isinstance(refusal, ConflictError):
            raise refusal
        gone = [draft.writes[place] for place in refusal.failures if place > 0]
        if any(isinstance(write, Check) for write in gone):
            self._claims.expelled()
        # A removal that was refused was someone else's doing: a timer cancelled, a claim that is no longer ours.
        work.sources = [source for source in work.sources if source.removal not in gone]
        self.ready.put_back([(execution_id, work)])

    def _commit(self, transactions: list[list[Write]]) -> list[HeadgateError | None]:
        if not transactions:
            return []
        if len(transactions) == 1:
            try:
                self._store.transact(transactions[0])
            except ConflictError as exc:
                return [exc]
            return [None]
        return self._store.transact_many(transactions)

    def _outlook(self, now_ms: int) -> Outlook:
        claims = self._claims
        return Outlook(now_ms, claims.worker_id, claims.claim, claims.membership, self._ids.ulid, self._emit)

    def _retention_of(self, workflow: str) -> float | None:
        definition = self._workflows.get(workflow)
        return None if definition is None else definition.retention_seconds

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)

    def _evict_surplus(self) -> None:
        while len(self._live) > self._live_max:
            self._evict(next(iter(self._live)))

    def _evict_if_older(self, row: Execution) -> None:
        live = self._live.get(row.execution_id)
        if live is not None and live.row.version != row.version:
            self._evict(row.execution_id)

    def _drop_all(self, batch: Sequence[tuple[str, Work]]) -> None:
        for execution_id, _ in batch:
            self._evict(execution_id)

    def _evict(self, execution_id: str) -> None:
        live = self._live.pop(execution_id, None)
        if live is not None and live.interpreter.closed is None:
            live.interpreter.evict()


def _is_the_stores(error: HeadgateError) -> bool:
    """Whether an error says something of the store rather than of the workflow."""
    if isinstance(error, DeterminismError):
        return False
    return isinstance(error, (TransientError, FatalError, ConflictError))
