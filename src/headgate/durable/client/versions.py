"""Versions: what each build of an app still holds, whether it can be removed, and changes of the deployment."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.durable.client.listing import open_executions
from headgate.durable.engine.deployments import Deployment, Deployments
from headgate.durable.engine.function_apps import serving_members
from headgate.durable.engine.membership import Member
from headgate.durable.model.declarations import Declarations
from headgate.durable.model.history import Status, Woken
from headgate.durable.model.names import is_built_in
from headgate.durable.model.records import Execution, message
from headgate.errors import ConflictError, NotFoundError, UserError
from headgate.ids import IdMaker
from headgate.store.model.requests import Write
from headgate.store.port import Store

_BATCH: Final = 100


class VersionState(enum.StrEnum):
    """What a build of an app does for new executions, and whether it can be removed."""

    # Takes new executions, by choice of an operator.
    CURRENT = "CURRENT"
    # Takes a share of them.
    RAMPING = "RAMPING"
    # Takes new executions: no current build is set.
    ACTIVE = "ACTIVE"
    # Takes none, and has pinned executions left.
    DRAINING = "DRAINING"
    # Takes none, and has none left.
    DRAINED = "DRAINED"


class WorkflowUse(Struct):
    """The open executions of a workflow on one build."""

    workflow: str
    pinned: int = 0
    # Of an auto-upgraded execution, the build is that of its last turn.
    auto: int = 0
    # The longest running execution, pinned before others, which an operator can wait for or move.
    oldest: str = ""


class Version(Struct):
    """One build of an app."""

    app: str
    build: str
    state: VersionState
    live_workers: int
    pinned: int
    auto: int
    workflows: list[WorkflowUse]
    fact: str
    ramp_percent: int = 0

    @property
    def can_go(self) -> bool:
        """Whether the build can be removed without an execution waiting for it."""
        return self.state is VersionState.DRAINED


class AppVersions(Struct):
    """The builds of an app."""

    app: str
    current: str
    versions: list[Version]


class Versions:
    """The versions of all apps of a store."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._deployments = Deployments(store)

    def all(self) -> list[AppVersions]:
        """Return every app with a build that has a live worker, an open execution or a role. Reads them all."""
        now_ms = self._now_ms()
        alive = [each for each in serving_members(self._store, now_ms) if _has_own_workflows(each)]
        deployments = self._deployments.all()
        uses = self._uses(alive)
        known = {(member.app, member.build) for member in alive if member.build} | set(uses)
        for each in deployments.values():
            known |= {(each.app, build) for build in (each.current, each.ramping) if build}
        apps = []
        for app in sorted({app for app, _ in known}):
            deployment = deployments.get(app, Deployment(app))
            members = [member for member in alive if member.app == app]
            versions = [
                _version(deployment, build, members, uses.get((app, build), {}))
                for build in sorted(build for known_app, build in known if known_app == app)
            ]
            apps.append(AppVersions(app, deployment.current, versions))
        return apps

    def of_app(self, app: str) -> AppVersions:
        """Return the builds of an app. Raises `NotFoundError`."""
        found = next((each for each in self.all() if each.app == app), None)
        if found is None and app in self._deployments.all():
            return AppVersions(app, "", [])
        if found is None:
            raise NotFoundError(f"app {app}: no live worker, open execution or deployment; see 'headgate deploy ls'")
        return found

    # Changes.

    def set_current(self, app: str, build: str | None, *, is_forced: bool = False) -> Deployment:
        """Have a build take new executions, or every build if it is None. A ramp ends.

        Raises `ConflictError` if no live worker has the build, unless it is forced, and `NotFoundError` for None if
        nothing is known of the app.
        """
        if build is None:
            self.of_app(app)
        elif not is_forced:
            self._require_worker(app, build)
        return self._deployments.change(
            app,
            lambda before: replace(
                before, current=build or "", ramping="", ramp_percent=0, draining=_without(before.draining, build)
            ),
        )

    def ramp(self, app: str, build: str, percent: int) -> Deployment:
        """Have a build take a share of new executions beside the current one; 0 ends the ramp.

        Raises `ConflictError` without a current build or a live worker of this one, and at 0 if it has no share.
        """
        if percent:
            self._require_worker(app, build)

        def change(before: Deployment) -> Deployment:
            if not before.current or before.current == build:
                raise ConflictError(
                    f"app {app}: a ramp needs a current build other than {build}; set it with 'headgate deploy "
                    "set-current'"
                )
            if percent:
                draining = _without(before.draining, build)
                return replace(before, ramping=build, ramp_percent=percent, draining=draining)
            if before.ramping != build:
                other = f"build {before.ramping} has" if before.ramping else "no build has"
                raise ConflictError(f"app {app}: build {build} has no share of new executions to end; {other} one")
            return replace(before, ramping="", ramp_percent=0)

        return self._deployments.change(app, change)

    def drain(self, app: str, build: str, *, undo: bool = False) -> Deployment:
        """Have a build take no new executions. Raises `ConflictError` if it is the current one.

        Raises `NotFoundError` if the app has no such build: no live worker, no open execution and no role. Drained
        builds of which nothing is left are forgotten.
        """
        known = {each.build for each in self.of_app(app).versions}

        def change(before: Deployment) -> Deployment:
            if build not in known and not (undo and build in before.draining):
                raise NotFoundError(
                    f"app {app}: no live worker or open execution has build {build}; builds: "
                    f"{', '.join(sorted(known)) or 'none'}; see 'headgate deploy ls'"
                )
            draining = tuple(each for each in _without(before.draining, build) if each in known)
            if undo:
                return replace(before, draining=draining)
            if before.current == build:
                raise ConflictError(
                    f"app {app}: build {build} is the current one; set another with 'headgate deploy set-current' first"
                )
            ramp = ("", 0) if before.ramping == build else (before.ramping, before.ramp_percent)
            return replace(before, draining=(*draining, build), ramping=ramp[0], ramp_percent=ramp[1])

        return self._deployments.change(app, change)

    def move(self, app: str, build: str, to: str | None) -> int:
        """Pin the open executions that are pinned to a build to another one, or to none; and return their number.

        Raises `ConflictError` if no live worker has the other build, and `UserError` if it is the same.
        """
        if to == build:
            raise UserError(f"app {app}: build {build}: move its executions to another build, or to none")
        if to is not None:
            self._require_worker(app, to)
        apps = _AppsOfWorkflows(self._store, [])
        moved = 0
        batch: list[Execution] = []
        for row in open_executions(self._store):
            if row.is_pinned and row.build == build and apps.of(row.workflow) == app:
                batch.append(row)
            if len(batch) == _BATCH:
                moved += self._move(batch, to)
                batch = []
        return moved + self._move(batch, to)

    def _move(self, rows: Sequence[Execution], to: str | None) -> int:
        refusals = self._store.transact_many([self._moving_writes(row, to) for row in rows]) if rows else []
        for refusal in refusals:
            # A conflict: it has just taken a turn, or has ended. A second call moves those that are left.
            if refusal is not None and not isinstance(refusal, ConflictError):
                raise refusal
        return sum(refusal is None for refusal in refusals)

    def _moving_writes(self, row: Execution, to: str | None) -> list[Write]:
        after = replace(
            row,
            version=row.version + 1,
            build=row.build if to is None else to,
            is_pinned=to is not None,
            failed_builds=(),
            unfit_builds=(),
            status=Status.RUNNING,
            failures=0,
            retry_at_ms=None,
        )
        # Wakes a worker of the other build, also if the execution was stuck.
        woken = message(row.execution_id, Woken("moved to another build"), self._now_ms(), self._ids.ulid())
        writes: list[Write] = [after.replacing(row.version)]
        return [*writes, woken.put()] if row.status is Status.STUCK or row.failures else writes

    def _require_worker(self, app: str, build: str) -> None:
        now_ms = self._now_ms()
        live = {each.build for each in serving_members(self._store, now_ms) if each.app == app}
        if build not in live:
            known = ", ".join(sorted(live)) or "none"
            raise ConflictError(
                f"app {app}: no live worker has build {build}; live builds: {known}; start one with --build {build}"
            )

    # Reads.

    def _uses(self, alive: Iterable[Member]) -> dict[tuple[str, str], dict[str, WorkflowUse]]:
        apps = _AppsOfWorkflows(self._store, alive)
        uses: dict[tuple[str, str], dict[str, WorkflowUse]] = {}
        # One at a time: only the counts and the oldest of each are kept in memory.
        oldest: dict[tuple[str, str], tuple[bool, str]] = {}
        for row in open_executions(self._store):
            if not row.build or is_built_in(row.workflow):
                continue
            by_workflow = uses.setdefault((apps.of(row.workflow), row.build), {})
            use = by_workflow.setdefault(row.workflow, WorkflowUse(row.workflow))
            age = (not row.is_pinned, row.started_at)
            if age <= oldest.setdefault((row.workflow, row.build), age):
                oldest[row.workflow, row.build] = age
                use.oldest = row.execution_id
            if row.is_pinned:
                use.pinned += 1
            else:
                use.auto += 1
        return uses

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


class _AppsOfWorkflows:
    """Finds the app of a workflow: of a live worker, or the one that declared it last."""

    def __init__(self, store: Store, alive: Iterable[Member]) -> None:
        self._declarations = Declarations(store)
        self._apps = {workflow: member.app for member in alive for workflow in member.workflows}

    def of(self, workflow: str) -> str:
        if workflow not in self._apps:
            self._apps[workflow] = self._declarations.app_of(workflow)
        return self._apps[workflow]


def _has_own_workflows(member: Member) -> bool:
    """Whether a worker serves more than the workflows that are part of the product, as a server without an app does."""
    return any(not is_built_in(workflow) for workflow in member.workflows)


def _version(deployment: Deployment, build: str, members: Iterable[Member], uses: Mapping[str, WorkflowUse]) -> Version:
    workers = sum(member.build == build for member in members)
    pinned, auto = sum(use.pinned for use in uses.values()), sum(use.auto for use in uses.values())
    state = _state(deployment, build, workers, pinned)
    return Version(
        app=deployment.app,
        build=build,
        state=state,
        live_workers=workers,
        pinned=pinned,
        auto=auto,
        workflows=sorted(uses.values(), key=lambda use: use.workflow),
        fact=_fact(state, build, workers, pinned, auto),
        ramp_percent=deployment.ramp_percent if deployment.ramping == build else 0,
    )


def _state(deployment: Deployment, build: str, workers: int, pinned: int) -> VersionState:
    if deployment.current == build:
        return VersionState.CURRENT
    if deployment.ramping == build:
        return VersionState.RAMPING
    if not deployment.current and build not in deployment.draining and workers:
        return VersionState.ACTIVE
    return VersionState.DRAINING if pinned else VersionState.DRAINED


def _fact(state: VersionState, build: str, workers: int, pinned: int, auto: int) -> str:
    moving = (
        f"; {_count(auto, 'auto execution')} took the last turn here and can continue on other builds" if auto else ""
    )
    if pinned and not workers:
        return (
            f"{_count(pinned, 'pinned execution')} without a worker: start one with --build {build}, or move them "
            f"with 'headgate deploy move {build}'{moving}"
        )
    match state:
        case VersionState.DRAINED:
            return f"safe to remove: no open execution is pinned to it{moving}"
        case VersionState.DRAINING:
            is_open = "is open" if pinned == 1 else "are open"
            return f"keep its workers: {_count(pinned, 'pinned execution')} {is_open}{moving}"
        case _ if not workers:
            return "takes new executions, and has no live worker: new pinned executions wait; start one"
        case _:
            return "takes new executions"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _without(builds: tuple[str, ...], build: str | None) -> tuple[str, ...]:
    return tuple(each for each in builds if each != build)
