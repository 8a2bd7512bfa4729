"""Workers over HTTP: which processes advance executions and run activities, and whether they are alive."""

from __future__ import annotations

from litestar.types import ControllerRouterHandler
from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.durable.engine.membership import list_members
from headgate.durable.model.records import instant
from headgate.durable.service import Service
from headgate.serve.operations import Answer, Call, NoQuery, Operation, Part, operation_routes
from headgate.serve.pool import WorkPool


class WorkerView(Struct, frozen=True):
    """A worker process, as it described itself."""

    id: str
    alive: bool
    app: str
    host: str
    pid: int
    queues: tuple[str, ...]
    workflows: tuple[str, ...]
    activities: tuple[str, ...]
    started_at: str
    lease_until: str


class WorkerPage(Struct, frozen=True):
    """Every worker that has not said good-bye, the newest first."""

    workers: list[WorkerView]


def worker_routes(service: Service, pool: WorkPool) -> list[ControllerRouterHandler]:
    """Return the route of workers."""

    def ls(_call: Call[None, NoQuery]) -> Answer:
        now_ms = int(service.clock.seconds() * 1000)
        members = sorted(list_members(service.store), key=lambda member: member.worker_id, reverse=True)
        return Answer(
            WorkerPage(
                [
                    WorkerView(
                        id=member.worker_id,
                        alive=member.seems_alive(now_ms),
                        app=member.app,
                        host=member.host,
                        pid=member.pid,
                        queues=member.queues,
                        workflows=member.workflows,
                        activities=member.activities,
                        started_at=instant(member.started_at_ms),
                        lease_until=instant(member.lease_until_ms),
                    )
                    for member in members
                ]
            )
        )

    part = Part(Permission.SERVER_READ, Permission.SERVER_READ)
    return operation_routes([Operation("GET", "/workers", "List workers", ls, {200: WorkerPage})], pool, part)
