"""Build routing: decides which workers may take the next turn of an execution, by the build of their code.

All functions are pure. Every worker applies them to its own view of the fleet; the version of the execution's row
decides when two views differ.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from headgate.durable.engine.deployments import Deployment
from headgate.durable.model.records import Execution


class Candidate(Protocol):
    """A worker that may take turns."""

    @property
    def app(self) -> str: ...

    @property
    def build(self) -> str: ...

    @property
    def workflows(self) -> tuple[str, ...]: ...

    @property
    def pinned(self) -> tuple[str, ...]: ...


C = TypeVar("C", bound=Candidate)


def candidates(workers: Sequence[C], row: Execution, deployments: Mapping[str, Deployment]) -> list[C]:
    """Return the workers, of these live ones, that may take the next turn of an execution.

    A pinned execution stays with its build; a new execution that will be pinned begins on the build that takes new
    ones, or waits for it. For others, workers whose build has failed at this turn, or does not fit the history, are
    left out while there are others, and then the build that takes new executions comes first.
    """
    serving = [worker for worker in workers if row.workflow in worker.workflows]
    if row.is_pinned:
        return [worker for worker in serving if worker.build == row.build]
    able = [worker for worker in serving if not will_pin(worker, row) or takes_new(worker, row, deployments)]
    fit = [worker for worker in able if not has_failed(worker.build, row)] or able
    return [worker for worker in fit if takes_new(worker, row, deployments)] or fit


def has_untried(workers: Sequence[Candidate], row: Execution, deployments: Mapping[str, Deployment]) -> bool:
    """Whether one of these live workers may take the next turn with a build that has not failed at it."""
    return any(not has_failed(worker.build, row) for worker in candidates(workers, row, deployments))


def has_failed(build: str, row: Execution) -> bool:
    """Whether the code of a build has failed at the next turn of an execution, or does not fit its history."""
    return build in row.failed_builds or build in row.unfit_builds


def will_pin(worker: Candidate, row: Execution) -> bool:
    """Whether a new execution would be pinned to the build of a worker by its first turn there."""
    return not row.build and row.turn < row.first_turn and row.workflow in worker.pinned


def takes_new(worker: Candidate, row: Execution, deployments: Mapping[str, Deployment]) -> bool:
    """Whether the deployment of its app gives new and auto-upgraded executions like this one to a worker."""
    deployment = deployments.get(worker.app)
    if deployment is None:
        return True
    target = target_build(deployment, row.execution_id)
    return worker.build == target if target else worker.build not in deployment.draining


def target_build(deployment: Deployment, execution_id: str) -> str:
    """Return the build that takes an execution by its id: the current or the ramping one; empty if any does."""
    # By the id, so that an execution stays with its build while the share grows.
    is_ramped = zlib.crc32(execution_id.encode()) % 100 < deployment.ramp_percent
    return deployment.ramping if deployment.ramping and is_ramped else deployment.current


def obstacle(workers: Sequence[Candidate], row: Execution, deployments: Mapping[str, Deployment]) -> str | None:
    """Return why no live worker may take the next turn of an execution, with the remedy; None if one may."""
    if candidates(workers, row, deployments):
        return None
    serving = [worker for worker in workers if row.workflow in worker.workflows]
    if row.is_pinned:
        return (
            f"no live worker has build {row.build}, to which the execution is pinned; start one with --build "
            f"{row.build}, or move it to another build with 'headgate deploy move {row.build}'"
        )
    if not serving:
        return f"no live worker serves workflow {row.workflow}; start one with its app"
    deployment = deployments[serving[0].app]
    target = target_build(deployment, row.execution_id)
    if target:
        return (
            f"new executions of app {deployment.app} start on build {target}, and no live worker has it; start one, "
            "or choose another build with 'headgate deploy set-current'"
        )
    return (
        f"every live build of app {deployment.app} is drained and takes no new executions; start a worker with another "
        "build, or undo it with 'headgate deploy drain --undo'"
    )


def is_mixed(workers: Sequence[Candidate]) -> bool:
    """Whether some workers may take turns of an execution that others may not."""
    first = workers[0] if workers else None
    return any(
        first is not None and (each.build != first.build or each.workflows != first.workflows) for each in workers
    )
