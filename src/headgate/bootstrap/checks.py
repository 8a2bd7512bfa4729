"""Checks bootstrap: builds the checks of datasets on the pipelines and health of an open store."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from prometheus_client import CollectorRegistry

from headgate.checks.after_runs import SUBSCRIPTION, TYPES, AfterRuns
from headgate.checks.catalog import CheckCatalog
from headgate.checks.config_checks import derived_checks
from headgate.checks.history import NoHistory, StoredHistory
from headgate.checks.metrics import CheckMetrics
from headgate.checks.owed import OwedChecks
from headgate.checks.poller import CheckPoller
from headgate.checks.promised import PromisedChecks
from headgate.checks.recorder import CheckRecorder
from headgate.checks.runner import CheckRunner
from headgate.checks.service import CheckService
from headgate.checks.state import CheckStates
from headgate.clock import Clock
from headgate.durable.model.retry import Retry
from headgate.durable.sdk.app import App
from headgate.health.service import HealthService
from headgate.pipelines.catalog.calendar_store import CalendarStore
from headgate.pipelines.probes.runner import ProbeRunner
from headgate.pipelines.runs.dataset_writes import DatasetWrites
from headgate.pipelines.service import PipelineService
from headgate.store.port import Store

# Requests after runs are retried for about twelve hours.
_RETRY: Final = Retry(attempts=60, first=1.0, factor=3.0, most=900.0)


class OpenChecks(Struct, frozen=True, kw_only=True):
    """The checks of the project, and what runs them."""

    catalog: CheckCatalog
    runner: CheckRunner
    recorder: CheckRecorder
    states: CheckStates
    history: StoredHistory
    poller: CheckPoller
    service: CheckService


class CheckBasis(Struct, frozen=True, kw_only=True):
    """The known checks and their states: what the gate of pipelines asks for owed checks."""

    catalog: CheckCatalog
    states: CheckStates
    owed: OwedChecks


def open_check_basis(health: HealthService, store: Store, clock: Clock) -> CheckBasis:
    """Return the checks of a project before its pipelines are open. `store` has the rows of pipelines."""
    catalog = CheckCatalog(lambda file: derived_checks(file, health.registry.find(file.dataset)))
    states = CheckStates(health.store, clock)
    owed = OwedChecks(catalog, states, DatasetWrites(store, clock), health.registered, clock)
    return CheckBasis(catalog=catalog, states=states, owed=owed)


def open_checks(
    basis: CheckBasis,
    app: App,
    pipelines: PipelineService,
    health: HealthService,
    probes: ProbeRunner,
    calendars: CalendarStore,
    clock: Clock,
    *,
    name: str,
    registry: CollectorRegistry | None = None,
) -> OpenChecks:
    """Return the checks, and subscribe them to completed runs. `name` is this process in claims."""
    catalog, states = basis.catalog, basis.states
    promised = PromisedChecks(
        health.registry.export, lambda: {health.registered(each.file.dataset) for each in catalog.files()}
    )
    history = StoredHistory(health, pipelines)
    runner = CheckRunner(clock, probes, history, calendars.all)
    recorder = CheckRecorder(health)
    after_runs = AfterRuns(pipelines, health, catalog, states)
    app.on_event(*TYPES, name=SUBSCRIPTION, retry=_RETRY)(after_runs.handle)
    return OpenChecks(
        catalog=catalog,
        runner=runner,
        recorder=recorder,
        states=states,
        history=history,
        service=CheckService(clock, health, catalog, runner, states, promised, history, calendars.all),
        poller=CheckPoller(
            clock,
            catalog,
            runner,
            recorder,
            states,
            promised,
            CheckMetrics(registry if registry is not None else CollectorRegistry()),
            name=name,
            covered=basis.owed.covered,
            on_measured=after_runs.wake_readers,
            is_writer=lambda: health.is_writer,
        ),
    )


def offline_runner(clock: Clock, probes: ProbeRunner) -> CheckRunner:
    """Return what runs checks without a store: there is no history, and so no expected band."""
    return CheckRunner(clock, probes, NoHistory(), dict)
