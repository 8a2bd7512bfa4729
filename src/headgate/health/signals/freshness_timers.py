"""Freshness timers: find datasets whose freshness SLO has no report in time, once, and record it as their signal.

Reports do not touch the timer. When it is due, the newest report is read: if there is one in time, the timer moves to
the time at which the next one is overdue. So a refresh of a signal costs nothing, and a sweep reads only what is due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError, TransientError
from headgate.health.model import freshness
from headgate.health.model.datasets import Dataset, DatasetStatus, FreshnessSlo, OnSilence
from headgate.health.model.enums import FRESHNESS, SignalState
from headgate.health.model.signals import Metrics, Signal, SignalUpdate, SignalValue, UpdateVerdict, signal_key
from headgate.health.model.timestamps import instant
from headgate.health.signals.freshness_rows import freshness_delete, freshness_partitions, freshness_put
from headgate.health.signals.rows import signal_of
from headgate.health.signals.writer import Signals
from headgate.store.catalogue.tables import CONTROL, SIGNAL_STATE
from headgate.store.model.conditions import Condition, equals
from headgate.store.model.requests import Poll, Query, Range, Sort, Write
from headgate.store.model.values import Item
from headgate.store.port import Store

BATCH: Final = 500


class TimerDecision(Struct, frozen=True):
    """What a due timer does: write a value as the FRESHNESS signal, if any, and move on, or end without a time."""

    value: SignalValue | None
    due_at_ms: int | None
    expected_ms: int


def decide(
    slo: FreshnessSlo | None, default: OnSilence, signals: Sequence[Signal], expected_ms: int, now_ms: int
) -> TimerDecision:
    """Return what the due timer of a dataset does. `signals` are its reports, `expected_ms` is that of the timer."""
    held = next((each for each in signals if each.signal_type == FRESHNESS), None)
    is_finding = held is not None and freshness.is_overdue_finding(held.value)
    promise = freshness.promise_of(slo, default)
    if promise is None:
        # A finding ends with the promise. Its window is old, and the gate says so.
        return TimerDecision(_withdrawn(held.value) if held is not None and is_finding else None, None, expected_ms)
    report = freshness.newest_report(signals)
    expected_ms = expected_ms if report is None else max(expected_ms, report.expected_ms)
    state = freshness.state_of(promise, expected_ms, now_ms)
    due_at_ms = freshness.next_change_ms(promise, expected_ms, now_ms)
    value: SignalValue | None = None
    if state is SignalState.OK:
        value = _recovered(held.value, signals) if held is not None and is_finding else None
    elif _is_worse(state, held) or (is_finding and held is not None and held.state is not state):
        value = _finding(held, state, expected_ms)
    return TimerDecision(value, due_at_ms, expected_ms)


def _is_worse(state: SignalState, held: Signal | None) -> bool:
    """Whether a finding says more than the signal does."""
    if held is None or not held.state.is_breach:
        return True
    return state is SignalState.CRITICAL and held.state is not SignalState.CRITICAL


def _finding(held: Signal | None, state: SignalState, expected_ms: int) -> SignalValue:
    """Return the finding that no report came. It keeps the window of the last one, so that every later one counts."""
    at = instant(expected_ms)
    last = held.value if held is not None else SignalValue(state=state, score=0.0, window_start=at, window_end=at)
    return SignalValue(
        state=state,
        score=0.0,
        slo_threshold=last.slo_threshold,
        window_start=last.window_start,
        window_end=last.window_end,
        window_type=last.window_type,
        metrics=Metrics(),
        failure_signature=freshness.OVERDUE,
    )


def _recovered(finding: SignalValue, signals: Sequence[Signal]) -> SignalValue:
    """Return the value after a finding: OK, with the window of the run that wrote the dataset, if one did.

    Otherwise the SLO was relaxed, and the finding is withdrawn.
    """
    run = next((each for each in signals if each.signal_type == freshness.PIPELINE_RUN), None)
    if run is None or run.state is not SignalState.OK or run.value.window_end < finding.window_end:
        return _withdrawn(finding)
    value = run.value
    return SignalValue(
        state=SignalState.OK,
        score=1.0,
        window_start=value.window_start,
        window_end=value.window_end,
        window_type=value.window_type,
    )


def _withdrawn(finding: SignalValue) -> SignalValue:
    return replace(finding, state=SignalState.OK, failure_signature=None, breach_start=None, incident_id=None)


class FreshnessTimers:
    """Runs due freshness timers. Safe to run in any number of processes: a finding is recorded once."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        signals: Signals,
        *,
        stored: Callable[[Sequence[str]], Mapping[str, Dataset]],
        on_silence: OnSilence = OnSilence.CRITICAL,
    ) -> None:
        """Take the store, and `stored`, which returns datasets from the store by exactly their URN."""
        self._store = store
        self._clock = clock
        self._signals = signals
        self._stored = stored
        self._on_silence = on_silence

    def sweep(self, *, limit: int = BATCH) -> int:
        """Run due timers, up to a limit, and return their count. Raises `TransientError` after the others have run."""
        rows = self._due(limit)
        if not rows:
            return 0
        urns = [row["dataset_urn"] for row in rows]
        datasets, reports = self._stored(urns), self._reports(urns)
        now_ms = self._now_ms()
        decisions = [
            decide(_slo(datasets.get(urn)), self._on_silence, reports[urn], row["expected_ms"], now_ms)
            for urn, row in zip(urns, rows, strict=True)
        ]
        failed = self._record(urns, decisions, reports)
        # A timer moves on after its finding is durable: a crash in between repeats the finding, which changes nothing.
        moves = [
            _move(row, decision) for urn, row, decision in zip(urns, rows, decisions, strict=True) if urn not in failed
        ]
        for error in self._store.transact_many(moves) if moves else []:
            # A conflict: another process ran the timer, or the SLO or a signal changed and set it again.
            if error is not None and not isinstance(error, ConflictError):
                raise error
        if any(isinstance(each, TransientError) for each in failed.values()):
            raise next(each for each in failed.values() if each is not None)
        return len(rows)

    def _due(self, limit: int) -> list[Item]:
        upto = Sort(Range.AT_MOST, self._now_ms())
        pages = self._store.query_many(
            [
                Query(table=CONTROL, index="due-index", partition=partition, sort=upto, limit=limit, poll=Poll.RELAXED)
                for partition in freshness_partitions()
            ]
        )
        return sorted((row for page in pages for row in page.items), key=lambda row: row["due_at_ms"])[:limit]

    def _reports(self, urns: Sequence[str]) -> dict[str, list[Signal]]:
        keys = [signal_key(urn, kind) for urn in urns for kind in freshness.REPORT_TYPES]
        found: dict[str, list[Signal]] = {urn: [] for urn in urns}
        for row in self._store.get_many(SIGNAL_STATE, keys, consistent=True):
            if row is not None:
                found[row["PK"]].append(signal_of(row))
        return found

    def _record(
        self, urns: Sequence[str], decisions: Sequence[TimerDecision], reports: Mapping[str, Sequence[Signal]]
    ) -> dict[str, TransientError | None]:
        """Write the findings, and return the datasets whose timer stays due, each with its error if there is one."""
        updates = [
            SignalUpdate(
                dataset_urn=urn,
                signal_type=FRESHNESS,
                value=decision.value,
                # A report that arrives meanwhile wins: the timer is then decided again from it.
                expected_version=next((each.version for each in reports[urn] if each.signal_type == FRESHNESS), 0),
                is_counted=False,
                of_timer=True,
            )
            for urn, decision in zip(urns, decisions, strict=True)
            if decision.value is not None
        ]
        if not updates:
            return {}
        failed: dict[str, TransientError | None] = {}
        for update, result in zip(updates, self._signals.update_many(updates), strict=True):
            if result.verdict is UpdateVerdict.UNAVAILABLE:
                failed[update.dataset_urn] = TransientError(result.message)
            elif not result.is_success and result.verdict is not UpdateVerdict.DATASET_NOT_FOUND:
                failed[update.dataset_urn] = None
        return failed

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _slo(dataset: Dataset | None) -> FreshnessSlo | None:
    if dataset is None or dataset.slos is None or dataset.status is DatasetStatus.DELETED:
        return None
    return dataset.slos.freshness


def _move(row: Item, decision: TimerDecision) -> list[Write]:
    """Return the transaction that moves a timer on, or ends it, conditional on the row as read."""
    urn = row["dataset_urn"]
    as_read: Condition = equals("due_at_ms", row["due_at_ms"])
    if decision.due_at_ms is None:
        return [freshness_delete(urn, as_read)]
    return [freshness_put(urn, decision.due_at_ms, decision.expected_ms, as_read)]
