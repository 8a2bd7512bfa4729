"""Schedule rows: store a schedule in one transaction with the executions that it starts and ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Raw
from msgspec.structs import replace

from headgate import typed_decode
from headgate.durable.model.declarations import Declarations, Limits
from headgate.durable.model.history import CancelRequested, Status, TerminateRequested
from headgate.durable.model.records import OPEN, item_of, message
from headgate.durable.model.starts import StartRequest, start_writes
from headgate.durable.schedules.slots import Decision, Fire, Overlap, Schedule, Spec, slot_of
from headgate.errors import ConflictError, OutcomeUnknownError
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import EXECUTIONS, SCHEDULES
from headgate.store.model.conditions import version_is
from headgate.store.model.requests import Check, Put, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

FIRES_MAX: Final = 20
# Partitions of the due index: schedules with a next time, and paused or ended ones without.
DUE: Final = "SCHEDULES"
PARKED: Final = "SCHEDULES#PARKED"
# The tags of an execution with its schedule and its slot.
SCHEDULE_TAG: Final = "headgate.schedule"
SLOT_TAG: Final = "headgate.slot"


class ScheduleRows:
    """The rows of schedules, and the writes of their changes."""

    def __init__(
        self,
        store: Store,
        ids: IdMaker,
        limits_of: Callable[[str], tuple[float | None, float | None]] = lambda _: (None, None),
        seal: Callable[[StartRequest], StartRequest] = lambda request: request,
    ) -> None:
        self._store = store
        self._ids = ids
        self._limits_of = limits_of
        self._seal = seal
        self._declarations = Declarations(store)

    def find(self, schedule_id: str) -> Schedule | None:
        """Return the stored schedule."""
        item = self._store.get(SCHEDULES, Key(schedule_id), consistent=True)
        return None if item is None else schedule_of(item)

    def find_due(self, schedule_id: str, now_ms: int) -> Schedule | None:
        """Return the schedule if it is due. The index may lag: it can be deleted, paused, or fired already."""
        item = self._store.get(SCHEDULES, Key(schedule_id), consistent=True)
        if item is None or item["due_pk"] != DUE or item["due_at_ms"] > now_ms:
            return None
        return schedule_of(item)

    def running(self, schedule: Schedule) -> tuple[str, ...]:
        """Return the executions of the schedule that are still open, oldest first."""
        if not schedule.open_ids:
            return ()
        items = self._store.get_many(EXECUTIONS, [Key(each) for each in schedule.open_ids], consistent=True)
        return tuple(
            each
            for each, item in zip(schedule.open_ids, items, strict=True)
            if item is not None and not Status(item["status"]).is_closed
        )

    def carry_out(self, schedule: Schedule, decision: Decision, now_ms: int) -> Schedule | None:
        """Commit a decision in one transaction. None if another process has changed the schedule."""
        started = [(each.slot_ms, Fire(slot_of(each.slot_ms), now_ms, each.execution_id)) for each in decision.starts]
        skipped = [
            (each.slot_ms, Fire(slot_of(each.slot_ms), now_ms, skipped=each.reason, blocked_by=each.blocked_by))
            for each in decision.skips
        ]
        fires = [fire for _, fire in sorted([*started, *skipped], key=lambda pair: pair[0])]
        changed = replace(
            schedule,
            version=schedule.version + 1,
            fires=latest(schedule, fires),
            started_count=schedule.started_count + sum(start.is_due for start in decision.starts),
            skipped_count=schedule.skipped_count + len(decision.skips),
            open_ids=decision.open_ids,
            buffered_ms=decision.buffered_ms,
            backfills=decision.backfills,
            judged_through_ms=decision.judged_through_ms,
        )
        groups = [self.start(schedule, start.execution_id, slot_of(start.slot_ms), now_ms) for start in decision.starts]
        groups += [self.end(schedule, schedule.spec.overlap, other, now_ms) for other in decision.ends]
        return changed if self.commit(changed, decision.due_at_ms, groups) else None

    def start(self, schedule: Schedule, execution_id: str, slot: str, now_ms: int) -> list[Write]:
        """Return the writes that start an execution. The store refuses the first if the id exists."""
        spec = schedule.spec
        # Read at every start, as in the client: a new declaration takes effect.
        limits = self._limits(spec)
        request = StartRequest(
            execution_id=execution_id,
            workflow=spec.workflow,
            input=Raw(spec.input.encode()),
            tags={**spec.tags, SCHEDULE_TAG: schedule.schedule_id, SLOT_TAG: slot},
            timeout_seconds=limits.timeout_seconds,
            retention_seconds=limits.retention_seconds,
        )
        return start_writes(self._seal(request), now_ms, self._ids.ulid())[1]

    def _limits(self, spec: Spec) -> Limits:
        """Return the limits of a schedule, or those of its workflow's declaration."""
        own_limits = Limits(spec.timeout_seconds, spec.retention_seconds)
        if None not in own_limits:
            return own_limits
        declared = Limits(*self._limits_of(spec.workflow))
        if declared == Limits():
            # The code that is loaded here takes precedence over the published declaration.
            declared = self._declarations.limits(spec.workflow)
        return Limits(*(own if own is not None else other for own, other in zip(own_limits, declared, strict=True)))

    def end(self, schedule: Schedule, overlap: Overlap, execution_id: str, now_ms: int) -> list[Write]:
        """Return the writes that cancel or terminate an execution. The store refuses the first if it is closed."""
        reason = f"schedule {schedule.schedule_id}: the next execution starts"
        terminates = overlap is Overlap.TERMINATE_OTHER
        event = TerminateRequested(reason) if terminates else CancelRequested(reason)
        mail = message(execution_id, event, now_ms, self._ids.ulid())
        return [Check(EXECUTIONS, Key(execution_id), OPEN), mail.put()]

    def commit(self, changed: Schedule, due_ms: int | None, groups: Sequence[Sequence[Write]]) -> bool:
        """Store the schedule and all of `groups`. False if the schedule had changed; then nothing is written.

        A refused group is left out: the execution to start exists already, or the one to end is closed.
        """
        row = Put(SCHEDULES, row_item(changed, due_ms), version_is(changed.version - 1))
        remaining: list[Sequence[Write]] = [[row], *groups]
        while True:
            owners = [place for place, group in enumerate(remaining) for _ in group]
            try:
                self._store.transact([write for group in remaining for write in group])
            except OutcomeUnknownError:
                return False
            except ConflictError as exc:
                refused = {owners[index] for index in exc.failures}
                if 0 in refused:
                    return False
                remaining = [group for place, group in enumerate(remaining) if place not in refused]
            else:
                return True


def row_item(schedule: Schedule, due_at_ms: int | None) -> Item:
    """Return a schedule as an item."""
    if due_at_ms is None:
        return {**item_of(schedule), "due_pk": PARKED, "due_at_ms": schedule.created_at_ms}
    return {**item_of(schedule), "due_pk": DUE, "due_at_ms": due_at_ms}


def schedule_of(item: Item) -> Schedule:
    """Return the schedule that an item holds."""
    return typed_decode.convert(item, Schedule)


def latest(schedule: Schedule, fires: Sequence[Fire]) -> tuple[Fire, ...]:
    """Return the last fires of a schedule, with these as the newest."""
    return (*schedule.fires, *fires)[-FIRES_MAX:]
