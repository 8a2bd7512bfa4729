"""Schedule rows: how a schedule is stored, in one transaction with the executions that it starts and ends."""

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
# Partitions of the due index: what has a next time, and what has none because it is paused or has ended.
DUE: Final = "SCHEDULES"
PARKED: Final = "SCHEDULES#PARKED"
# The tags by which the executions of a schedule, and the slot of each, are found.
SCHEDULE_TAG: Final = "headgate.schedule"
SLOT_TAG: Final = "headgate.slot"


class ScheduleRows:
    """The rows of schedules, and the writes that go with a change of one."""

    def __init__(
        self,
        store: Store,
        ids: IdMaker,
        limits_of: Callable[[str], tuple[float | None, float | None]] = lambda _: (None, None),
    ) -> None:
        self._store = store
        self._ids = ids
        self._limits_of = limits_of
        self._declarations = Declarations(store)

    def find(self, schedule_id: str) -> Schedule | None:
        """Return the schedule as it stands."""
        item = self._store.get(SCHEDULES, Key(schedule_id), consistent=True)
        return None if item is None else schedule_of(item)

    def find_due(self, schedule_id: str, now_ms: int) -> Schedule | None:
        """Return the schedule if it is due. The index may lag: what it names can be gone, paused, or done by others."""
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
        """Do what was decided, all of it at once. None: someone else changed the schedule first."""
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
        """Return the writes that start an execution. The first is refused if there is one of this id."""
        spec = schedule.spec
        # Asked for at every start, as a client's start does: what is declared anew takes effect.
        limits = self._limits(spec)
        request = StartRequest(
            execution_id=execution_id,
            workflow=spec.workflow,
            input=Raw(spec.input.encode()),
            tags={**spec.tags, SCHEDULE_TAG: schedule.schedule_id, SLOT_TAG: slot},
            timeout_seconds=limits.timeout_seconds,
            retention_seconds=limits.retention_seconds,
        )
        return start_writes(request, now_ms, self._ids.ulid())[1]

    def _limits(self, spec: Spec) -> Limits:
        """Return the limits that a schedule gives, or those that its workflow is declared with."""
        given = Limits(spec.timeout_seconds, spec.retention_seconds)
        if None not in given:
            return given
        declared = Limits(*self._limits_of(spec.workflow))
        if declared == Limits():
            # The code that is loaded here is nearer than what some process has said of it.
            declared = self._declarations.limits(spec.workflow)
        return Limits(*(own if own is not None else other for own, other in zip(given, declared, strict=True)))

    def end(self, schedule: Schedule, overlap: Overlap, execution_id: str, now_ms: int) -> list[Write]:
        """Return the writes that ask an execution to end, or end it. The first is refused if it has."""
        reason = f"schedule {schedule.schedule_id}: the next execution starts"
        terminates = overlap is Overlap.TERMINATE_OTHER
        event = TerminateRequested(reason) if terminates else CancelRequested(reason)
        mail = message(execution_id, event, now_ms, self._ids.ulid())
        return [Check(EXECUTIONS, Key(execution_id), OPEN), mail.put()]

    def commit(self, changed: Schedule, due_ms: int | None, groups: Sequence[Sequence[Write]]) -> bool:
        """Store the schedule and all of `groups`. False: the schedule had changed, and nothing was written.

        A group that is refused is left out: the execution to be started is there already, the one to be ended has.
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
    """Return a schedule as it is stored."""
    if due_at_ms is None:
        return {**item_of(schedule), "due_pk": PARKED, "due_at_ms": schedule.created_at_ms}
    return {**item_of(schedule), "due_pk": DUE, "due_at_ms": due_at_ms}


def schedule_of(item: Item) -> Schedule:
    """Return the schedule that an item holds."""
    return typed_decode.convert(item, Schedule)


def latest(schedule: Schedule, fires: Sequence[Fire]) -> tuple[Fire, ...]:
    """Return the last verdicts of a schedule, these being the newest."""
    return (*schedule.fires, *fires)[-FIRES_MAX:]
