"""Attention counts: how many of each page's items need someone, for the rail of all pages.

One reading serves all callers of the process. It is repeated when a page is rendered after a commit, a few times a
second at most and for a twentieth of the time at most. A caller sees a count only with the permission to list what is
counted, and of incidents only those in scope.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from headgate.auth.principals import Principal, may
from headgate.auth.roles import Permission
from headgate.clock import Clock, epoch_ms
from headgate.durable.bus.dead_letters import KIND as DEAD_LETTERS
from headgate.durable.model.history import Status
from headgate.errors import CorruptionError, HeadgateError
from headgate.health.model.enums import IncidentStatus
from headgate.health.service import HealthService
from headgate.notify.alert_rows import alert_of
from headgate.notify.enums import AlertStatus, DeliveryState
from headgate.pipelines.overview.attention import attention_list, stored
from headgate.pipelines.overview.status import DefinedPipeline, PipelineState, PipelineStatusReader
from headgate.pipelines.service import PipelineService
from headgate.serve.server_monitor import ServerMonitor
from headgate.store.catalogue.tables import EXECUTIONS, INCIDENT_INDEX, PIPELINES, SUBSCRIPTIONS
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.model.schema import Table
from headgate.store.model.values import Item

# Rows are counted up to this number.
COUNTED_MAX: Final = 100
PIPELINES_MAX: Final = 100
ALERTS_WITHIN_MS: Final = 86_400_000
# Shorter than the time between two batches of changes, so that the content of each batch has its counts.
INTERVAL_SECONDS: Final = 0.2
# A reading that takes long is repeated less often.
_PAUSE_FACTOR: Final = 20.0
# Without a commit, only time changes counts: a deadline passes.
_IDLE_SECONDS: Final = 15.0
_TROUBLED: Final = frozenset(
    {
        PipelineState.STOPPED,
        PipelineState.FAILED,
        PipelineState.LATE,
        PipelineState.STUCK,
        PipelineState.HELD,
        PipelineState.MISSED,
    }
)


class RailCount(Struct, frozen=True):
    """A count beside a page: as text, and in words."""

    text: str
    about: str


class Reading(Struct, frozen=True, kw_only=True):
    """What needs someone. Rows beyond `COUNTED_MAX` are not counted."""

    # The dataset of each open incident.
    incidents: tuple[str, ...] = ()
    pipelines: int = 0
    executions: int = 0
    dead_letters: int = 0
    alerts: int = 0
    checks: int = 0


# Permission, and the words for one and for several, by page.
_PAGES: Final[Mapping[str, tuple[Permission, str, str]]] = {
    "incidents": (Permission.INCIDENT_READ, "incident is not acknowledged", "incidents are not acknowledged"),
    "pipelines": (Permission.PIPELINE_READ, "pipeline needs someone", "pipelines need someone"),
    "executions": (Permission.EXECUTION_READ, "execution is stuck", "executions are stuck"),
    "events": (Permission.EVENT_READ, "dead letter", "dead letters"),
    "alerts": (Permission.EVENT_READ, "alert reached no channel", "alerts reached no channel"),
    "operations": (Permission.SERVER_READ, "check fails", "checks fail"),
}


class Attention:
    """The counts of the rail. Thread-safe."""

    def __init__(self, read: Callable[[], Reading], clock: Clock, generation: Callable[[], int]) -> None:
        """`generation` is that of the store, which changes with each commit."""
        self._read = read
        self._clock = clock
        self._generation = generation
        self._reading = Reading()
        self._lock = threading.Lock()
        # When the reading is due again, when it is too old even without a commit, and as of which commit it is.
        self._due_at = self._old_at = float("-inf")
        self._as_of: int | None = None

    def counts(self, principal: Principal | None) -> dict[str, RailCount]:
        """Return the counts that a caller may see, by page; none for zero."""
        if principal is None:
            return {}
        self._refresh()
        reading = self._reading
        counts = {
            "incidents": sum(principal.reaches(urn) for urn in reading.incidents),
            "pipelines": reading.pipelines,
            "executions": reading.executions,
            "events": reading.dead_letters,
            "alerts": reading.alerts,
            "operations": reading.checks,
        }
        return {
            page: _shown(counts[page], one, several)
            for page, (permission, one, several) in _PAGES.items()
            if counts[page] and may(principal, permission)
        }

    def _refresh(self) -> None:
        """Read again if that is due and no other thread does; the first reading is waited for."""
        if not self._is_due() or not self._lock.acquire(blocking=self._as_of is None):
            return
        try:
            if not self._is_due():
                return
            started_at, as_of = self._clock.monotonic(), self._generation()
            try:
                self._reading = self._read()
            except HeadgateError:
                # The page itself states what cannot be read. The last counts stay until the next attempt.
                pass
            ended_at = self._clock.monotonic()
            self._as_of = as_of
            self._due_at = ended_at + max(INTERVAL_SECONDS, _PAUSE_FACTOR * (ended_at - started_at))
            self._old_at = ended_at + _IDLE_SECONDS
        finally:
            self._lock.release()

    def _is_due(self) -> bool:
        now = self._clock.monotonic()
        if now < self._due_at:
            return False
        generation = self._generation()
        # 0: no commit yet, or a backend that does not report commits.
        return generation == 0 or generation != self._as_of or now >= self._old_at


def _shown(count: int, one: str, several: str) -> RailCount:
    if count >= COUNTED_MAX:
        return RailCount(f"{COUNTED_MAX - 1}+", f"More than {COUNTED_MAX - 1} {several}")
    return RailCount(str(count), f"{count} {one if count == 1 else several}")


def reader(
    health: HealthService, pipelines: PipelineService | None, monitor: ServerMonitor | None
) -> Callable[[], Reading]:
    """Return the function that reads the counts: a fixed number of store calls, each of a limited number of rows."""

    def read() -> Reading:
        now_ms = epoch_ms(health.clock)
        since = Sort(Range.AT_LEAST, f"{now_ms - ALERTS_WITHIN_MS:013d}")
        incidents, stuck, dead, alerts = health.store.query_many(
            [
                _query(INCIDENT_INDEX, "status-severity-index", f"STATUS#{IncidentStatus.OPEN}"),
                _query(EXECUTIONS, "status-index", Status.STUCK.value),
                _query(SUBSCRIPTIONS, "kind-index", DEAD_LETTERS),
                _query(PIPELINES, "GSI1", "ALERTS", since),
            ]
        )
        return Reading(
            incidents=tuple(each.get("primary_dataset_urn", "") for each in incidents.items),
            pipelines=0 if pipelines is None else _troubled(pipelines),
            executions=len(stuck.items),
            dead_letters=len(dead.items),
            alerts=sum(map(_is_undelivered, alerts.items)),
            checks=0 if monitor is None else monitor.failing_checks(),
        )

    return read


def _query(table: Table, index: str, partition: str, sort: Sort | None = None) -> Query:
    return Query(table=table, index=index, partition=partition, sort=sort, limit=COUNTED_MAX, descending=True)


def _troubled(pipelines: PipelineService) -> int:
    """Return how many pipelines are stopped, failed, late, stuck, held or missed a period."""
    attention = attention_list(pipelines)
    suspects = stored(pipelines, attention.suspects[:PIPELINES_MAX])
    defined = [DefinedPipeline(each.pipeline, each.at) for each in suspects]
    rows = PipelineStatusReader(pipelines, attention).statuses(defined)
    return sum(row.state in _TROUBLED for row in rows)


def _is_undelivered(item: Item) -> bool:
    """Whether an alert is open, a delivery of it has failed, and none was accepted."""
    try:
        alert = alert_of(item)
    except CorruptionError:
        # The page of alerts reports the row.
        return False
    states = {each.state for each in alert.deliveries.values()}
    return alert.status is AlertStatus.OPEN and DeliveryState.FAILED in states and DeliveryState.SENT not in states
