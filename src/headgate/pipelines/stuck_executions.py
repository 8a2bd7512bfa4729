"""Stuck executions: publishes an alert for each stuck execution, and resolves it when the execution goes on or ends.

The bus reports that an execution is stuck. Nothing reports that it no longer is, so the reported ones are polled; each
has a row while it is stuck.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from headgate.clock import Clock
from headgate.durable.bus.events import Event
from headgate.durable.engine.stuck import STUCK_EVENT
from headgate.durable.model.history import Status
from headgate.durable.sdk.app import App
from headgate.errors import ConflictError
from headgate.notify.notices import Notice
from headgate.pipelines.events.names import EventName
from headgate.pipelines.events.outbox import PipelineEvent, PipelineEvents
from headgate.store.catalogue.tables import CONTROL, EXECUTIONS
from headgate.store.model.conditions import equals
from headgate.store.model.requests import Delete, Poll, Put, Query, Range, Sort
from headgate.store.model.schema import Key
from headgate.store.port import Store

SUBSCRIPTION: Final = "headgate.pipelines.stuck"
CHECK_SECONDS: Final = 5.0
_DUE: Final = "EXECUTIONS#STUCK"
_PAGE: Final = 100
_GONE: Final = "GONE"
# Longer ids are hashed to fit into a key.
_ID_MAX: Final = 400


class StuckExecutions:
    """Publishes executions that get stuck, and those that no longer are."""

    def __init__(self, store: Store, clock: Clock, events: PipelineEvents) -> None:
        self._store = store
        self._clock = clock
        self._events = events
        self._check_at = 0.0

    def subscribe(self, app: App) -> None:
        """Subscribe an app to stuck executions."""
        app.on_event(STUCK_EVENT, name=SUBSCRIPTION)(self.handle)

    def handle(self, event: Event) -> None:
        """Publish a stuck execution, once."""
        data = event.decoded().data
        facts: dict[str, Any] = data if isinstance(data, dict) else {}
        execution_id = str(facts.get("execution_id") or event.subject)
        error = facts.get("error")
        error = error if isinstance(error, dict) else {}
        detail = {
            "execution_id": execution_id,
            "workflow": str(facts.get("workflow", "")),
            # The first line; the execution has the rest.
            "error": f"{error.get('type', '')}: {error.get('message', '')}".split("\n", 1)[0],
        }
        stuck = PipelineEvent(
            name=EventName.EXECUTION_STUCK,
            detail=detail,
            message=f"fix its code, then run 'headgate execution redrive {execution_id}'",
            dedup_key=alert_key(execution_id),
            once=f"stuck#{event.id}",
        )
        row = {
            **CONTROL.key_attributes(_key(execution_id)),
            "event_id": event.id,
            "execution_id": execution_id,
            **self._due(),
        }
        self._events.publish(stuck, also=[Put(CONTROL, row)])

    def tick(self) -> int:
        """Publish executions that are no longer stuck, and return their number. Polls at most every few seconds."""
        now = self._clock.monotonic()
        if now < self._check_at:
            return 0
        self._check_at = now + CHECK_SECONDS
        due = Sort(Range.AT_MOST, int(self._clock.seconds() * 1000))
        page = self._store.query(
            Query(table=CONTROL, index="due-index", partition=_DUE, sort=due, limit=_PAGE, poll=Poll.RELAXED)
        )
        return sum(map(self._check, page.items))

    def ended_by(self, notice: Notice) -> str:
        """Return the event that has resolved an alert, if it was for a stuck execution that no longer is."""
        if notice.event != EventName.EXECUTION_STUCK:
            return ""
        is_stuck = self._status(str(notice.detail.get("execution_id"))) == Status.STUCK
        return "" if is_stuck else EventName.EXECUTION_WENT_ON.value

    def _check(self, row: dict[str, Any]) -> bool:
        execution_id, event_id = row["execution_id"], row["event_id"]
        is_same = equals("event_id", event_id)
        status = self._status(execution_id)
        try:
            if status == Status.STUCK:
                self._store.update(CONTROL, _key(execution_id), set=self._due(), condition=is_same)
                return False
            resolved = PipelineEvent(
                name=EventName.EXECUTION_WENT_ON,
                detail={"execution_id": execution_id, "status": status},
                dedup_key=f"{EventName.EXECUTION_WENT_ON}#{_short(execution_id)}",
                resolves=(alert_key(execution_id),),
            )
            return self._events.publish(resolved, also=[Delete(CONTROL, _key(execution_id), is_same)])
        except ConflictError:
            # It got stuck again, or another process was faster.
            return False

    def _status(self, execution_id: str) -> str:
        item = self._store.get(EXECUTIONS, Key(execution_id), consistent=True)
        return _GONE if item is None else str(item["status"])

    def _due(self) -> dict[str, Any]:
        return {"due_pk": _DUE, "due_at_ms": int((self._clock.seconds() + CHECK_SECONDS) * 1000)}


def alert_key(execution_id: str) -> str:
    """Return the alert key of a stuck execution."""
    return f"{EventName.EXECUTION_STUCK}#{_short(execution_id)}"


def _key(execution_id: str) -> Key:
    return Key(f"STUCK#{_short(execution_id)}", "STATE")


def _short(execution_id: str) -> str:
    if len(execution_id) <= _ID_MAX:
        return execution_id
    return hashlib.blake2b(execution_id.encode(), digest_size=16).hexdigest()
