"""Patches: which open executions carry the mark of a patch, and which do not, for the retirement of its code.

A patch is known by its marks, and by the code of live workers: executions that passed it before the change, which still
need the old branch, have no mark.
"""

from __future__ import annotations

from msgspec import Struct

from headgate.durable.client.listing import open_executions
from headgate.durable.engine.function_apps import serving_members
from headgate.durable.model.records import Execution
from headgate.store.port import Store


class PatchUse(Struct):
    """The open executions of a workflow, counted by their mark of one patch.

    An execution without the mark may still need the old branch. One with the mark of `patched` needs `patched` or
    `deprecate_patch` in the code. One with a deprecated mark needs neither.
    """

    workflow: str
    patch: str
    with_mark: int = 0
    with_deprecated_mark: int = 0
    without_mark: int = 0
    # The longest running execution of each kind, which an operator can wait for or end.
    oldest_with_mark: str | None = None
    oldest_without_mark: str | None = None


def open_patches(store: Store, now_ms: int) -> list[PatchUse]:
    """Return every patch in the code of a live worker or marked by an open execution, by workflow and patch.

    Reads all open executions.
    """
    rows = sorted(open_executions(store), key=lambda row: row.started_at)
    uses: dict[tuple[str, str], PatchUse] = {}
    for member in serving_members(store, now_ms):
        for workflow, patches in member.patches.items():
            uses |= {(workflow, patch): PatchUse(workflow, patch) for patch in patches}
    for row in rows:
        for patch in row.patches:
            uses.setdefault((row.workflow, patch), PatchUse(row.workflow, patch))
    for row in rows:
        for use in uses.values():
            if use.workflow == row.workflow:
                _count(use, row)
    return [uses[key] for key in sorted(uses)]


def _count(use: PatchUse, row: Execution) -> None:
    is_deprecated = row.patches.get(use.patch)
    if is_deprecated is None:
        use.without_mark += 1
        use.oldest_without_mark = use.oldest_without_mark or row.execution_id
    elif is_deprecated:
        use.with_deprecated_mark += 1
    else:
        use.with_mark += 1
        use.oldest_with_mark = use.oldest_with_mark or row.execution_id
