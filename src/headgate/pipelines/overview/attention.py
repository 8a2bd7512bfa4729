"""Attention list: finds the pipelines that may need an operator, from problems instead of from all definitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import islice
from typing import Final

from msgspec import Struct

from headgate.clock import epoch_ms
from headgate.durable.bus.event_log import EventLog, first_id
from headgate.errors import CorruptionError
from headgate.notify.notices import event_type
from headgate.pipelines.catalog.rows import StoredPipeline, config_key, stored_of
from headgate.pipelines.enums import ControlState, ExpectationVerdict
from headgate.pipelines.events.names import EventName
from headgate.pipelines.events.outbox import SOURCE
from headgate.pipelines.runs.rows import RunLog, Slot, run_log_key, run_log_of
from headgate.pipelines.service import PipelineService
from headgate.pipelines.watchdog.verdicts import Verdicts
from headgate.store.catalogue.tables import PIPELINES

# How long a missed expectation stays relevant: longer than the longest weekend.
MISSED_FOR: Final = timedelta(days=7)
STUCK_FOR: Final = timedelta(days=1)
# How far back holds are searched. Waiting executions are found regardless of age.
HELD_FOR: Final = timedelta(days=7)
MISSED_MAX: Final = 500
EVENTS_MAX: Final = 200
WAITING_MAX: Final = 1_000


class AttentionList(Struct, frozen=True, kw_only=True):
    """Possible problems by pipeline. The periods themselves tell whether they persist."""

    # Periods with missed expectations, latest first.
    missed: Mapping[str, Sequence[Slot]]
    # Runs reported as stuck.
    stuck_runs: frozenset[str]
    # Pipelines that are paused, stopped, or failed last.
    controlled: Sequence[str]
    # Pipelines with waiting periods, and with held ones.
    waiting: Sequence[str]
    held: Sequence[str]
    stuck: Sequence[str]
    logs: Mapping[Slot, RunLog]

    @property
    def suspects(self) -> list[str]:
        """The pipelines to check, known problems first. A waiting one may be late, or held by a gate."""
        return list(dict.fromkeys((*self.controlled, *self.missed, *self.stuck, *self.held, *self.waiting)))


def attention_list(pipelines: PipelineService) -> AttentionList:
    """Read the attention list of all pipelines: cost grows with problems, not with pipelines."""
    missed = _missed(pipelines)
    stuck = {run_id: slot.pipeline_id for slot, run_id in _reported(pipelines, EventName.RUN_STUCK, STUCK_FOR)}
    held = [slot for slot, _ in _reported(pipelines, EventName.RUN_HELD, HELD_FOR)]
    waiting = [each.slot for each in islice(pipelines.waiters.polled(), WAITING_MAX)]
    slots = list(dict.fromkeys((*(slot for found in missed.values() for slot in found), *waiting, *held)))
    items = pipelines.store.get_many(PIPELINES, [run_log_key(slot) for slot in slots]) if slots else []
    logs = {slot: run_log_of(item) for slot, item in zip(slots, items, strict=True) if item is not None}
    now_ms = epoch_ms(pipelines.clock)
    return AttentionList(
        missed=missed,
        stuck_runs=frozenset(stuck),
        stuck=list(stuck.values()),
        controlled=[
            each.pipeline_id
            for each in pipelines.stores.controls.ls()
            if each.failures_in_a_row or each.state_at(now_ms) is not ControlState.ACTIVE
        ],
        waiting=list(dict.fromkeys(slot.pipeline_id for slot in waiting)),
        held=list(dict.fromkeys(slot.pipeline_id for slot, log in logs.items() if log.hold is not None)),
        logs=logs,
    )


def stored(pipelines: PipelineService, ids: Sequence[str]) -> list[StoredPipeline]:
    """Return pipelines by id in one call, without deleted and unreadable ones."""
    keys = [config_key(each) for each in ids]
    found: list[StoredPipeline] = []
    for item in pipelines.store.get_many(PIPELINES, keys) if keys else []:
        try:
            read = None if item is None else stored_of(item)
        except CorruptionError:
            # The pipeline list reports invalid rows.
            continue
        if read is not None and not read.deleted:
            found.append(read)
    return found


def _missed(pipelines: PipelineService) -> dict[str, list[Slot]]:
    verdicts = Verdicts(pipelines.store, pipelines.clock, pipelines.event_writer)
    page = verdicts.ls_by_verdict(ExpectationVerdict.MISSED, since=pipelines.clock.now() - MISSED_FOR, limit=MISSED_MAX)
    found: dict[str, dict[Slot, None]] = {}
    for each in page.verdicts:
        found.setdefault(each.pipeline_id, {})[each.slot] = None
    return {name: list(slots) for name, slots in found.items()}


def _reported(pipelines: PipelineService, name: EventName, within: timedelta) -> list[tuple[Slot, str]]:
    """Return the periods and runs of recent events of a type."""
    since_ms = epoch_ms(pipelines.clock) - int(within.total_seconds() * 1000)
    events = EventLog(pipelines.store, pipelines.clock).tail(
        first_id(since_ms), type=event_type(name), limit=EVENTS_MAX
    )
    found: list[tuple[Slot, str]] = []
    for each in events:
        data = each.event.data
        # Users may emit events of any type; only ours have this source.
        if each.source == SOURCE and isinstance(data, dict):
            about = (str(data.get(part, "")) for part in ("pipeline_id", "schedule_id", "date"))
            found.append((Slot(*about), str(data.get("run_id", ""))))
    return found
