"""Fan-out control: pause, resume, cancel and tune a fan-out, and skip chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError, DefinitionError, OutcomeUnknownError
from headgate.fanout.core.attempts import move_change
from headgate.fanout.core.maintenance import FanoutMaintenance
from headgate.fanout.core.observer import NO_OBSERVER, FanoutObserver
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.splitter import Order, check_order
from headgate.fanout.model.events import event
from headgate.fanout.model.rows import Fanout, Policy, dump_policy, timestamp
from headgate.fanout.model.states import Disposition
from headgate.fanout.repair.reopen import AuditNote, Reopener
from headgate.ids import IdMaker
from headgate.store.port import Store

_SKIPPABLE: Final = frozenset(
    {
        Disposition.WAITING,
        Disposition.QUEUED,
        Disposition.RETRYING,
        Disposition.DEAD,
        Disposition.QUARANTINED,
        Disposition.CANCELLED,
    }
)


class FanoutControl:
    """Applies operator commands to fan-outs. Every command is idempotent."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        *,
        observer: FanoutObserver = NO_OBSERVER,
        maintenance: FanoutMaintenance | None = None,
    ) -> None:
        self.queries = FanoutQueries(store, clock)
        self._observer = observer
        self._maintenance = maintenance or FanoutMaintenance(store, clock, ids)
        self._store = store
        self._ids = ids
        self._reopener = Reopener(store, self.queries, ids)

    def pause(self, run_id: str, *, by: str | None = None, reason: str | None = None) -> Fanout:
        """Start no further chunk; running ones finish.

        Raises `NotFoundError`, and `ConflictError` if the fan-out has ended.
        """
        return self._change(run_id, "paused", by, reason, lambda f, now: {"paused_at": f.paused_at or now})

    def resume(self, run_id: str, *, by: str | None = None, reason: str | None = None) -> Fanout:
        """Resume a paused fan-out."""
        return self._change(run_id, "resumed", by, reason, lambda _, __: {"paused_at": None})

    def cancel(self, run_id: str, *, by: str | None = None, reason: str | None = None) -> Fanout:
        """Start no further chunk, cancel the queued ones, and ask running ones to stop.

        Returns at once; maintenance cancels the chunks and closes the fan-out.
        """

        def change(fanout: Fanout, now: str) -> dict[str, Any]:
            return {"cancelled_at": fanout.cancelled_at or now, "reason": reason or fanout.reason}

        return self._change(run_id, "cancelled", by, reason, change)

    def tune(self, run_id: str, *, by: str | None = None, **changes: int | float | None) -> Fanout:
        """Change numbers of the policy, such as priority or concurrency. Raises `DefinitionError`."""

        def change(fanout: Fanout, now: str) -> dict[str, Any]:
            del now
            unknown = sorted(set(changes) - set(Policy.__struct_fields__))
            if unknown:
                raise DefinitionError(
                    f"{unknown[0]}: not a field of a policy; it has {sorted(Policy.__struct_fields__)}"
                )
            policy: Policy = replace(fanout.rules(), **changes)
            check_order(Order(group="-", chunk_size=max(1, fanout.chunk_size), policy=policy))
            tuned: dict[str, Any] = {"policy": dump_policy(policy)}
            if fanout.cancelled_at is None and changes.keys() & {"tolerated_failures", "tolerated_failure_share"}:
                # Judged anew by the new limit.
                tuned["exceeded_at"] = None
                tuned["reason"] = fanout.reason if fanout.exceeded_at is None else None
            return tuned

        return self._change(run_id, "tuned", by, ", ".join(f"{k}={v}" for k, v in changes.items()), change)

    def skip(
        self, run_id: str, chunk_ids: Sequence[str], *, by: str | None = None, reason: str | None = None
    ) -> list[str]:
        """Skip chunks that are neither running nor done, and return the ids of those skipped.

        Raises `NotFoundError` if one of them does not exist, and then skips none, and `ConflictError` while the fan-out
        is being cancelled.
        """
        now_ms = self.queries.now_ms()
        chunks = [self.queries.chunk(run_id, chunk_id) for chunk_id in dict.fromkeys(chunk_ids)]
        changes = [
            move_change(chunk, Disposition.SKIPPED, now_ms=now_ms)
            for chunk in chunks
            if chunk.disposition in _SKIPPABLE
        ]
        if not changes:
            return []
        # The fan-out's row is part of each transaction, so that a concurrent close reads the counts again.
        fanout = self.queries.fanout(run_id, consistent=True)
        refused = self._reopener.put_back(fanout, changes, AuditNote("skipped", by, reason))
        late = {one.change.after.sk for one in refused}
        self._maintenance.chunk_ended(run_id)
        return [change.after.chunk_id for change in changes if change.after.sk not in late]

    def _change(
        self,
        run_id: str,
        kind: str,
        by: str | None,
        reason: str | None,
        change: Callable[[Fanout, str], dict[str, Any]],
    ) -> Fanout:
        while True:
            fanout = self.queries.fanout(run_id, consistent=True)
            if fanout.is_finished:
                raise ConflictError(
                    f"fan-out {run_id}: it has ended as {fanout.status}, so that it cannot be {kind}; "
                    "'headgate fanout redrive' runs failed chunks again"
                )
            now = timestamp(self.queries.now_ms())
            after = replace(fanout, **change(fanout, now))
            if after == fanout:
                return fanout
            after = replace(after, version=fanout.version + 1, updated_at=now)
            note = event(run_id, self._ids.ulid(), kind, now, by=by, reason=reason)
            try:
                self._store.transact([after.replacing(fanout.version), note.put()])
            except OutcomeUnknownError:
                raise
            except ConflictError:
                continue
            self._observer.on_work_available(run_id)
            return after
