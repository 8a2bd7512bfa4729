"""Signals: taken over by version and window, kept with their history, and made known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError, HeadgateError, InvalidPayloadError, TransientError, UserError
from headgate.health.incidents.decisions import QUIET_MS, dedup_key_for
from headgate.health.incidents.plans import IncidentDrafts, IncidentPlan
from headgate.health.incidents.rows import TimerKind, due_put
from headgate.health.incidents.service import Incidents
from headgate.health.model.datasets import DatasetProfile
from headgate.health.model.enums import SignalState
from headgate.health.model.events import EventWrites, no_event_writes, signal_changed
from headgate.health.model.incidents import Incident, Link
from headgate.health.model.signals import Signal, SignalUpdate, UpdateResult, UpdateVerdict, checked, signal_key
from headgate.health.signals.decisions import SignalDecision, decide
from headgate.health.signals.reads import SignalLookups
from headgate.health.signals.results import is_same_breach, refusal, report_of, with_incident
from headgate.health.signals.rows import history_row, late_row, signal_of, signal_row
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


class _Pending(Struct):
    """An update on its way: what was read, what was decided, and what of it is to be written."""

    index: int
    update: SignalUpdate
    profile: DatasetProfile
    current: Signal | None
    cache_key: cache_keys.Key
    decision: SignalDecision | None = None
    plan: IncidentPlan | None = None
    # Whether what was read came from memory, and may have been overtaken.
    is_remembered: bool = False


class Signals(SignalLookups):
    """Signals of one store. Safe to use from many threads."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        cache: Cache,
        keyring: Keyring,
        *,
        profiles: Callable[[Sequence[str]], Mapping[str, DatasetProfile]],
        announce: EventWrites = no_event_writes,
        incidents: Incidents | None = None,
    ) -> None:
        """Take what signals are kept with.

        `profiles` says what the registry knows of datasets, of those that it knows. With `incidents`, a signal that
        becomes CRITICAL opens one or joins it, in the same transaction.
        """
        super().__init__(store, cache, keyring)
        self._clock = clock
        self._ids = ids
        self._standings = profiles
        self._announce = announce
        self._incidents = incidents
        # Told, once they are durable, of signals that changed their state; and of what was made of each update.
        self.told: Callable[[Sequence[Signal]], None] = lambda _signals: None
        self.counted: Callable[[Sequence[tuple[SignalUpdate, UpdateResult]]], None] = lambda _made: None

    def checked(self, update: SignalUpdate) -> SignalUpdate:
        """Return an update in canonical form. Raises `InvalidPayloadError` or `InvalidIdError`, naming every field."""
        return checked(update, self._now_ms())

    def update(self, update: SignalUpdate) -> UpdateResult:
        """Take over a value, or say why not; a conflict carries the signal as it stands.

        Raises `InvalidPayloadError` or `InvalidIdError` for what cannot be said, and what the store raises.
        """
        (result,) = self.apply_updates([checked(update, self._now_ms())])
        return result

    def update_many(self, updates: Sequence[SignalUpdate]) -> list[UpdateResult]:
        """Take over up to 500 values, each by itself, and return what was made of each, in their order.

        Raises `InvalidPayloadError` for more than that. What the store refuses for one is the result of that one.
        """
        if len(updates) > BATCH_MAX:
            raise InvalidPayloadError(f"updates: {len(updates)} at once; send at most {BATCH_MAX}")
        now_ms = self._now_ms()
        refused: dict[int, UpdateResult] = {}
        sound: list[SignalUpdate] = []
        seen: set[tuple[str, str]] = set()
        for index, update in enumerate(updates):
            try:
                canonical = checked(update, now_ms)
            except UserError as exc:
                refused[index] = UpdateResult(UpdateVerdict.INVALID, message=exc.message)
                continue
            key = (canonical.dataset_urn, canonical.signal_type)
            if key in seen:
                message = f"{key[0]} {key[1]}: a second update of one signal in one batch; send it in the next"
                refused[index] = UpdateResult(UpdateVerdict.REPEATED_KEY, message=message)
                continue
            seen.add(key)
            sound.append(canonical)
        if refused:
            self.counted([(updates[index], result) for index, result in refused.items()])
        taken = iter(self.apply_updates(sound))
        return [refused[index] if index in refused else next(taken) for index in range(len(updates))]

    def apply_updates(self, updates: Sequence[SignalUpdate]) -> list[UpdateResult]:
        """Take over values that `checked` returned, each of another signal, as `update_many` does."""
        results: dict[int, UpdateResult] = {}
        pending = self._known(updates, results)
        late: dict[int, list[Put]] = {}
        changed: list[Signal] = []
        rounds = 0
        while pending and rounds < ROUNDS_MAX:
            rounds += 1
            now_ms = self._now_ms()
            ready = [each for each in pending if self._decide(each, now_ms, results, late)]
            pending = self._written(ready, now_ms, results, changed) if ready else []
        for each in pending:
            message = f"{each.update.dataset_urn}: others were faster {ROUNDS_MAX} times; send it again"
            results[each.index] = UpdateResult(UpdateVerdict.UNAVAILABLE, each.current, message)
        self._note_late(late, results)
        if changed:
            self.told(changed)
        made = [results[index] for index in range(len(updates))]
        self.counted([*zip(updates, made, strict=True)])
        return made

    def _written(
        self, ready: Sequence[_Pending], now_ms: int, results: dict[int, UpdateResult], changed: list[Signal]
    ) -> list[_Pending]:
        """Write what was decided, note it and which signals changed, and return what is to be decided anew."""
        incidents, drafts = self._incidents_of(ready), IncidentDrafts()
        changes = [each for each in ready if each.decision is not None and each.decision.is_transition]
        with prioritised(Priority.TRANSITION if changes else Priority.REFRESH):
            outcomes = self._applied([self._writes(each, now_ms, incidents, drafts) for each in ready])
        if not any(outcomes):
            changed += self._noted(ready, results)
            return []
        outcome_of = list(zip(ready, outcomes, strict=True))
        changed += self._noted([each for each, error in outcome_of if error is None], results)
        return [each for each, error in outcome_of if error is not None and not self._is_settled(each, error, results)]

    def _applied(self, transactions: Sequence[Sequence[Write]]) -> list[HeadgateError | None]:
        """Apply transactions, and return the error of each that was refused.

        One that cannot be written at all is refused before any is applied: then each is tried by itself.
        """
        try:
            return self._store.transact_many(transactions)
        except UserError:
            return [self._applied_alone(writes) for writes in transactions]

    def _applied_alone(self, writes: Sequence[Write]) -> HeadgateError | None:
        try:
            self._store.transact(writes)
        except (UserError, ConflictError, TransientError) as exc:
            return exc
        return None

    def _note_late(self, late: Mapping[int, list[Put]], results: dict[int, UpdateResult]) -> None:
        """Note windows that came too late, but for those that the history has: they counted, and are sent again."""
        for index, (noted, *volume) in late.items():
            begins = Sort(Range.BEGINS_WITH, f"{noted.item['window_end']}#")
            query = Query(table=SIGNAL_HISTORY, partition=noted.item["PK"], sort=begins, limit=1, descending=True)
            try:
                writes = volume if self._store.query(query).items else [noted, *volume]
                if writes:
                    # Each may be written again: who is not answered sends the window once more.
                    self._store.batch_write(writes)
            except TransientError as exc:
                results[index] = UpdateResult(UpdateVerdict.UNAVAILABLE, results[index].signal, exc.message)

    def _known(self, updates: Sequence[SignalUpdate], results: dict[int, UpdateResult]) -> list[_Pending]:
        """Return the updates of registered datasets with their signals, remembered or else read at one go.

        Each is under the name that its dataset is registered by. Memory will do: a signal that someone else has
        changed since refuses the write, and says how it stands.
        """
        profiles = self._standings([update.dataset_urn for update in updates])
        known: list[_Pending] = []
        for index, update in enumerate(updates):
            urn = update.dataset_urn
            profile = profiles.get(urn)
            if profile is None:
                message = f"{urn}: no such dataset is registered; register it first"
                results[index] = UpdateResult(UpdateVerdict.DATASET_NOT_FOUND, message=message)
                continue
            if profile.dataset_urn is not None:
                update = replace(update, dataset_urn=profile.dataset_urn)
            key = cache_keys.signal_state(update.dataset_urn, update.signal_type)
            known.append(_Pending(index, update, profile, None, key))
        for each, held in zip(known, self._cache.peek_many([each.cache_key for each in known], Signal), strict=True):
            each.current, each.is_remembered = held, held is not None
        self._read([each for each in known if not each.is_remembered])
        return known

    def _read(self, pending: Sequence[_Pending]) -> None:
        """Read the signals of updates as they stand."""
        if not pending:
            return
        keys = [signal_key(each.update.dataset_urn, each.update.signal_type) for each in pending]
        for each, row in zip(pending, self._store.get_many(SIGNAL_STATE, keys, consistent=True), strict=True):
            each.current, each.is_remembered = None if row is None else signal_of(row), False

    def _decide(
        self, each: _Pending, now_ms: int, results: dict[int, UpdateResult], late: dict[int, list[Put]]
    ) -> bool:
        """Decide about an update, and return whether anything is to be written for it under a condition."""
        each.decision = decision = decide(each.current, each.update, each.profile, now_ms)
        if decision.verdict is UpdateVerdict.APPLIED:
            return True
        if each.is_remembered:
            # Nobody is refused for what memory says.
            self._read([each])
            return self._decide(each, now_ms, results, late)
        if decision.verdict is UpdateVerdict.STALE_WINDOW and decision.signal is not None:
            late[each.index] = [Put(SIGNAL_HISTORY, late_row(decision.signal, now_ms // 1000))]
            if decision.volume is not None:
                late[each.index].append(late_put(each.update.dataset_urn, decision.volume))
        message = refusal(each.update, each.current, decision.verdict)
        results[each.index] = UpdateResult(decision.verdict, each.current, message)
        return False

    def _incidents_of(self, ready: Sequence[_Pending]) -> dict[str, Incident]:
        """Return the incidents that signals belong to, in one read."""
        if self._incidents is None:
            return {}
        named = (each.current.value.incident_id for each in ready if each.current is not None)
        wanted = list(dict.fromkeys(each for each in named if each is not None))
        found = self._incidents.get_many(wanted, consistent=True)
        return {each.incident_id: each for each in found if each is not None}

    def _writes(
        self, each: _Pending, now_ms: int, incidents: Mapping[str, Incident], drafts: IncidentDrafts
    ) -> list[Write]:
        decision = each.decision
        assert decision is not None
        assert decision.signal is not None
        signal, more = decision.signal, list[Write]()
        if self._incidents is not None:
            signal, more = self._incident_writes(each, signal, now_ms, incidents, drafts)
            if signal is not decision.signal:
                each.decision = replace(decision, signal=signal)
        condition = absent() if each.current is None else version_is(each.current.version)
        is_news = decision.is_transition or bool(more)
        put = Put(SIGNAL_STATE, signal_row(signal, now_ms // 1000), condition, quiet=not is_news)
        puts = [put] if decision.volume is None else [put, hour_put(signal.dataset_urn, decision.volume)]
        if not decision.is_transition:
            return [*puts, *more]
        history = Put(SIGNAL_HISTORY, history_row(signal, now_ms // 1000))
        return [*puts, history, *self._announce(signal_changed(signal, self._ids), now_ms), *more]

    def _incident_writes(
        self, each: _Pending, signal: Signal, now_ms: int, incidents: Mapping[str, Incident], drafts: IncidentDrafts
    ) -> tuple[Signal, list[Write]]:
        """Return the signal with its incident, and what opening, joining, leaving or quieting that takes."""
        assert self._incidents is not None
        each.plan = None
        if signal.state is SignalState.OK and signal.value.incident_id is None:
            return signal, []
        link = Link(signal.dataset_urn, signal.signal_type)
        held = self._held(signal, incidents, drafts)
        if held is None and signal.value.incident_id is not None:
            # It was resolved, by someone who could not let all of its signals go at once.
            signal = with_incident(signal, None)
        was = None if each.current is None else each.current.state
        if signal.state is SignalState.OK and held is not None and was is not SignalState.OK:
            return signal, [due_put(TimerKind.RECOVERY, held.incident_id, now_ms + QUIET_MS)]
        if signal.state is not SignalState.CRITICAL:
            return signal, []
        trouble = report_of(signal)
        is_same = each.current is not None and is_same_breach(each.current, signal)
        if is_same and held is not None and dedup_key_for(trouble) in held.keys and link in held.links:
            return signal, []
        # Resolved by someone while the signal stayed as it was: they know, and are left alone for a while.
        plan = self._incidents.plan(trouble, each.profile, now_ms, (link,), reopens=not is_same, drafts=drafts)
        if plan is None:
            return signal, []
        each.plan, writes = plan, plan.writes
        if held is not None and held.incident_id != plan.incident.incident_id:
            after, leaving = self._incidents.leaving(held, (link,), now_ms)
            drafts.note(after)
            writes = [*writes, *leaving]
        # One that holds as many as it can has it noted, and is not named by it: nobody could take that back.
        return with_incident(signal, plan.incident.incident_id if link in plan.incident.links else None), writes

    def _held(self, signal: Signal, incidents: Mapping[str, Incident], drafts: IncidentDrafts) -> Incident | None:
        """Return the incident that a signal belongs to, if that is still open."""
        incident_id = signal.value.incident_id
        if incident_id is None:
            return None
        found = drafts.incident(incident_id) or incidents.get(incident_id)
        return found if found is not None and found.is_open else None

    def _noted(self, applied: Sequence[_Pending], results: dict[int, UpdateResult]) -> list[Signal]:
        """Note what the store took over, and return the signals that changed their state, as they now stand."""
        written: list[Signal] = []
        changed: list[Signal] = []
        for each in applied:
            decision = each.decision
            assert decision is not None
            assert decision.signal is not None
            results[each.index] = UpdateResult(
                UpdateVerdict.APPLIED, decision.signal, is_transition=decision.is_transition
            )
            written.append(decision.signal)
            if decision.is_transition:
                changed.append(decision.signal)
        self._cache.wrote_many(
            [(each.cache_key, signal, signal.version) for each, signal in zip(applied, written, strict=True)]
        )
        # Only then: whoever is told of an incident lets memory forget what it has changed.
        for each in applied:
            if each.plan is not None and self._incidents is not None:
                self._incidents.told_of(each.plan)
        return changed

    def _is_settled(self, each: _Pending, error: HeadgateError, results: dict[int, UpdateResult]) -> bool:
        """Note what the store refused. Returns False if the update is to be decided anew from what it said."""
        if isinstance(error, ConflictError):
            if 0 in error.failures:
                row = error.failures[0]
                each.current, each.is_remembered = None if row is None else signal_of(row), False
            return False
        if isinstance(error, TransientError | UserError):
            verdict = UpdateVerdict.INVALID if isinstance(error, UserError) else UpdateVerdict.UNAVAILABLE
            results[each.index] = UpdateResult(verdict, each.current, error.message)
            return True
        raise error

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)
