"""Engine: advances executions by one turn each, and commits many turns at once.

One thread at a time runs a `cycle`. Interpreters stay in memory, so that turn 10,000 costs the same as turn 10; an
execution that is not in memory is replayed from its history. The version of the execution's row is the fence: an engine
that loses a race for it drops its turn and reads the execution again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Final, Protocol

import structlog
from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.durable.engine.dispatcher import Dispatcher, Step
from headgate.durable.engine.inbox import Inboxes, delayed_start, holds, in_order, is_message, sort_sources
from headgate.durable.engine.ready_queue import ReadyList, Work
from headgate.durable.engine.stuck import failed_turn, with_failed_build
from headgate.durable.engine.turn_commit import SOURCES_MAX, Source, TurnContext, TurnTransaction, turn_transaction
from headgate.durable.engine.turn_spans import TurnSpan, TurnSpans
from headgate.durable.model.declarations import WorkflowDefinition
from headgate.durable.model.failures import ErrorInfo, describe
from headgate.durable.model.history import (
    ActivityEnded,
    Close,
    Command,
    EmitEvent,
    Started,
    Status,
    TerminateRequested,
    TimerFired,
    Turn,
    Woken,
)
from headgate.durable.model.history_reader import ArchivedHistories, read_run
from headgate.durable.model.meters import ExecutionMeters
from headgate.durable.model.records import Activity, Execution, execution_of
from headgate.durable.model.worker_limits import DEFAULT_LIMITS
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
from headgate.store.model.requests import Check, Delete, Put, StepWrites, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store
from headgate.telemetry import Tracing, within_execution

CYCLE_MAX: Final = 128
_log = structlog.get_logger(__name__)


class EngineHost(Protocol):
    """The worker that an engine runs in: claims activities for it, and receives what its turns have committed."""

    @property
    def worker_id(self) -> str:
        """The id of this worker."""

    @property
    def build(self) -> str:
        """The id of the code of this worker."""

    @property
    def is_fleet_mixed(self) -> bool:
        """Whether other live workers serve other workflows, or the same with other code."""

    def pins(self, workflow: str) -> bool:
        """Whether the first turn of an execution pins it to the build of this worker."""

    def may_advance(self, row: Execution) -> bool:
        """Whether this worker may take the next turn of an execution."""

    def has_untried_build(self, row: Execution) -> bool:
        """Whether a live worker has code that has not failed at the next turn of an execution."""

    def claim(self, activity: Activity) -> Activity | None:
        """Return the activity as claimed by this worker, if it is to run it."""

    def membership(self) -> Write:
        """Return the check that belongs to every transaction with a claim."""

    def event_writes(self, execution: Execution, command: EmitEvent) -> list[Write]:
        """Return the writes that emit an event of an execution."""

    def on_lease_lost(self) -> None:
        """Handle a refused membership check."""

    def on_claims_discarded(self, claims: Sequence[Activity]) -> None:
        """Handle claims that were not committed."""

    def on_timers_scheduled(self, due_ms: Sequence[int]) -> None:
        """Handle the due times of committed timers."""

    def on_activities_cancelled(self, activity_ids: Sequence[str]) -> None:
        """Handle activities that a committed turn has cancelled."""

    def on_cancel_requested(self, activity_ids: Sequence[str]) -> None:
        """Handle activities whose cancellation was requested, and whose end the code awaits."""

    def on_execution_closed(self, execution: Execution) -> None:
        """Handle the end of an execution."""


class LiveExecution(Struct):
    """An execution in memory: its row as last committed, and its interpreter after that turn."""

    row: Execution
    interpreter: Interpreter


class Engine:
    """Advances the executions of one app. Any thread may add events; one at a time may run a `cycle`."""

    def __init__(  # noqa: PLR0913 - the components of an engine
        self,
        workflows: Mapping[str, WorkflowDefinition],
        store: Store,
        clock: Clock,
        ids: IdMaker,
        *,
        host: EngineHost,
        live_max: int = DEFAULT_LIMITS.cached_max,
        replay_always: bool = False,
        ready: ReadyList | None = None,
        meters: ExecutionMeters | None = None,
        archive: ArchivedHistories | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._workflows = workflows
        self._store = store
        self._clock = clock
        self._ids = ids
        self._host = host
        # The callables of every turn's context, bound once.
        self._callables = (host.claim, host.membership, ids.ulid, host.event_writes)
        self._build = host.build
        self._live_max = live_max
        self._replay_always = replay_always
        self._meters = meters
        self._spans = None if tracing is None or not tracing.is_on else TurnSpans(tracing, clock)
        # The spans of turns that are not committed yet, by execution.
        self._open_spans: dict[str, TurnSpan] = {}
        self.ready = ReadyList(clock) if ready is None else ready
        self._inboxes = Inboxes(store, ids)
        self._archive = archive
        self._live: OrderedDict[str, LiveExecution] = OrderedDict()
        self._dispatcher = Dispatcher(store, self._retention_of, host.pins, archive)

    # From any thread.

    def add_event(self, execution_id: str, source: Source) -> None:
        """Give the execution an event for its next turn."""
        self.ready.add_event(execution_id, source)

    def read_inbox(self, execution_id: str) -> None:
        """Have the execution's inbox read in the next cycle."""
        self.ready.read_inbox(execution_id)

    def serves(self, workflow: str) -> bool:
        """Whether the app has a workflow."""
        return workflow in self._workflows

    def row_in_memory(self, execution_id: str) -> Execution | None:
        """Return the row of an execution as of its last turn here; None if it is not in memory."""
        live = self._live.get(execution_id)
        return None if live is None else live.row

    @property
    def has_work(self) -> bool:
        """Whether an execution is ready for a turn."""
        return bool(self.ready)

    @property
    def live_count(self) -> int:
        """How many executions are in memory."""
        return len(self._live)

    # From one thread at a time.

    def cycle(self) -> list[Activity]:
        """Advance every ready execution by one turn, in one commit, and return the activities this worker claimed.

        Raises what the store raises if it cannot be written; the events then stay for a later cycle.
        """
        try:
            return self._cycle(self.ready.take(CYCLE_MAX))
        finally:
            self.ready.end_batch()

    def _cycle(self, batch: Sequence[tuple[str, Work]]) -> list[Activity]:
        turns: list[tuple[str, Work, TurnTransaction]] = []
        transactions: list[Sequence[Write]] = []
        for execution_id, work in batch:
            try:
                turn = self._prepare(execution_id, work)
            except Exception:
                self.ready.put_back(batch)
                self._evict_batch(batch)
                raise
            if turn is not None:
                turns.append((execution_id, work, turn))
                writes = turn.writes
                transactions.append(StepWrites(*writes) if turn.is_step else writes)  # type: ignore[arg-type]  # in order
        began = 0.0 if self._meters is None else perf_counter()
        try:
            outcomes = self._commit(transactions)
        except Exception:
            # Unknown which were committed: every execution is read again, and a committed claim is found by its row.
            self._host.on_claims_discarded([activity for _, _, turn in turns for activity in turn.claims])
            self.ready.put_back([(execution_id, work) for execution_id, work, _ in turns])
            self._evict_batch(batch)
            raise
        if self._meters is not None and turns:
            self._meters.on_commit(perf_counter() - began)
        claims: list[Activity] = []
        for (execution_id, work, turn), refusal in zip(turns, outcomes, strict=True):
            if refusal is None:
                self._on_committed(turn)
                claims.extend(turn.claims)
            else:
                self._on_refused(execution_id, work, turn, refusal)
        while len(self._live) > self._live_max:
            self._evict(next(iter(self._live)))
        return claims

    def store_events(self) -> None:
        """Move the events that are only in memory into the inboxes: this process takes no more turns.

        Raises what the store raises; the events then stay in memory.
        """
        batch = self.ready.take(CYCLE_MAX)
        while batch:
            try:
                for execution_id, work in batch:
                    self._inboxes.store(execution_id, work.sources, self._now_ms())
            except Exception:
                self.ready.put_back(batch)
                raise
            batch = self.ready.take(CYCLE_MAX)

    def drop(self) -> None:
        """Evict every execution from memory."""
        for execution_id in list(self._live):
            self._evict(execution_id)

    # One execution.

    def _prepare(self, execution_id: str, work: Work) -> TurnTransaction | None:
        """Return the next turn of an execution, not committed; None if there is nothing to do now."""
        live = self._live.get(execution_id)
        try:
            if live is not None and self._is_routine(live.row, work):
                return self._try_advance(live.row, work.sources, live)
            return self._next_turn(execution_id, work)
        except InvalidPayloadError as exc:
            return self._on_unreadable(execution_id, work, exc)

    def _on_unreadable(self, execution_id: str, work: Work, error: InvalidPayloadError) -> TurnTransaction | None:
        """Fail the turn of an execution whose rows cannot be decoded here. Other executions are not affected."""
        self._evict(execution_id)
        row = self._row(execution_id)
        is_ours = row is not None and row.workflow in self._workflows and not row.status.is_closed
        if row is not None and is_ours and self._may_try(row, work.sources):
            return self._fail_turn(row, work.sources, error)
        self._shelve(execution_id, work.sources)
        return None

    def _shelve(self, execution_id: str, sources: Sequence[Source]) -> None:
        """Store events that are only in memory, and let the execution rest."""
        self._inboxes.store(execution_id, sources, self._now_ms())
        self.ready.shelve(execution_id)

    def _next_turn(self, execution_id: str, work: Work) -> TurnTransaction | None:
        sources = work.sources
        # An execution that retries a failed turn reads the messages of that turn again.
        if work.reads_inbox or holds(sources, Woken):
            # Before the row: messages that were there before the execution was seen to be closed can be discarded.
            sources = in_order([*self._inboxes.read(execution_id), *sources])
        live = self._live.get(execution_id)
        row = live.row if live is not None else self._row(execution_id)
        if row is None or row.workflow not in self._workflows:
            # Another worker advances it: events in memory must not be lost with this process.
            self._shelve(execution_id, work.sources)
            return None
        if row.dispatched is not None:
            try:
                row = self._finish_dispatch(row, None)
            except ConflictError:
                self._read_again(execution_id, work)
                return None
        sorted_sources = sort_sources(sources, row)
        if sorted_sources is None:
            self._read_again(execution_id, work)
            return None
        current, later, stale = sorted_sources
        if row.status.is_closed:
            self._inboxes.discard([*stale, *current, *later])
            return None
        self._inboxes.discard(stale)
        sources, later = current[:SOURCES_MAX], [*current[SOURCES_MAX:], *later]
        if not sources:
            return None
        if not self._may_try(row, sources):
            self._shelve(execution_id, [*sources, *later])
            return None
        if later:
            self.ready.add_events(execution_id, [source for source in later if not is_message(source)])
            self.ready.read_inbox(execution_id)
        return self._try_advance(row, sources)

    def _is_routine(self, row: Execution, work: Work) -> bool:
        """Whether one activity of the current run has ended, and this worker may take the turn without further checks.

        Most turns are of this kind.
        """
        if work.reads_inbox or len(work.sources) != 1:
            return False
        source = work.sources[0]
        return (
            type(source.event) is ActivityEnded
            and source.run == row.run
            and not source.first_run
            and row.dispatched is None
            and self._may_take_freely(row)
        )

    def _may_take_freely(self, row: Execution) -> bool:
        """Whether any worker may take the next turn: all of them have the build of the last one, which succeeded."""
        return (
            row.status is Status.RUNNING
            and row.retry_at_ms is None
            and row.build == self._build
            and not row.failures
            and not self._host.is_fleet_mixed
        )

    def _read_again(self, execution_id: str, work: Work) -> None:
        """Read everything from the store: another worker has advanced the execution."""
        self._evict(execution_id)
        self.ready.put_back([(execution_id, work)])

    def _try_advance(
        self, row: Execution, sources: list[Source], routine: LiveExecution | None = None
    ) -> TurnTransaction:
        """Return the next turn of an execution, or the failed one. A routine turn comes with what is in memory."""
        meters = self._meters
        if meters is None:
            return self._advance_or_fail(row, sources, routine)
        live = self._live.get(row.execution_id) if routine is None else routine
        was_cached = live is not None and live.row.version == row.version
        began = perf_counter()
        turn = self._advance_or_fail(row, sources, routine)
        meters.on_turn(row.workflow, perf_counter() - began, was_cached=was_cached)
        for source in sources:
            if source.at_ms:
                self._observe_lag(meters, row, source)
        return turn

    def _observe_lag(self, meters: ExecutionMeters, row: Execution, source: Source) -> None:
        lag_seconds = (self._now_ms() - source.at_ms) / 1000
        if isinstance(source.event, TimerFired):
            meters.on_timer(lag_seconds)
        elif isinstance(source.event, Started) and source.event.run == row.first_run:
            meters.on_started(row.workflow, lag_seconds)

    def _advance_or_fail(self, row: Execution, sources: list[Source], routine: LiveExecution | None) -> TurnTransaction:
        try:
            return self._advance(row, sources, routine)
        except Exception as exc:
            if isinstance(exc, HeadgateError) and _is_store_error(exc):
                raise
            return self._fail_turn(row, sources, exc)

    def _advance(self, row: Execution, sources: list[Source], routine: LiveExecution | None) -> TurnTransaction:
        now_ms = self._now_ms()
        traceparent = row.traceparent
        if self._spans is not None:
            row = self._begin_span(row, sources)
            traceparent = self._trace_of(row)
        if routine is not None:
            self._live.move_to_end(row.execution_id)
            live = routine
        elif holds(sources, TerminateRequested):
            turn = turn_transaction(*self._terminate(row, sources), (), self._context(now_ms, traceparent))
            self._drop_live(row.execution_id)
            return turn
        else:
            live = self._load(row.execution_id, row)
        interpreter = live.interpreter
        consumed, issued = interpreter.advance(now_ms, [source.event for source in sources])
        notes, interpreter.notes = interpreter.notes, []
        awaits = interpreter.mailbox.awaited() if interpreter.closed is None else ()
        context = self._context(interpreter.at_ms, traceparent)
        if row.build != self._build:
            row = self._with_build(row)
        return turn_transaction(row, sources[:consumed], issued, notes, context, awaits)

    def _with_build(self, row: Execution) -> Execution:
        """Return a row whose next turn is taken by this build. The first turn of an execution may pin it."""
        is_first = not row.build and row.turn < row.first_turn
        return replace(row, build=self._build, is_pinned=is_first and self._host.pins(row.workflow))

    def _terminate(
        self, row: Execution, sources: list[Source]
    ) -> tuple[Execution, Sequence[Source], Sequence[Command]]:
        """Return a turn that ends an execution without running its code."""
        event = next(s.event for s in sources if isinstance(s.event, TerminateRequested))
        work = open_work(read_run(self._store, row, self._archive))
        if not work.has_begun and not holds(sources, Started):
            # The delayed start goes into the history, and its timer must not start a later execution of this id.
            sources = [*delayed_start(self._store, row), *sources]
        error = ErrorInfo(type="Terminated", message=event.reason or "terminated")
        return row, sources, [*work.closing(), Close(Status.TERMINATED, error=error)]

    def _load(self, execution_id: str, row: Execution) -> LiveExecution:
        live = self._live.get(execution_id)
        if live is not None and live.row.version == row.version:
            self._live.move_to_end(execution_id)
            return live
        if live is not None:
            self._evict(execution_id)
        workflow = self._workflows[row.workflow]
        interpreter = Interpreter(
            workflow.function,
            workflow.signature,
            execution_id,
            workflow.interceptors,
            workflow.codec,
            retry=workflow.retry,
            traceparent=row.traceparent,
        )
        replayed = 0
        try:
            for turn in read_run(self._store, row, self._archive):
                interpreter.replay(turn)
                replayed += 1
        except BaseException:
            interpreter.evict()
            raise
        if self._meters is not None and replayed:
            self._meters.on_replayed(row.workflow, replayed)
        live = LiveExecution(row, interpreter)
        self._live[execution_id] = live
        return live

    def _row(self, execution_id: str) -> Execution | None:
        item = self._store.get(EXECUTIONS, Key(execution_id), consistent=True)
        return None if item is None else execution_of(item)

    def _may_try(self, row: Execution, sources: Sequence[Source]) -> bool:
        if self._may_take_freely(row):
            return True
        if holds(sources, TerminateRequested):
            return True
        if not self._host.may_advance(row):
            return False
        if row.status is Status.RUNNING and row.retry_at_ms is None:
            return True
        if row.status is Status.STUCK:
            return False
        return holds(sources, Woken) or row.retry_at_ms is None or self._now_ms() >= row.retry_at_ms

    def _fail_turn(self, row: Execution, sources: Sequence[Source], error: Exception) -> TurnTransaction:
        self._evict(row.execution_id)
        if self._meters is not None:
            self._meters.on_turn_failed(row.workflow)
        now_ms = self._now_ms()
        with within_execution(row.execution_id, row.traceparent):
            _log.warning("turn failed", execution_id=row.execution_id, turn=row.turn + 1, error=str(error))
        info = describe(error)
        row = self._begin_span(row, sources, info.type)
        row = with_failed_build(row, self._build, is_unfit=isinstance(error, DeterminismError))
        turn = failed_turn(
            row, info, now_ms, self._context(now_ms), has_untried_build=self._host.has_untried_build(row)
        )
        for source in sources:
            if isinstance(source.event, Woken):
                # The wake-up is used up, unless the failed turn has just set its timer again.
                set_again = {write.item.get("timer_id") for write in turn.writes if isinstance(write, Put)}
                if isinstance(source.removal, Delete) and source.removal.key.partition not in set_again:
                    turn.writes.append(source.removal)
            elif not is_message(source):
                turn.writes.extend(self._inboxes.store_writes(row.execution_id, source, now_ms))
        return turn

    def _finish_dispatch(self, row: Execution, turn: Turn | None) -> Execution:
        self._evict_if_older(row)
        context = self._context(self._now_ms(), self._trace_of(row))
        done = self._dispatcher.finish(row, context, turn, self._on_dispatched)
        live = self._live.get(row.execution_id)
        if live is not None:
            live.row = done
        return done

    def _on_dispatched(self, step: Step) -> None:
        for execution_id in step.messages_to:
            self.read_inbox(execution_id)
        if step.timers_due_ms:
            self._host.on_timers_scheduled(step.timers_due_ms)
        if step.cancelled:
            self._host.on_activities_cancelled(step.cancelled)
        if step.cancel_requested:
            self._host.on_cancel_requested(step.cancel_requested)

    # After the commit.

    def _on_committed(self, turn: TurnTransaction) -> None:
        row = turn.execution
        if turn.timers_due_ms:
            self._host.on_timers_scheduled(turn.timers_due_ms)
        if turn.cancelled:
            self._host.on_activities_cancelled(turn.cancelled)
        if turn.message_to is not None:
            self.read_inbox(turn.message_to)
        live = self._live.get(row.execution_id)
        if live is not None:
            live.row = row
        if row.dispatched is not None:
            try:
                self._finish_dispatch(row, turn.turn)
            except ConflictError:
                # Another worker has continued it.
                self._evict(row.execution_id)
            except TransientError as exc:
                # The turn is committed, and the rest of its dispatch follows in a later cycle. Others need not wait.
                _log.warning("store unavailable; dispatch deferred", execution_id=row.execution_id, error=str(exc))
                self._evict(row.execution_id)
                self.read_inbox(row.execution_id)
        self._end_span(turn)
        if live is not None and (live.interpreter.closed is not None or self._replay_always):
            self._evict(row.execution_id)
        if row.status.is_closed:
            self._on_closed(row)

    def _on_closed(self, row: Execution) -> None:
        if self._meters is not None:
            self._meters.on_closed(row.workflow, row.status.value)
        self._host.on_execution_closed(row)

    def _on_refused(self, execution_id: str, work: Work, turn: TurnTransaction, refusal: HeadgateError) -> None:
        self._evict(execution_id)
        if self._meters is not None:
            self._meters.on_turn_conflict()
        self._host.on_claims_discarded(turn.claims)
        if not isinstance(refusal, ConflictError):
            raise refusal
        failed = [turn.writes[place] for place in refusal.failures if place > 0]
        if any(isinstance(write, Check) for write in failed):
            self._host.on_lease_lost()
        # A refused removal means that the event is gone: its timer was cancelled, or its claim was lost.
        work.sources = [source for source in work.sources if source.removal not in failed]
        self.ready.put_back([(execution_id, work)])

    def _commit(self, transactions: Sequence[Sequence[Write]]) -> list[HeadgateError | None]:
        if not transactions:
            return []
        if len(transactions) == 1:
            try:
                self._store.transact(transactions[0])
            except ConflictError as exc:
                return [exc]
            return [None]
        return self._store.transact_many(transactions)

    def _context(self, now_ms: int, traceparent: str = "") -> TurnContext:
        return TurnContext(now_ms, self._host.worker_id, *self._callables, traceparent)

    # Spans, if tracing is on.

    def _begin_span(self, row: Execution, sources: Sequence[Source], error: str = "") -> Execution:
        """Begin the span of a turn, and return the execution with its trace context."""
        if self._spans is not None:
            row, self._open_spans[row.execution_id] = self._spans.begin(row, sources, error)
        return row

    def _trace_of(self, row: Execution) -> str:
        """Return the trace context for what the current turn starts and sends."""
        span = self._open_spans.get(row.execution_id) if self._spans is not None else None
        return row.traceparent if span is None else span.context

    def _end_span(self, turn: TurnTransaction) -> None:
        span = self._open_spans.pop(turn.execution.execution_id, None) if self._spans is not None else None
        if span is not None and self._spans is not None:
            self._spans.end(span, turn)

    def _retention_of(self, workflow: str) -> float | None:
        definition = self._workflows.get(workflow)
        return None if definition is None else definition.retention_seconds

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)

    def _evict_if_older(self, row: Execution) -> None:
        live = self._live.get(row.execution_id)
        if live is not None and live.row.version != row.version:
            self._evict(row.execution_id)

    def _evict_batch(self, batch: Sequence[tuple[str, Work]]) -> None:
        for execution_id, _ in batch:
            self._evict(execution_id)

    def _evict(self, execution_id: str) -> None:
        self._open_spans.pop(execution_id, None)
        self._drop_live(execution_id)

    def _drop_live(self, execution_id: str) -> None:
        live = self._live.pop(execution_id, None)
        if live is not None and live.interpreter.closed is None:
            if self._meters is not None:
                self._meters.on_evicted()
            live.interpreter.evict()


def _is_store_error(error: HeadgateError) -> bool:
    """Whether an error comes from the store and not from the workflow."""
    if isinstance(error, DeterminismError):
        return False
    return isinstance(error, (TransientError, FatalError, ConflictError))
