"""Fan-out alerts: publishes fan-outs that stall, are failing and end as events of the catalogue, each once."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from headgate.durable.bus.events import Event
from headgate.durable.sdk.app import App
from headgate.fanout.model.events import ENDED_EVENT, FAILING_EVENT, STALLED_EVENT, WENT_ON_EVENT
from headgate.fanout.model.rows import PIPELINE_CALLER, run_key
from headgate.fanout.model.states import FanoutStatus
from headgate.notify.notices import Notice
from headgate.pipelines.events.names import EventName
from headgate.pipelines.events.outbox import PipelineEvent, PipelineEvents
from headgate.store.catalogue.tables import FANOUT
from headgate.store.port import Store

SUBSCRIPTION: Final = "headgate.pipelines.fanouts"
_NAMES: Final = {
    STALLED_EVENT: EventName.FANOUT_STALLED,
    WENT_ON_EVENT: EventName.FANOUT_WENT_ON,
    FAILING_EVENT: EventName.FANOUT_FAILING,
    ENDED_EVENT: EventName.FANOUT_ENDED,
}
_ALERTS: Final = (EventName.FANOUT_STALLED, EventName.FANOUT_FAILING, EventName.FANOUT_FAILED)
_FAILED: Final = (FanoutStatus.FAILED, FanoutStatus.PARTIAL)
# Longer ids are hashed to fit into a key.
_ID_MAX: Final = 200


class FanoutAlerts:
    """Publishes what the bus reports of fan-outs."""

    def __init__(self, store: Store, events: PipelineEvents) -> None:
        self._store = store
        self._events = events

    def subscribe(self, app: App) -> None:
        """Subscribe an app to the events of fan-outs."""
        app.on_event(*_NAMES, name=SUBSCRIPTION)(self.handle)

    def handle(self, event: Event) -> None:
        """Publish an event of a fan-out, once. An end with failures that are not tolerated may be two events."""
        data = event.decoded().data
        facts: dict[str, Any] = data if isinstance(data, dict) else {}
        run_id = str(facts.get("run_id") or event.subject)
        status = str(facts.get("status", ""))
        detail = {"fanout": run_id, "status": status, "reason": str(facts.get("reason") or "")}
        detail |= {name: facts.get(name, 0) for name in ("completed", "failed", "chunks")}
        name = _NAMES[event.type]
        is_failed = name is EventName.FANOUT_ENDED and status in _FAILED
        self._publish(event, name, run_id, detail, _resolved(name, is_failed=is_failed))
        if is_failed and not self._has_caller(run_id):
            failed = {**detail, "reason": detail["reason"] or _failure(facts)}
            self._publish(event, EventName.FANOUT_FAILED, run_id, failed, ())

    def ended_by(self, notice: Notice) -> str:
        """Return the event that has resolved an alert, if it was for a fan-out that has gone on or ended since."""
        if notice.event not in _ALERTS:
            return ""
        row = self._store.get(FANOUT, run_key(str(notice.detail.get("fanout"))), consistent=True)
        has_ended = row is None or row.get("finished_at") is not None
        if notice.event == EventName.FANOUT_FAILED:
            is_over = row is None or (has_ended and row["status"] not in _FAILED)
            return EventName.FANOUT_ENDED.value if is_over else ""
        if has_ended:
            return EventName.FANOUT_ENDED.value
        if notice.event == EventName.FANOUT_STALLED and row is not None and row.get("stalled_at") is None:
            return EventName.FANOUT_WENT_ON.value
        return ""

    def _has_caller(self, run_id: str) -> bool:
        """Whether a pipeline run or an execution waits for it, which then reports the failure itself."""
        row = self._store.get(FANOUT, run_key(run_id), consistent=True) or {}
        return row.get("waiter") is not None or str(row.get("submitted_by", "")).startswith(PIPELINE_CALLER)

    def _publish(
        self, event: Event, name: EventName, run_id: str, detail: dict[str, Any], resolves: tuple[EventName, ...]
    ) -> None:
        published = PipelineEvent(
            name=name,
            detail=detail,
            message=f"'headgate fanout show {run_id}' shows its progress",
            dedup_key=alert_key(name, run_id),
            resolves=tuple(alert_key(each, run_id) for each in resolves),
            once=f"fanout#{event.id}#{name}",
        )
        self._events.publish(published)


def _resolved(name: EventName, *, is_failed: bool) -> tuple[EventName, ...]:
    if name is EventName.FANOUT_WENT_ON:
        return (EventName.FANOUT_STALLED,)
    if name is not EventName.FANOUT_ENDED:
        return ()
    # The alert of an earlier failed end stays open if the fan-out fails again.
    return tuple(each for each in _ALERTS if not (is_failed and each is EventName.FANOUT_FAILED))


def _failure(facts: dict[str, Any]) -> str:
    if facts.get("failed"):
        return f"{facts['failed']} of {facts.get('chunks')} chunks failed"
    if facts.get("items_failed"):
        return f"{facts['items_failed']} of {facts.get('items')} items failed"
    return f"{facts.get('completed', 0)} of {facts.get('chunks', 0)} chunks completed"


def alert_key(name: EventName, run_id: str) -> str:
    """Return the alert key of an event of a fan-out."""
    short = run_id if len(run_id) <= _ID_MAX else hashlib.blake2b(run_id.encode(), digest_size=16).hexdigest()
    return f"{name}#{short}"
