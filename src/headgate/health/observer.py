"""Health observer: the interface through which health reports commits, results and failures to its process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headgate.errors import DatasetNotFoundError
from headgate.health.model.datasets import Dataset
from headgate.health.model.events import IncidentEventType
from headgate.health.model.incidents import Incident
from headgate.health.model.signals import Signal, SignalUpdate, UpdateResult


class HealthObserver(Protocol):
    """Receives what health did. Each method is called on the calling thread, and must neither block nor raise."""

    def on_signals_changed(self, signals: Sequence[Signal]) -> None:
        """These signals changed state; the transitions are durable."""

    def on_updates_processed(self, results: Sequence[tuple[SignalUpdate, UpdateResult]]) -> None:
        """A batch of signal updates has its results, applied and rejected ones."""

    def on_incident_changed(self, incident: Incident, event_type: IncidentEventType) -> None:
        """An incident was opened, updated or resolved; the change is durable."""

    def on_incident_open_failed(self) -> None:
        """The store failed while an incident was opened."""

    def on_dataset_changed(self, dataset: Dataset) -> None:
        """A dataset was registered or changed; the change is durable."""

    def on_dataset_missing(self, error: DatasetNotFoundError) -> None:
        """A lookup named a dataset that is not registered."""

    def on_lineage_event_accepted(self) -> None:
        """The OpenLineage inbox has an event to process."""


class NullObserver:
    """Ignores everything."""

    def on_signals_changed(self, signals: Sequence[Signal]) -> None:
        pass

    def on_updates_processed(self, results: Sequence[tuple[SignalUpdate, UpdateResult]]) -> None:
        pass

    def on_incident_changed(self, incident: Incident, event_type: IncidentEventType) -> None:
        pass

    def on_incident_open_failed(self) -> None:
        pass

    def on_dataset_changed(self, dataset: Dataset) -> None:
        pass

    def on_dataset_missing(self, error: DatasetNotFoundError) -> None:
        pass

    def on_lineage_event_accepted(self) -> None:
        pass
