"""Directives: orders of operators for one period, stored in its run log. They do not touch an active run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError, IllegalTransitionError
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.row_codec import required
from headgate.pipelines.runs import run_log
from headgate.pipelines.runs.rows import Directive, Order, RunLog, Slot, run_log_key, run_log_of, run_log_put
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.requests import Write
from headgate.store.port import Store

# Writes for the same transaction, or a function that makes them from the changed log.
Also = Sequence[Write] | Callable[[RunLog], Sequence[Write]]

_RACES_MAX: Final = 10


class Directives:
    """Stores orders. Each needs an author and a reason, and raises `InvalidPayloadError` without."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def hold(self, slot: Slot, *, by: str, reason: str, also: Also = ()) -> RunLog:
        """Block the job of a period until it is approved. Raises `IllegalTransitionError` if it has started."""

        def held(log: RunLog, now_ms: int) -> RunLog:
            if log.status is not RunStatus.PENDING:
                raise _too_late(log, "hold")
            return replace(log, hold=_directive(slot, Order.HOLD, by, reason, now_ms))

        return self._change(slot, held, also)

    def approve(self, slot: Slot, *, by: str, reason: str, also: Also = ()) -> RunLog:
        """Release a held period. Raises `IllegalTransitionError` if it is not held."""
        required(str(slot), "by", by), required(str(slot), "reason", reason)

        def approved(log: RunLog, now_ms: int) -> RunLog:
            if log.hold is None:
                raise IllegalTransitionError(f"{slot}: it is not held; there is nothing to approve")
            return replace(log, hold=None, updated_at_ms=now_ms)

        return self._change(slot, approved, also)

    def skip(self, slot: Slot, *, by: str, reason: str, also: Also = ()) -> RunLog:
        """Skip a period. Raises `IllegalTransitionError` if a run is active or the period is done."""

        def skipped(log: RunLog, now_ms: int) -> RunLog:
            if log.is_live or log.status.is_done:
                raise _too_late(log, "skip")
            order = _directive(slot, Order.SKIP, by, reason, now_ms)
            return _over(log, RunStatus.CANCELLED, order, now_ms)

        return self._change(slot, skipped, also)

    def mark_success(self, slot: Slot, *, by: str, reason: str, also: Also = ()) -> RunLog:
        """Mark a period as done without a run. Raises `IllegalTransitionError` as `skip` does."""

        def marked(log: RunLog, now_ms: int) -> RunLog:
            if log.is_live or log.status.is_done:
                raise _too_late(log, "mark as done")
            order = _directive(slot, Order.MARK_SUCCESS, by, reason, now_ms)
            return replace(
                _over(log, RunStatus.COMPLETED, order, now_ms),
                succeeded_at_ms=now_ms,
                succeeded_run_id="",
                category=None,
                event=None,
            )

        return self._change(slot, marked, also)

    def force(self, slot: Slot, *, by: str, reason: str, also: Also = ()) -> RunLog:
        """Start the job of a period without readiness. Raises `IllegalTransitionError` if it is done."""

        def forced(log: RunLog, now_ms: int) -> RunLog:
            if log.status.is_done:
                raise _too_late(log, "force")
            return replace(log, order=_directive(slot, Order.FORCE, by, reason, now_ms), hold=None)

        return self._change(slot, forced, also)

    def _change(self, slot: Slot, decide: Callable[[RunLog, int], RunLog], also: Also) -> RunLog:
        for _ in range(_RACES_MAX):
            item = self._store.get(PIPELINES, run_log_key(slot), consistent=True)
            now_ms = int(self._clock.seconds() * 1000)
            stored = None if item is None else run_log_of(item)
            decided = decide(stored if stored is not None else run_log.opened(slot, now_ms), now_ms)
            version = 1 if stored is None else stored.version + 1
            after = replace(decided, version=version, updated_at_ms=now_ms)
            more = also(after) if callable(also) else also
            try:
                put = run_log_put(after, replaces=None if stored is None else stored.version)
                self._store.transact([put, *more])
            except ConflictError as exc:
                if 0 not in exc.failures:
                    raise
            else:
                return after
        raise ConflictError(f"{slot}: concurrent changes of its log keep winning; try again")


def _directive(slot: Slot, order: Order, by: str, reason: str, now_ms: int) -> Directive:
    return Directive(order, required(str(slot), "by", by), required(str(slot), "reason", reason), now_ms)


def _over(log: RunLog, status: RunStatus, order: Directive, now_ms: int) -> RunLog:
    return replace(log, status=status, order=order, hold=None, by=order.by, reason=order.reason, ended_at_ms=now_ms)


def _too_late(log: RunLog, what: str) -> IllegalTransitionError:
    remedy = f"cancel run {log.run_id} first" if log.is_live else "ask for a rerun to do it again"
    return IllegalTransitionError(f"{log.slot}: it is {log.status}, too late to {what} it; {remedy}")
