"""Stuck executions: people are told of each like of any other trouble, and that is over when it goes on or has ended.

That one is stuck comes over the bus. That it no longer is, nobody says, whoever redrove or ended it; so those that
were told of are looked at now and then, found by a row that each has as long as it is stuck.
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
from headgate.store.model.requests import Delete, Put, Query, Range, Sort
from headgate.store.model.schema import Key
from headgate.store.port import Store

SUBSCRIPTION: Final = "headgate.pipelines.stuck"
LOOK_SECONDS: Final = 5.0
_DUE: Final = "EXECUTIONS#STUCK"
_PAGE: Final = 100
_GONE: Final = "GONE"
# A key has room for most ids as they are.
_ID_MAX: Final = 400


class StuckExecutions:
    """Tells of executions that get stuck, and of those that no longer are."""

    def __init__(self, store: Store, clock: Clock, events: PipelineEvents) -> None:
        self._store = store
        self._clock = clock
        self._events = events
        self._look_at = 0.0

    def join(self, app: App) -> None:
        """Have an app hear of executions that get stuck."""
        app.on_event(STUCK_EVENT, name=SUBSCRIPTION)(self.handle)

    def handle(self, event: Event) -> None:
        """Tell of an execution that got stuck, once."""
        said = event.decoded().data
        facts: dict[str, Any] = said if isinstance(said, dict) else {}
        execution_id = str(facts.get("execution_id") or event.subject)
        error = facts.get("error")
        error = error if isinstance(error, dict) else {}
        detail = {
            "execution_id": execution_id,
            "workflow": str(facts.get("workflow", "")),
            # One line: what follows is with the execution.
            "error": f"{error.get('type', '')}: {error.get('message', '')}".split("\n", 1)[0],
        }
        told = PipelineEvent(
            name=EventName.EXECUTION_STUCK,
            detail=detail,
            message=f"mend its code, then run 'headgate execution redrive {execution_id}'",
            dedup_key=trouble_key(execution_id),
            once=f"stuck#{event.id}",
        )
        look = {"event_id": event.id, "execution_id": execution_id, **self._due()}
        row = {**CONTROL.key_attributes(_key(execution_id)), **look}
        self._events.tell(told, also=[Put(CONTROL, row)])

    def tick(self) -> int:
        """Tell of those that no longer are stuck, and return how many. Looks at most every few seconds."""
        now = self._clock.monotonic()
        if now < self._look_at:
            return 0
        self._look_at = now + LOOK_SECONDS
        due = Sort(Range.AT_MOST, int(self._clock.seconds() * 1000))
        page = self._store.query(Query(table=CONTROL, index="due-index", partition=_DUE, sort=due, limit=_PAGE))
        return sum(map(self._looked_at, page.items))

    def ended_by(self, notice: Notice) -> str:
        """Return what has put an end to a trouble by now, if it is one of an execution that was stuck."""
        if notice.event != EventName.EXECUTION_STUCK:
            return ""
        is_stuck = self._status(str(notice.detail.get("execution_id"))) == Status.STUCK
        return "" if is_stuck else EventName.EXECUTION_WENT_ON.value

    def _looked_at(self, row: dict[str, Any]) -> bool:
        execution_id, event_id = row["execution_id"], row["event_id"]
        same = equals("event_id", event_id)
        status = self._status(execution_id)
        try:
            if status == Status.STUCK:
                self._store.update(CONTROL, _key(execution_id), set=self._due(), condition=same)
                return False
            told = PipelineEvent(
                name=EventName.EXECUTION_WENT_ON,
                detail={"execution_id": execution_id, "status": status},
                dedup_key=f"{EventName.EXECUTION_WENT_ON}#{_short(execution_id)}",
                resolves=(trouble_key(execution_id),),
            )
            return self._events.tell(told, also=[Delete(CONTROL, _key(execution_id), same)])
        except ConflictError:
            # It got stuck again, or another process was faster.
            return False

    def _status(self, execution_id: str) -> str:
        item = self._store.get(EXECUTIONS, Key(execution_id), consistent=True)
        return _GONE if item is None else str(item["status"])

    def _due(self) -> dict[str, Any]:
        return {"due_pk": _DUE, "due_at_ms": int((self._clock.seconds() + LOOK_SECONDS) * 1000)}


def trouble_key(execution_id: str) -> str:
    """Return the key of the trouble that an execution is stuck."""
    return f"{EventName.EXECUTION_STUCK}#{_short(execution_id)}"


def _key(execution_id: str) -> Key:
    return Key(f"STUCK#{_short(execution_id)}", "STATE")


def _short(execution_id: str) -> str:
    if len(execution_id) <= _ID_MAX:
        return execution_id
    return hashlib.blake2b(execution_id.encode(), digest_size=16).hexdigest()
