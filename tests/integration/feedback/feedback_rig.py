"""Rig for feedback: pipelines and health on one store in virtual time, connected by the bus."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Self, cast

from headgate.bootstrap.checks import open_check_basis, open_checks
from headgate.bootstrap.health import event_writer
from headgate.bootstrap.pipelines import close_loop, probe_runner
from headgate.durable.model.duration import Seconds
from headgate.feedback.dataset_gate import DatasetGate
from headgate.feedback.definition_lineage import DefinitionLineage
from headgate.feedback.outcomes import Outcomes
from headgate.health.incidents.listing import IncidentFilter
from headgate.health.model.incidents import Incident
from headgate.health.model.signals import Signal
from headgate.health.reporter import HealthReporter
from headgate.health.service import HealthService
from headgate.pipelines.catalog.calendar_store import CalendarStore
from headgate.pipelines.definition.model import Pipeline, Readiness, RetryPolicy, Rule
from headgate.pipelines.service import PipelineService
from headgate.settings import Settings
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.cache.read_through import Cache
from headgate.store.keyring import Keyring
from headgate.store.port import Store
from tests.pipeline_rig import Rig, pipeline

ORDERS: Final = "urn:dp:shop:orders:v1"


class LoopRig(Rig):
    """One server with pipelines and health."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __enter__(self) -> Self:
        self.env.__enter__()
        service = self.env.service
        self.store = service.store
        self.keyring = Keyring.generate(self.env.clock)
        self.health = self.open_health(self.store)
        basis = open_check_basis(self.health, service.store, service.clock)
        self.owed = basis.owed
        self.pipelines = PipelineService(
            service.store,
            service.clock,
            service.ids,
            service.bus,
            service.asl,
            self.jobs,
            gate=DatasetGate(self.health.gatekeeper, self.owed),
        )
        self.stores = self.pipelines.stores
        self.clock = self.pipelines.clock
        self.reader = self.pipelines.reader
        self.known = self.pipelines.known
        self.evaluations = self.pipelines.evaluations
        self.event_writer = self.pipelines.event_writer
        self.pipelines.register({"EvaluatorFunctionArn": self._evaluate, "sla_monitor_arn": self._sla})
        close_loop(self.app, self.pipelines, self.health)
        self.checks = open_checks(
            basis,
            self.app,
            self.pipelines,
            self.health,
            probe_runner(Settings(home=self._folder / ".headgate", project=self._folder), service.clock, {}),
            CalendarStore(service.store, service.clock),
            service.clock,
            name="rig",
        )
        self.pipelines.put_machine()
        # The worker has joined before there were these.
        service.bus.register(list(self.app.subscriptions.values()), self.app.name)
        return self

    def open_health(self, store: object) -> HealthService:
        service = self.env.service
        return HealthService(
            cast("Store", store),
            service.clock,
            service.ids,
            Cache(clock=service.clock),
            self.keyring,
            FolderBlobs(self._folder / "blobs"),
            event_writes=event_writer(service.store, service.bus),
            observer=HealthReporter(wake_bus=service.bus.on_committed),
        )

    def outcomes(self, health: HealthService) -> Outcomes:
        return Outcomes(self.pipelines, health, DefinitionLineage(self.pipelines, health))

    def signal(self, kind: str, urn: str = ORDERS) -> Signal:
        found = self.health.signals.get(urn, kind, consistent=True)
        assert found is not None, f"{kind} of {urn}: nothing was said"
        return found

    def incidents(self, urn: str = ORDERS) -> list[Incident]:
        return self.health.incident_listing.ls(IncidentFilter(dataset_urn=urn), limit=100).incidents


def writer(pipeline_id: str = "bronze", *urns: str, **fields: Any) -> Pipeline:
    """Return a pipeline that writes orders, and does not try twice."""
    return pipeline(pipeline_id, **{"writes": urns or (ORDERS,), "retry": RetryPolicy(attempts=1), **fields})


def reader(pipeline_id: str = "silver", urn: str = ORDERS, **fields: Any) -> Pipeline:
    """Return one that reads them if they are well, and looks by itself once an hour."""
    waits = Readiness(rules=(Rule(dataset=urn),), window=Seconds(86_400), interval=Seconds(3_600))
    return pipeline(pipeline_id, **{"readiness": waits, **fields})
