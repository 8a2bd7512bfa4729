"""Deployment API: the builds of each app, what each still holds, and which one takes new executions."""

from __future__ import annotations

from typing import Annotated, Any, Final

from litestar.types import ControllerRouterHandler
from msgspec import Meta, Struct

from headgate.auth.roles import Permission
from headgate.durable.client.versions import AppVersions, Version, Versions, VersionState
from headgate.durable.service import Service
from headgate.serve.http.operations import AccessPolicy, Answer, Auditing, Call, NoQuery, Operation, operation_routes
from headgate.serve.rest.parameters import Reason, described
from headgate.serve.runtime.thread_pool import WorkPool

_POLICY: Final = AccessPolicy(Permission.EXECUTION_READ, Permission.EXECUTION_WRITE)
AppName = Annotated[str, described(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")]
Build = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$")]


class WorkflowUseView(Struct, frozen=True):
    """The open executions of a workflow on one build. `oldest` is the longest running one, pinned before others."""

    workflow: str
    pinned: int
    auto: int
    oldest: str


class VersionView(Struct, frozen=True):
    """One build of an app. With `can_go`, no execution needs it any more."""

    build: str
    state: VersionState
    ramp_percent: int
    live_workers: int
    pinned: int
    auto: int
    can_go: bool
    fact: str
    workflows: list[WorkflowUseView]


class DeploymentView(Struct, frozen=True):
    """An app and its builds. Without `current`, every build takes new executions."""

    app: str
    current: str
    versions: list[VersionView]


class DeploymentPage(Struct, frozen=True):
    """Every app with a live worker, an open execution or a deployment."""

    deployments: list[DeploymentView]


class SetCurrent(Struct, forbid_unknown_fields=True):
    """The build that takes new executions; null for every build. With `force`, it needs no live worker."""

    build: Build | None
    force: bool = False
    reason: Reason = ""


class Ramp(Struct, forbid_unknown_fields=True):
    """The share of new executions that a build takes beside the current one; 0 ends the ramp."""

    build: Build
    percent: Annotated[int, Meta(ge=0, le=100)]
    reason: Reason = ""


class Drain(Struct, forbid_unknown_fields=True):
    """A build that takes no new executions; with `undo`, it takes them again."""

    build: Build
    undo: bool = False
    reason: Reason = ""


class Move(Struct, forbid_unknown_fields=True):
    """Pin the executions of a build to another one; null to none, so that any build may continue them."""

    build: Build
    to: Build | None
    reason: Reason = ""


class Moved(Struct, frozen=True):
    """How many executions were moved."""

    moved: int


def deployment_routes(
    service: Service, pool: WorkPool, *, auditing: Auditing | None = None
) -> list[ControllerRouterHandler]:
    """Return the routes of deployments."""
    deployments = _Deployments(service)
    one = "/deployments/{app}"
    shown = {200: DeploymentView}
    operations: list[Operation] = [
        Operation("GET", "/deployments", "List the builds of each app", deployments.ls, {200: DeploymentPage}),
        Operation("GET", one, "Show the builds of an app", deployments.show, shown),
        Operation(
            "POST",
            f"{one}/current",
            "Set the build that takes new executions",
            deployments.set_current,
            shown,
            body=SetCurrent,
        ),
        Operation("POST", f"{one}/ramp", "Give a build a share of new executions", deployments.ramp, shown, body=Ramp),
        Operation("POST", f"{one}/drain", "Give a build no new executions", deployments.drain, shown, body=Drain),
        Operation(
            "POST", f"{one}/move", "Move pinned executions to another build", deployments.move, {200: Moved}, body=Move
        ),
    ]
    return operation_routes(operations, pool, _POLICY, auditing=auditing, path_types={"app": AppName})


class _Deployments:
    def __init__(self, service: Service) -> None:
        self._versions = Versions(service.store, service.clock, service.ids)

    def ls(self, _call: Call[None, NoQuery]) -> Answer:
        return Answer(DeploymentPage([_view(each) for each in self._versions.all()]))

    def show(self, call: Call[None, NoQuery]) -> Answer:
        return self._answer(call)

    def set_current(self, call: Call[SetCurrent, NoQuery]) -> Answer:
        self._versions.set_current(call.path["app"], call.body.build, is_forced=call.body.force)
        return self._answer(call)

    def ramp(self, call: Call[Ramp, NoQuery]) -> Answer:
        self._versions.ramp(call.path["app"], call.body.build, call.body.percent)
        return self._answer(call)

    def drain(self, call: Call[Drain, NoQuery]) -> Answer:
        self._versions.drain(call.path["app"], call.body.build, undo=call.body.undo)
        return self._answer(call)

    def move(self, call: Call[Move, NoQuery]) -> Answer:
        return Answer(Moved(self._versions.move(call.path["app"], call.body.build, call.body.to)))

    def _answer(self, call: Call[Any, NoQuery]) -> Answer:
        return Answer(_view(self._versions.of_app(call.path["app"])))


def _view(app: AppVersions) -> DeploymentView:
    return DeploymentView(app.app, app.current, [_version(each) for each in app.versions])


def _version(version: Version) -> VersionView:
    return VersionView(
        build=version.build,
        state=version.state,
        ramp_percent=version.ramp_percent,
        live_workers=version.live_workers,
        pinned=version.pinned,
        auto=version.auto,
        can_go=version.can_go,
        fact=version.fact,
        workflows=[WorkflowUseView(each.workflow, each.pinned, each.auto, each.oldest) for each in version.workflows],
    )
