"""Health reporter: the observer of a real process. It logs and counts results, and wakes the bus after a commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from headgate.errors import DatasetNotFoundError
from headgate.health.error_alerts import ErrorAlerts
from headgate.health.incidents.decisions import mttr_seconds
from headgate.health.metrics import HealthMeters
from headgate.health.model.datasets import Dataset
from headgate.health.model.enums import SignalState
from headgate.health.model.events import IncidentEventType
from headgate.health.model.incidents import Incident
from headgate.health.model.signals import APPLIED, Signal, SignalUpdate, UpdateResult, UpdateVerdict
from headgate.health.observer import NullObserver

_log = structlog.get_logger("statestore.service")


class HealthReporter(NullObserver):
    """Logs rejected updates, counts into `meters` and `alerts`, and calls `wake_bus` once an event is committed."""

    def __init__(
        self,
        *,
        meters: HealthMeters | None = None,
        alerts: ErrorAlerts | None = None,
        wake_bus: Callable[[], None] = lambda: None,
    ) -> None:
        self._meters = meters
        self._alerts = alerts
        self._wake_bus = wake_bus

    def on_signals_changed(self, signals: Sequence[Signal]) -> None:  # noqa: ARG002
        self._wake_bus()

    def on_dataset_changed(self, dataset: Dataset) -> None:  # noqa: ARG002
        self._wake_bus()

    def on_incident_changed(self, incident: Incident, event_type: IncidentEventType) -> None:
        if self._meters is not None:
            if event_type is IncidentEventType.CREATED:
                self._meters.incident_created(incident.severity, incident.owner_team)
            elif event_type is IncidentEventType.RESOLVED:
                self._meters.incident_resolved(incident.severity, mttr_seconds(incident) or 0.0)
        self._wake_bus()

    def on_incident_open_failed(self) -> None:
        if self._meters is not None:
            self._meters.incident_creation_failed()

    def on_dataset_missing(self, error: DatasetNotFoundError) -> None:
        if self._alerts is not None:
            self._alerts.record(error)

    def on_updates_processed(self, results: Sequence[tuple[SignalUpdate, UpdateResult]]) -> None:
        for update, result in results:
            # Most are applied, and a property costs a call.
            if result.verdict is not APPLIED and not result.is_success:
                self._report_rejected(update, result)
        if self._meters is not None:
            written = [(each.signal, each.is_transition) for _, each in results if each.verdict is APPLIED]
            self._meters.signals_updated(
                (signal.signal_type, signal.state, signal.previous_state if is_change else signal.state, signal.tier)
                for signal, is_change in written
                if signal is not None
            )

    def _report_rejected(self, update: SignalUpdate, result: UpdateResult) -> None:
        signal, verdict, meters = result.signal, result.verdict, self._meters
        about = {"dataset_urn": update.dataset_urn, "signal_type": update.signal_type}
        if update.correlation_id is not None:
            about["correlation_id"] = update.correlation_id
        if verdict in (UpdateVerdict.VERSION_CONFLICT, UpdateVerdict.STALE_WINDOW):
            _log.warning(
                "signal_state_update_conflict",
                **about,
                expected_version=update.expected_version,
                current_version=None if signal is None else signal.version,
                error_type=verdict.value,
            )
            if meters is not None:
                meters.signal_conflicted()
            return
        _log.error("signal_state_update_failed", **about, error=result.message, error_type=verdict.value)
        if self._alerts is not None and verdict is UpdateVerdict.DATASET_NOT_FOUND:
            self._alerts.record(DatasetNotFoundError(result.message))
        if meters is not None:
            meters.signal_failed()
            if verdict is UpdateVerdict.UNAVAILABLE and update.value.state is SignalState.CRITICAL:
                # The transaction that failed would have opened the incident as well.
                meters.incident_creation_failed()
