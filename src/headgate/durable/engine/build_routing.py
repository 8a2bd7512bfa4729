"""Build routing: decides which workers may take the next turn of an execution, by the build of their code.

All functions are pure. Every worker applies them to its own view of the fleet; the version of the execution's row
decides when two views differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from headgate.durable.model.records import Execution


class Candidate(Protocol):
    """A worker that may take turns."""

    @property
    def build(self) -> str: ...

    @property
    def workflows(self) -> tuple[str, ...]: ...


C = TypeVar("C", bound=Candidate)


def candidates(workers: Sequence[C], row: Execution) -> list[C]:
    """Return the workers, of these live ones, that may take the next turn of an execution.

    A worker whose build has failed at this turn, or does not fit the history, is left out while there are others.
    """
    serving = [worker for worker in workers if row.workflow in worker.workflows]
    return untried(serving, row) or serving


def untried(workers: Sequence[C], row: Execution) -> list[C]:
    """Return the workers that serve an execution with a build that has not failed at its next turn."""
    return [worker for worker in workers if row.workflow in worker.workflows and not has_failed(worker.build, row)]


def has_failed(build: str, row: Execution) -> bool:
    """Whether the code of a build has failed at the next turn of an execution, or does not fit its history."""
    return build in row.failed_builds or build in row.unfit_builds


def is_mixed(workers: Sequence[Candidate]) -> bool:
    """Whether some workers may take turns of an execution that others may not."""
    first = workers[0] if workers else None
    return any(
        first is not None and (each.build != first.build or each.workflows != first.workflows) for each in workers
    )
