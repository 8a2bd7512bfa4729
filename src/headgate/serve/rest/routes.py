"""REST routes: assembles the API under `/api/v1`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from litestar.types import ControllerRouterHandler

from headgate.bootstrap.pipelines import OpenProbes
from headgate.bootstrap.store import AppService
from headgate.fanout.service import FanoutService
from headgate.pipelines.authoring.validation import TraitCheck
from headgate.pipelines.catalog.calendar_store import CalendarStore
from headgate.pipelines.service import PipelineService
from headgate.serve.http.idempotency import RETENTION_SECONDS
from headgate.serve.http.operations import Auditing, Operation
from headgate.serve.rest.asl.machines import machine_routes
from headgate.serve.rest.durable.dead_letters import dead_letter_routes
from headgate.serve.rest.durable.deployments import deployment_routes
from headgate.serve.rest.durable.events import event_routes
from headgate.serve.rest.durable.executions import execution_routes
from headgate.serve.rest.durable.schedules import schedule_routes
from headgate.serve.rest.durable.subscriptions import subscription_routes
from headgate.serve.rest.durable.workers import activity_routes, worker_routes
from headgate.serve.rest.fanout.fanouts import fanout_routes
from headgate.serve.rest.pipelines.pipelines import pipeline_routes
from headgate.serve.rest.pipelines.probes import probe_operations
from headgate.serve.rest.pipelines.reload import ReloadableFolder
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub


def api_routes(  # noqa: PLR0913 - the parts of the API are joined here
    service: AppService,
    pool: WorkPool,
    *,
    fanouts: FanoutService | None = None,
    pipelines: PipelineService | None = None,
    calendars: CalendarStore | None = None,
    check_trait: TraitCheck | None = None,
    folder: ReloadableFolder | None = None,
    probes: OpenProbes | None = None,
    unusable_handlers: Callable[[], Mapping[str, str]] = dict,
    stopping: Callable[[], bool] = lambda: False,
    auditing: Auditing | None = None,
    idempotency_seconds: int = RETENTION_SECONDS,
) -> list[ControllerRouterHandler]:
    """Return the routes of executions, events, machines, and of fan-outs and pipelines if given.

    Once `stopping` returns True, long polls end. `unusable_handlers` returns the chunk handlers that this process
    could not load, with the reason. `check_trait` runs one trait evaluation. `folder` is loaded again on request.
    `auditing` adds audit entries.
    Responses by Idempotency-Key are kept for `idempotency_seconds`.
    """
    watches = WatchHub(service.store, stopping=stopping)
    return [
        *execution_routes(service, pool, watches=watches, auditing=auditing, idempotency_seconds=idempotency_seconds),
        *event_routes(service, pool, watches=watches, auditing=auditing),
        *subscription_routes(service, pool, auditing=auditing),
        *dead_letter_routes(service, pool, auditing=auditing),
        *activity_routes(service, pool, auditing=auditing, idempotency_seconds=idempotency_seconds),
        *schedule_routes(service, pool, auditing=auditing),
        *worker_routes(service, pool),
        *deployment_routes(service, pool, auditing=auditing),
        *machine_routes(service, pool, auditing=auditing),
        *(
            []
            if fanouts is None
            else fanout_routes(fanouts, pool, watches=watches, unusable=unusable_handlers, auditing=auditing)
        ),
        *(
            []
            if pipelines is None
            else pipeline_routes(
                pipelines,
                service.bus,
                pool,
                calendars,
                check_trait,
                stopping=stopping,
                folder=folder,
                probes=() if probes is None else _probe_operations(pipelines, probes),
                auditing=auditing,
                idempotency_seconds=idempotency_seconds,
            )
        ),
    ]


def _probe_operations(pipelines: PipelineService, probes: OpenProbes) -> list[Operation]:
    return probe_operations(probes.catalog, probes.results, probes.runner, pipelines.known, pipelines.clock)
