"""Components: everything the server serves, opened from the settings in dependency order and closed in reverse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from headgate.asl.tasks.task_backends import TaskBackends
from headgate.auth.api_keys import ApiKeys
from headgate.auth.authenticator import Authenticator
from headgate.auth.sessions import Sessions
from headgate.bootstrap.alerts import audited
from headgate.bootstrap.health import (
    OpenRegion,
    open_authenticator,
    open_health,
    open_keys,
    open_oidc_sign_in,
    open_region,
    open_sessions,
)
from headgate.bootstrap.key_check import check_keys
from headgate.bootstrap.pipelines import (
    OpenPipelines,
    open_engine,
    open_pipelines,
)
from headgate.bootstrap.project_folder import ProjectFolder
from headgate.bootstrap.store import (
    AppService,
    OpenedStore,
    open_cache,
    open_store,
)
from headgate.bootstrap.task_backends import open_task_backends
from headgate.clock import Clock
from headgate.durable.model.meters import ExecutionMeters
from headgate.durable.sdk.app import App
from headgate.errors import StoreUnavailableError
from headgate.fanout.service import FanoutService
from headgate.health.error_alerts import ErrorAlerts
from headgate.health.metrics import HealthMeters
from headgate.health.service import HealthService
from headgate.notify.metrics import AlertMeters
from headgate.serve.intake.client import IntakeClient
from headgate.serve.runtime.merged_metrics import MergedRegistry
from headgate.settings import Settings
from headgate.store.cache.read_through import Cache
from headgate.store.peer_changes import NO_PEERS, PeerChanges
from headgate.telemetry import Metrics, Tracing

if TYPE_CHECKING:
    # Imported only with an issuer: the JWT libraries are slow to load.
    from headgate.auth.oidc_sign_in import OidcSignIn


@dataclass(frozen=True, kw_only=True)
class Components:
    """The open services of one server process."""

    version: str
    store: OpenedStore
    cache: Cache
    metrics: Metrics
    # The registry of the metrics, to which other processes add theirs.
    registry: MergedRegistry
    # What Tasks of state machines may call outside of Headgate.
    task_backends: TaskBackends
    service: AppService
    fanouts: FanoutService
    health: HealthService
    pipelines: OpenPipelines
    # None if no folder with definitions is configured.
    folder: ProjectFolder | None
    keys: ApiKeys
    sessions: Sessions
    authenticator: Authenticator
    # None if people sign in with API keys only.
    oidc: OidcSignIn | None
    intake: IntakeClient
    # None where only one region is configured.
    region: OpenRegion | None
    # Writes of the start that the store has refused because of a condition. They are repeated until they succeed.
    deferred: tuple[Callable[[], None], ...] = ()


@contextmanager
def open_components(
    settings: Settings,
    *,
    version: str,
    clock: Clock,
    tracing: Tracing,
    app: App,
    environ: Mapping[str, str],
    peer_changes: PeerChanges = NO_PEERS,
) -> Iterator[Components]:
    """Open the components, check the store, and apply the pipelines folder. Raises errors of the store and settings.

    `peer_changes` counts the changes of several serving processes.
    """
    with ExitStack() as stack:
        registry = MergedRegistry()
        metrics = Metrics(version=version, registry=registry)
        meters = HealthMeters(registry)
        alerts = ErrorAlerts(clock, meters)
        alert_meters = AlertMeters()
        registry.register(alert_meters)
        opened = open_store(settings, clock, observer=alerts)
        stack.enter_context(closing(opened.store))
        cache = open_cache(settings, clock, answered=meters.cache_answered, peer_changes=peer_changes)
        stack.enter_context(closing(cache))
        meters.watch_cache(cache.stats)
        # Some backends open without a request; an unreachable store must fail the start.
        opened.store.check_health()
        check_keys(opened)
        backends = open_task_backends(settings, clock, environ)
        service = AppService(app, opened, clock, backends, meters=ExecutionMeters(), tracing=tracing)
        region = open_region(opened, clock, service, meters)
        if region is not None:
            stack.enter_context(closing(region))
        fence = None if region is None else region.fence
        intake = IntakeClient(settings, clock, cache, registry)
        health = open_health(
            opened,
            cache,
            clock,
            service,
            meters=meters,
            alerts=alerts,
            tracing=tracing,
            fence=fence,
            intake_shed_count=intake.shed_count,
        )
        stack.enter_context(closing(health))
        keys = open_keys(opened, clock, health, peer_changes)
        sessions = open_sessions(settings, opened, clock, health, keys, peer_changes)
        pipelines = open_pipelines(
            service,
            opened,
            clock,
            environ=environ,
            health=health,
            commit=lambda writes, change: health.audit.commit(writes, audited(change)),
            engine=open_engine(settings, clock, service.ids),
            alert_meters=alert_meters,
            tracing=tracing,
            registry=registry,
        )
        # Before the first event is emitted, so that no subscriber misses it.
        first: list[Callable[[], None]] = [
            partial(service.bus.register, list(service.app.subscriptions.values()), service.app.name)
        ]
        named = settings.pipelines.folder
        folder = None if named is None else ProjectFolder(named, pipelines, home=settings.home, actions=health.actions)
        if folder is not None:
            first.append(folder.load_first)
        deferred = _run_or_defer(first)
        yield Components(
            version=version,
            store=opened,
            cache=cache,
            metrics=metrics,
            registry=registry,
            task_backends=backends,
            service=service,
            fanouts=service.fanouts,
            health=health,
            pipelines=pipelines,
            folder=folder,
            keys=keys,
            sessions=sessions,
            authenticator=open_authenticator(settings, clock, keys, sessions),
            oidc=open_oidc_sign_in(settings, clock),
            intake=intake,
            region=region,
            deferred=deferred,
        )


def _run_or_defer(steps: Sequence[Callable[[], None]]) -> tuple[Callable[[], None], ...]:
    """Run the steps in order, and return those that a condition of the store leaves to be run later."""
    for place, step in enumerate(steps):
        try:
            step()
        except StoreUnavailableError:
            return tuple(steps[place:])
    return ()
