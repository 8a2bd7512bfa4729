"""Troubles: which of all pipelines someone may have to look at, found by what is wrong and not by what there is."""

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

# For how long something that was missed is trouble still; longer than the longest weekend.
MISSED_FOR: Final = timedelta(days=7)
STUCK_FOR: Final = timedelta(days=1)
# How far back holds are looked for. A period whose execution waits meanwhile is found however old its hold is.
HELD_FOR: Final = timedelta(days=7)
MISSED_MAX: Final = 500
TOLD_MAX: Final = 200
WAITING_MAX: Final = 1_000


class AttentionList(Struct, frozen=True, kw_only=True):
    """What may be wrong, by pipeline. Whether it still is, the periods themselves say."""

    # Periods that something was expected of and did not happen in time, the latest first.
    missed: Mapping[str, Sequence[Slot]]
    # Runs that did not go on when they were last looked at.
    stuck_runs: frozenset[str]
    # Pipelines that are paused, stopped, or failed last.
    controlled: Sequence[str]
    # Pipelines of which a period waits for something, and where one of them is held.
    waiting: Sequence[str]
    held: Sequence[str]
    stuck: Sequence[str]
    logs: Mapping[Slot, RunLog]

    @property
    def suspects(self) -> list[str]:
        """The pipelines to look at first, each once."""
        return list(dict.fromkeys((*self.controlled, *self.missed, *self.stuck, *self.held)))


def troubles(pipelines: PipelineService) -> AttentionList:
    """Return what may be wrong with all pipelines: lists as long as that, and one look at the periods they name."""
    missed = _missed(pipelines)
    stuck = {run_id: slot.pipeline_id for slot, run_id in _told(pipelines, EventName.RUN_STUCK, STUCK_FOR)}
    held = [slot for slot, _ in _told(pipelines, EventName.RUN_HELD, HELD_FOR)]
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
    """Return pipelines by id in one call, without those that are gone or cannot be read."""
    keys = [config_key(each) for each in ids]
    found: list[StoredPipeline] = []
    for item in pipelines.store.get_many(PIPELINES, keys) if keys else []:
        try:
            read = None if item is None else stored_of(item)
        except CorruptionError:
            # The list of pipelines names it as one that is no definition.
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


def _told(pipelines: PipelineService, name: EventName, within: timedelta) -> list[tuple[Slot, str]]:
    """Return the periods of which something was told lately, each with the run that it was about."""
    since_ms = epoch_ms(pipelines.clock) - int(within.total_seconds() * 1000)
    events = EventLog(pipelines.store, pipelines.clock).tail(first_id(since_ms), type=event_type(name), limit=TOLD_MAX)
    found: list[tuple[Slot, str]] = []
    for each in events:
        data = each.event.data
        # Anyone may emit an event of any type, but not from here.
        if each.source == SOURCE and isinstance(data, dict):
            about = (str(data.get(part, "")) for part in ("pipeline_id", "schedule_id", "date"))
            found.append((Slot(*about), str(data.get("run_id", ""))))
    return found
