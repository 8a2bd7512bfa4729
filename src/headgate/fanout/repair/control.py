"""Steering: what people do to a fan-out as a whole: pause it, let it go on, cancel it, skip what failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError, DefinitionError, OutcomeUnknownError
from headgate.fanout.core.attempts import moved_to
from headgate.fanout.core.maintenance import FanoutMaintenance
from headgate.fanout.core.observer import NO_OBSERVER, FanoutObserver
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.splitter import Order, check_order
from headgate.fanout.model.events import event
from headgate.fanout.model.rows import Fanout, Policy, dump_policy, moment
from headgate.fanout.model.states import Disposition
from headgate.fanout.repair.reopen import Note, Reopener
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
    """Changes the course of fan-outs. Saying the same twice changes nothing."""

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
        """Have no further chunk started; those that run may end.

        Raises `NotFoundError`, and `ConflictError` if it has ended.
        """
        return self._change(run_id, "paused", by, reason, lambda f, now: {"paused_at": f.paused_at or now})

    def resume(self, run_id: str, *, by: str | None = None, reason: str | None = None) -> Fanout:
        """Let a paused fan-out go on."""
        return self._change(run_id, "resumed", by, reason, lambda _, __: {"paused_at": None})

    def cancel(self, run_id: str, *, by: str | None = None, reason: str | None = None) -> Fanout:
        """Start no further chunk, cancel those that wait, and ask those that run to stop.

        Returns at once; whoever tends the store brings it to its end.
        """

        def change(fanout: Fanout, now: str) -> dict[str, Any]:
            return {"cancelled_at": fanout.cancelled_at or now, "reason": reason or fanout.reason}

        return self._change(run_id, "cancelled", by, reason, change)

    def tune(self, run_id: str, *, by: str | None = None, **changes: int | float | None) -> Fanout:
        """Change the priority, the concurrency or another number of the policy. Raises `DefinitionError`."""

        def change(fanout: Fanout, now: str) -> dict[str, Any]:
            del now
            unknown = sorted(set(changes) - set(Policy.__struct_fields__))
            if unknown:
                raise DefinitionError(f"{unknown[0]}: no part of a policy; it has {sorted(Policy.__struct_fields__)}")
            policy: Policy = replace(fanout.rules(), **changes)
            check_order(Order(group=fanout.group or "-", chunk_size=max(1, fanout.chunk_size), policy=policy))
            return {"policy": dump_policy(policy)}

        return self._change(run_id, "tuned", by, ", ".join(f"{k}={v}" for k, v in changes.items()), change)

    def skip(
        self, run_id: str, chunk_ids: Sequence[str], *, by: str | None = None, reason: str | None = None
    ) -> list[str]:
        """Do without these chunks, and return which were skipped: those that neither run nor are done.

        Raises `NotFoundError` if one of them is not there, and then skips none, and `ConflictError` while the
        fan-out is being cancelled.
        """
        now_ms = self.queries.now_ms()
        chunks = [self.queries.chunk(run_id, chunk_id) for chunk_id in dict.fromkeys(chunk_ids)]
        changes = [
            moved_to(chunk, Disposition.SKIPPED, now_ms=now_ms) for chunk in chunks if chunk.disposition in _SKIPPABLE
        ]
        if not changes:
            return []
        # With the fan-out's own row in each transaction, so that whoever is closing it at this moment counts anew.
        fanout = self.queries.fanout(run_id, consistent=True)
        refused = self._reopener.put_back(fanout, changes, Note("skipped", by, reason))
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
                    "'headgate fanout redrive' runs what failed again"
                )
            now = moment(self.queries.now_ms())
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
