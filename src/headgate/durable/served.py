"""Served: which live workers have the code of a workflow, for processes of the same store that do not have it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from headgate.durable.declarations import Declarations, Limits
from headgate.durable.fleet import Member, list_members
from headgate.errors import UnknownWorkflowError
from headgate.store.port import Store

# How the names of workflows begin that are parts of the product.
OURS: Final = "headgate."


def servers(store: Store, workflow: str, now_ms: int) -> list[Member]:
    """Return the workers that have a workflow and seem to be alive."""
    return [each for each in list_members(store) if workflow in each.workflows and each.seems_alive(now_ms)]


def limits_elsewhere(store: Store, workflow: str, now_ms: int, loaded: Collection[str]) -> Limits:
    """Return what a workflow that is not among those `loaded` here is declared with by those who have it.

    Raises `UnknownWorkflowError` if no live worker has it.
    """
    if not servers(store, workflow, now_ms):
        known = ", ".join(sorted(name for name in loaded if not name.startswith(OURS))) or "none"
        raise UnknownWorkflowError(
            f"workflow {workflow!r}: not loaded here, where there is {known}, and no live worker has it; "
            "see --app, and 'headgate workflow ls'"
        )
    return Declarations(store).limits(workflow)
