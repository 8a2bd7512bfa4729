"""Signal writer: applies signal updates under optimistic versions, with history, events and incidents.

An update, its history row, its outbox event and the changes to its incident are one transaction. A batch is written in
rounds: updates that lost a race are decided again from the row that the store returned with the conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import (
    ConflictError,
    HeadgateError,
    InvalidPayloadError,
    StoreUnavailableError,
    TransientError,
    UserError,
)
from headgate.health.incidents.decisions import QUIET_MS, dedup_key_for
from headgate.health.incidents.rows import TimerKind, due_put
from headgate.health.incidents.service import Incidents
from headgate.health.incidents.writes import IncidentDrafts, IncidentPlan
from headgate.health.model import freshness
from headgate.health.model.datasets import DatasetProfile, OnSilence
from headgate.health.model.enums import FRESHNESS, STATE_OK, SignalState
from headgate.health.model.events import EventWrites, no_event_writes, signal_changed
from headgate.health.model.freshness import PIPELINE_RUN
from headgate.health.model.incidents import Incident, Link
from headgate.health.model.signals import (
    APPLIED,
    Signal,
    SignalUpdate,
    UpdateResult,
    UpdateVerdict,
    checked,
    signal_key,
)
from headgate.health.model.timestamps import milliseconds
from headgate.health.observer import HealthObserver, NullObserver
from headgate.health.signals.decisions import (
    SignalDecision,
    decide,
    is_same_breach,
    rejection,
    report_of,
    with_incident,
)
from headgate.health.signals.freshness_rows import freshness_put
from headgate.health.signals.reads import SignalLookups
from headgate.health.signals.rows import HISTORY_SECONDS, QUIET_DAYS, history_row, late_row, signal_of, signal_row
from headgate.health.signals.volumes import hour_put, late_put
from headgate.ids import IdMaker
from headgate.store.cache import keys as cache_keys
from headgate.store.cache.read_through import Cache
from headgate.store.catalogue.tables import SIGNAL_HISTORY, SIGNAL_STATE
from headgate.store.keyring import Keyring
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Put, Query, Range, Sort, Write
from headgate.store.port import Store
from headgate.store.resilience.rate_limiter import Priority, prioritised

BATCH_MAX: Final = 500
ROUNDS_MAX: Final = 10


class _Pending(Struct, gc=False):
    """An update that has no result yet: the signal as read, the decision, and the incident plan."""

    index: int
    update: SignalUpdate
    profile: DatasetProfile
    current: Signal | None
    cache_key: cache_keys.Key
    decision: SignalDecision | None = None
    plan: IncidentPlan | None = None
    # `current` came from the cache and may be outdated.
    is_cached: bool = False


class _Batch:
    """The state of one call: results by the index of their update, history rows of late windows, changed signals."""

    __slots__ = ("changed", "late", "pending", "results")

    def __init__(self) -> None:
        self.results: dict[int, UpdateResult] = {}
        self.pending: list[_Pending] = []
        self.late: dict[int, list[Put]] = {}
        self.changed: list[Signal] = []


class Signals(SignalLookups):
    """Signals of one store. Safe to use from many threads."""

    def __init__(  # noqa: PLR0913 - the store and its neighbours
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        cache: Cache,
        keyring: Keyring,
        *,
        profiles: Callable[[Sequence[str]], Mapping[str, DatasetProfile]],
        event_writes: EventWrites = no_event_writes,
        incidents: Incidents | None = None,
        observer: HealthObserver | None = None,
        history_seconds: int = HISTORY_SECONDS,
        quiet_days: int = QUIET_DAYS,
        on_silence: OnSilence = OnSilence.CRITICAL,
    ) -> None:
        """Take the store and its neighbours.

        `profiles` returns the profiles of registered datasets. With `incidents`, a signal that becomes CRITICAL opens
        or joins an incident in the same transaction.
        """
        super().__init__(store, cache, keyring)
        self._clock = clock
        self._ids = ids
        self._profiles = profiles
        self._event_writes = event_writes
        self._incidents = incidents
        self._observer = observer if observer is not None else NullObserver()
        self._history_seconds = history_seconds
        self._quiet_days = quiet_days
        self._on_silence = on_silence

    def checked(self, update: SignalUpdate) -> SignalUpdate:
        """Return an update in canonical form. Raises `InvalidPayloadError` or `InvalidIdError`, naming every field."""
        return checked(update, self._now_ms())

    def update(self, update: SignalUpdate) -> UpdateResult:
        """Apply an update, or return why it was rejected; a conflict carries the current signal.

        Raises `InvalidPayloadError` or `InvalidIdError` for an invalid update, and what the store raises.
        """
        (result,) = self.apply_updates([checked(update, self._now_ms())])
        return result

    def update_many(self, updates: Sequence[SignalUpdate]) -> list[UpdateResult]:
        """Apply up to 500 updates independently and return a result for each, in their order.

        Raises `InvalidPayloadError` for more than that. A store error of one update is the result of that update.
        """
        if len(updates) > BATCH_MAX:
            raise InvalidPayloadError(f"updates: {len(updates)} at once; send at most {BATCH_MAX}")
        now_ms = self._now_ms()
        rejected: dict[int, UpdateResult] = {}
        valid: list[SignalUpdate] = []
        seen: set[tuple[str, str]] = set()
        for index, update in enumerate(updates):
            try:
                canonical = checked(update, now_ms)
            except UserError as exc:
                rejected[index] = UpdateResult(UpdateVerdict.INVALID, message=exc.message)
                continue
            key = (canonical.dataset_urn, canonical.signal_type)
            if key in seen:
                message = f"{key[0]} {key[1]}: a second update of one signal in one batch; send it in the next"
                rejected[index] = UpdateResult(UpdateVerdict.REPEATED_KEY, message=message)
                continue
            seen.add(key)
            valid.append(canonical)
        if rejected:
            self._observer.on_updates_processed([(updates[index], result) for index, result in rejected.items()])
        applied = iter(self.apply_updates(valid))
        return [rejected[index] if index in rejected else next(applied) for index in range(len(updates))]

    def apply_updates(self, updates: Sequence[SignalUpdate]) -> list[UpdateResult]:
        """Apply updates that `checked` returned, each of a different signal, as `update_many` does."""
        batch = _Batch()
        self._load(updates, batch)
        rounds = 0
        while batch.pending and rounds < ROUNDS_MAX:
            rounds += 1
            self._run_round(batch)
        for each in batch.pending:
            message = f"{each.update.dataset_urn}: {ROUNDS_MAX} conflicts with other writers; send it again"
            batch.results[each.index] = UpdateResult(UpdateVerdict.UNAVAILABLE, each.current, message)
        self._write_late_windows(batch)
        if batch.changed:
            self._observer.on_signals_changed(batch.changed)
        results = [batch.results[index] for index in range(len(updates))]
        self._observer.on_updates_processed([*zip(updates, results, strict=True)])
        return results

    def _load(self, updates: Sequence[SignalUpdate], batch: _Batch) -> None:
        """Make the updates of registered datasets pending, with their signals from the cache or one store read.

        Each gets the URN its dataset is registered under. A cached signal is good enough: if another process changed
        it, the conditional write fails and returns the current row.
        """
        profiles = self._profiles([update.dataset_urn for update in updates])
        for index, update in enumerate(updates):
            urn = update.dataset_urn
            profile = profiles.get(urn)
            if profile is None:
                message = f"{urn}: the dataset is not registered; register it first"
                batch.results[index] = UpdateResult(UpdateVerdict.DATASET_NOT_FOUND, message=message)
                continue
            if profile.dataset_urn is not None:
                update = replace(update, dataset_urn=profile.dataset_urn)
            key = cache_keys.signal_state(update.dataset_urn, update.signal_type)
            batch.pending.append(_Pending(index, update, profile, None, key))
        cached = self._cache.peek_many([each.cache_key for each in batch.pending], Signal)
        for each, signal in zip(batch.pending, cached, strict=True):
            each.current, each.is_cached = signal, signal is not None
        self._read([each for each in batch.pending if not each.is_cached])

    def _read(self, pending: Sequence[_Pending]) -> None:
        """Read the signals of pending updates from the store."""
        if not pending:
            return
        keys = [signal_key(each.update.dataset_urn, each.update.signal_type) for each in pending]
        for each, row in zip(pending, self._store.get_many(SIGNAL_STATE, keys, consistent=True), strict=True):
            each.current, each.is_cached = None if row is None else signal_of(row), False

    def _run_round(self, batch: _Batch) -> None:
        """Decide and write every pending update. Those that lost a race stay pending."""
        now_ms = self._now_ms()
        ready = [each for each in batch.pending if self._decide(each, now_ms, batch)]
        batch.pending = []
        if not ready:
            return
        incidents, drafts = self._incidents_of(ready), IncidentDrafts()
        has_transition = any(each.decision is not None and each.decision.is_transition for each in ready)
        with prioritised(Priority.TRANSITION if has_transition else Priority.REFRESH):
            errors = self._transact([self._writes(each, now_ms, incidents, drafts) for each in ready])
        if not any(errors):
            self._record_applied(ready, batch)
            return
        outcomes = list(zip(ready, errors, strict=True))
        self._record_applied([each for each, error in outcomes if error is None], batch)
        batch.pending = [
            each for each, error in outcomes if error is not None and not self._record_error(each, error, batch)
        ]

    def _decide(self, each: _Pending, now_ms: int, batch: _Batch) -> bool:
        """Decide about an update. Return whether it is to be written; if not, record its result."""
        each.decision = decision = decide(each.current, each.update, each.profile, now_ms)
        if decision.verdict is APPLIED:
            return True
        if each.is_cached:
            # An update is rejected on the strength of the store, never of the cache.
            self._read([each])
            return self._decide(each, now_ms, batch)
        if decision.verdict is UpdateVerdict.STALE_WINDOW and decision.signal is not None:
            batch.late[each.index] = [
                Put(SIGNAL_HISTORY, late_row(decision.signal, now_ms // 1000, self._history_seconds))
            ]
            if decision.volume is not None:
                batch.late[each.index].append(late_put(each.update.dataset_urn, decision.volume))
        message = rejection(each.update, each.current, decision.verdict)
        batch.results[each.index] = UpdateResult(decision.verdict, each.current, message)
        return False

    def _transact(self, transactions: Sequence[Sequence[Write]]) -> list[HeadgateError | None]:
        """Apply transactions, and return the error of each that failed.

        The store rejects the whole call if one of them is invalid; then each is applied by itself.
        """
        try:
            return self._store.transact_many(transactions)
        except UserError:
            return [self._transact_one(writes) for writes in transactions]

    def _transact_one(self, writes: Sequence[Write]) -> HeadgateError | None:
        try:
            self._store.transact(writes)
        except (UserError, ConflictError, TransientError) as exc:
            return exc
        return None

    def _write_late_windows(self, batch: _Batch) -> None:
        """Add late windows to the history, except those it has: they were applied in time and sent again."""
        for index, (history_put, *volume_puts) in batch.late.items():
            same_window = Sort(Range.BEGINS_WITH, f"{history_put.item['window_end']}#")
            query = Query(
                table=SIGNAL_HISTORY, partition=history_put.item["PK"], sort=same_window, limit=1, descending=True
            )
            try:
                writes = volume_puts if self._store.query(query).items else [history_put, *volume_puts]
                if writes:
                    # Idempotent: a caller without an answer sends the window again.
                    self._store.batch_write(writes)
            except StoreUnavailableError:
                raise
            except TransientError as exc:
                batch.results[index] = UpdateResult(UpdateVerdict.UNAVAILABLE, batch.results[index].signal, exc.message)

    def _incidents_of(self, ready: Sequence[_Pending]) -> dict[str, Incident]:
        """Return the incidents that the signals are linked to, in one read."""
        if self._incidents is None:
            return {}
        ids = (each.current.value.incident_id for each in ready if each.current is not None)
        incidents = self._incidents.get_many(
            list(dict.fromkeys(each for each in ids if each is not None)), consistent=True
        )
        return {each.incident_id: each for each in incidents if each is not None}

    def _writes(
        self, each: _Pending, now_ms: int, incidents: Mapping[str, Incident], drafts: IncidentDrafts
    ) -> list[Write]:
        """Return the transaction of an update that is to be applied."""
        decision = each.decision
        assert decision is not None
        assert decision.signal is not None
        signal: Signal = decision.signal
        incident_writes: Sequence[Write] = ()
        each.plan = None
        # A signal that is OK and belongs to no incident changes none.
        value = signal.value
        if self._incidents is not None and not (value.state is STATE_OK and value.incident_id is None):
            signal, incident_writes = self._incident_writes(each, signal, now_ms, incidents, drafts)
            if signal is not decision.signal:
                each.decision = replace(decision, signal=signal)
        condition = absent() if each.current is None else version_is(each.current.version)
        is_change = decision.is_transition or bool(incident_writes)
        put = Put(SIGNAL_STATE, signal_row(signal, now_ms // 1000, self._quiet_days), condition, quiet=not is_change)
        puts: list[Write] = [put]
        if decision.volume is not None:
            puts.append(hour_put(signal.dataset_urn, decision.volume))
        if each.profile.freshness is not None and (decision.is_transition or signal.signal_type == PIPELINE_RUN):
            puts += self._timer_writes(each, signal, now_ms)
        if not decision.is_transition:
            return [*puts, *incident_writes] if incident_writes else puts
        history = Put(SIGNAL_HISTORY, history_row(signal, now_ms // 1000, self._history_seconds))
        return [*puts, history, *self._event_writes(signal_changed(signal, self._ids), now_ms), *incident_writes]

    def _timer_writes(self, each: _Pending, signal: Signal, now_ms: int) -> list[Put]:
        """Return the write of the freshness timer after a run, or after a transition of FRESHNESS.

        A refresh changes nothing: the timer reads the newest report when it is due. It may have ended with a finding,
        which a FRESHNESS report ends by a transition; a run is a report that the timer itself has to read.
        """
        promise = freshness.promise_of(each.profile.freshness, self._on_silence)
        if promise is None or each.update.of_timer:
            return []
        if signal.signal_type == PIPELINE_RUN:
            is_report = signal.state is STATE_OK
            return [freshness_put(signal.dataset_urn, now_ms, _expected_ms(signal))] if is_report else []
        if signal.signal_type != FRESHNESS:
            return []
        expected_ms = _expected_ms(signal)
        return [freshness_put(signal.dataset_urn, expected_ms + promise.warning_ms + 1, expected_ms)]

    def _incident_writes(
        self, each: _Pending, signal: Signal, now_ms: int, incidents: Mapping[str, Incident], drafts: IncidentDrafts
    ) -> tuple[Signal, list[Write]]:
        """Return the signal with its incident link, and the writes that open, join or leave incidents."""
        assert self._incidents is not None
        link = Link(signal.dataset_urn, signal.signal_type)
        linked = self._open_incident(signal, incidents, drafts)
        if linked is None and signal.value.incident_id is not None:
            # The incident is resolved; it had more signals than one transaction can unlink.
            signal = with_incident(signal, None)
        previous_state = None if each.current is None else each.current.state
        if signal.state is STATE_OK and linked is not None and previous_state is not STATE_OK:
            return signal, [due_put(TimerKind.RECOVERY, linked.incident_id, now_ms + QUIET_MS)]
        if signal.state is not SignalState.CRITICAL:
            return signal, []
        report = report_of(signal)
        is_same = each.current is not None and is_same_breach(each.current, signal)
        if is_same and linked is not None and dedup_key_for(report) in linked.keys and link in linked.links:
            return signal, []
        # A person may resolve an incident while its signal stays CRITICAL: the same breach does not reopen it soon.
        flaps = linked.incident_id if linked is not None and previous_state is STATE_OK else None
        plan = self._incidents.plan(
            report, each.profile, now_ms, (link,), is_new=not is_same, flaps=flaps, drafts=drafts
        )
        if plan is None:
            return signal, []
        each.plan, writes = plan, plan.writes
        if linked is not None and linked.incident_id != plan.incident.incident_id:
            after, leaving = self._incidents.leaving(linked, (link,), now_ms)
            drafts.note(after)
            writes = [*writes, *leaving]
        # An incident at its link limit does not hold this link, and could never unlink a signal that names it.
        return with_incident(signal, plan.incident.incident_id if link in plan.incident.links else None), writes

    def _open_incident(
        self, signal: Signal, incidents: Mapping[str, Incident], drafts: IncidentDrafts
    ) -> Incident | None:
        """Return the incident that a signal is linked to, if it is open."""
        incident_id = signal.value.incident_id
        if incident_id is None:
            return None
        incident = drafts.incident(incident_id) or incidents.get(incident_id)
        return incident if incident is not None and incident.is_open else None

    def _record_applied(self, applied: Sequence[_Pending], batch: _Batch) -> None:
        """Record committed updates in the batch and the cache, and report their incidents."""
        written: list[Signal] = []
        for each in applied:
            decision = each.decision
            assert decision is not None
            assert decision.signal is not None
            batch.results[each.index] = UpdateResult(APPLIED, decision.signal, is_transition=decision.is_transition)
            written.append(decision.signal)
            if decision.is_transition:
                batch.changed.append(decision.signal)
        self._cache.wrote_many(
            [(each.cache_key, signal, signal.version) for each, signal in zip(applied, written, strict=True)]
        )
        # After the cache is written: a committed incident invalidates the cached signals it changed.
        for each in applied:
            if each.plan is not None and self._incidents is not None:
                self._incidents.on_plan_committed(each.plan)

    def _record_error(self, each: _Pending, error: HeadgateError, batch: _Batch) -> bool:
        """Record a failed write. Return False for a conflict: the update is decided again from the current row."""
        if isinstance(error, ConflictError):
            if 0 in error.failures:
                row = error.failures[0]
                each.current, each.is_cached = None if row is None else signal_of(row), False
            return False
        if isinstance(error, TransientError | UserError) and not isinstance(error, StoreUnavailableError):
            verdict = UpdateVerdict.INVALID if isinstance(error, UserError) else UpdateVerdict.UNAVAILABLE
            batch.results[each.index] = UpdateResult(verdict, each.current, error.message)
            return True
        raise error

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _expected_ms(signal: Signal) -> int:
    """Return when the report after this one is expected, without delay."""
    return milliseconds(signal.value.window_end) + freshness.interval_ms(signal.value)
