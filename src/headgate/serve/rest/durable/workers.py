"""Worker API: lists worker processes; and activity API: external completion, failure and heartbeat by token."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from litestar.types import ControllerRouterHandler
from msgspec import Meta, Raw, Struct

from headgate.auth.roles import Permission
from headgate.durable.engine.membership import list_members
from headgate.durable.model.failures import DATA_BYTES_MAX, MESSAGE_BYTES_MAX, NOTHING, ErrorInfo
from headgate.durable.model.records import instant
from headgate.durable.model.worker_limits import WorkerLimits, WorkerUsage
from headgate.durable.service import Service
from headgate.errors import NotFoundError, PayloadTooLargeError, StaleClaimError
from headgate.serve.http.idempotency import RETENTION_SECONDS, IdempotencyStore
from headgate.serve.http.operations import AccessPolicy, Answer, Auditing, Call, NoQuery, Operation, operation_routes
from headgate.serve.http.raw_json import checked, missing
from headgate.serve.rest.parameters import TokenBody
from headgate.serve.runtime.thread_pool import WorkPool


class WorkerView(Struct, frozen=True, omit_defaults=True):
    """A worker process, with its limits and what it had in use at its last heartbeat."""

    id: str
    alive: bool
    app: str
    # The id of its code; empty for a worker of an earlier version of Headgate.
    build: str
    host: str
    pid: int
    queues: tuple[str, ...]
    workflows: tuple[str, ...]
    activities: tuple[str, ...]
    started_at: str
    lease_until: str
    limits: WorkerLimits | None = None
    usage: WorkerUsage | None = None


class WorkerPage(Struct, frozen=True):
    """All registered workers, newest first."""

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
                        build=member.build,
                        host=member.host,
                        pid=member.pid,
                        queues=member.queues,
                        workflows=member.workflows,
                        activities=member.activities,
                        started_at=instant(member.started_at_ms),
                        lease_until=instant(member.lease_until_ms),
                        limits=member.limits,
                        usage=member.usage,
                    )
                    for member in members
                ]
            )
        )

    part = AccessPolicy(Permission.SERVER_READ, Permission.SERVER_READ)
    return operation_routes([Operation("GET", "/workers", "List workers", ls, {200: WorkerPage})], pool, part)


_POLICY: Final = AccessPolicy(Permission.EXECUTION_READ, Permission.EXECUTION_WRITE)


class CompleteActivity(TokenBody, kw_only=True):
    """The result of an activity."""

    result: Raw = msgspec.field(default_factory=missing)


class ReportedError(Struct, forbid_unknown_fields=True):
    """Error of an attempt. Retry policies match on `type`; `data` is passed to the workflow."""

    type: Annotated[str, Meta(min_length=1, max_length=200)]
    message: str = ""
    data: Raw = msgspec.field(default_factory=missing)
    retryable: bool = True


class FailActivity(TokenBody, kw_only=True):
    """Failure of an attempt; the retry policy decides about another."""

    error: ReportedError


class BeatActivity(TokenBody, kw_only=True):
    """A heartbeat with progress details."""

    details: Raw = msgspec.field(default_factory=missing)


class Beaten(Struct, frozen=True):
    """Whether the activity was cancelled and the work should stop."""

    cancelled: bool


def activity_routes(
    service: Service,
    pool: WorkPool,
    *,
    auditing: Auditing | None = None,
    idempotency_seconds: int = RETENTION_SECONDS,
) -> list[ControllerRouterHandler]:
    """Return the routes of activities. Responses by Idempotency-Key are kept `idempotency_seconds`."""
    activities = _Activities(service)
    operations = [
        Operation(
            "POST",
            "/activities/complete",
            "Complete an activity",
            activities.complete,
            {204: None},
            body=CompleteActivity,
            repeatable=True,
        ),
        Operation(
            "POST",
            "/activities/fail",
            "Fail an attempt of an activity",
            activities.fail,
            {204: None},
            body=FailActivity,
            repeatable=True,
        ),
        Operation(
            "POST",
            "/activities/heartbeat",
            "Send a heartbeat of an activity",
            activities.beat,
            {200: Beaten},
            body=BeatActivity,
        ),
    ]
    idempotency = IdempotencyStore(service.store, service.clock, kept_seconds=idempotency_seconds)
    return operation_routes(operations, pool, _POLICY, auditing=auditing, idempotency=idempotency)


class _Activities:
    def __init__(self, service: Service) -> None:
        self._client = service.client

    def complete(self, call: Call[CompleteActivity, NoQuery]) -> Answer:
        self._client.complete_activity(call.body.signed_token(), checked(call.body.result, "result"))
        return Answer(status=204)

    def fail(self, call: Call[FailActivity, NoQuery]) -> Answer:
        self._client.fail_activity(call.body.signed_token(), _error_info(call.body.error))
        return Answer(status=204)

    def beat(self, call: Call[BeatActivity, NoQuery]) -> Answer:
        raw = call.body.details
        details = checked(raw, "details") if len(raw) else None
        try:
            is_wanted = self._client.beat_activity(call.body.signed_token(), details)
        except (StaleClaimError, NotFoundError):
            is_wanted = False
        return Answer(Beaten(cancelled=not is_wanted))


def _error_info(error: ReportedError) -> ErrorInfo:
    """Return a reported error as data: an external error names no class that could be raised."""
    data = checked(error.data, "error.data")
    for what, size, most in (
        ("error.message", len(error.message.encode()), MESSAGE_BYTES_MAX),
        ("error.data", len(data), DATA_BYTES_MAX),
    ):
        if size > most:
            raise PayloadTooLargeError(f"{what}: {size:,} bytes; the limit is {most:,}")
    attributes = NOTHING if bytes(data) == b"null" else Raw(b'{"data":' + bytes(data) + b"}")
    return ErrorInfo(type=error.type, message=error.message, data=attributes, retryable=error.retryable)
