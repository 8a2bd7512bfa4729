"""Local tasks: decides before a machine runs which of its Tasks this installation can run, and why not.

A Task runs here if the resource map has an entry for it, if it calls a function, machine or fan-out, if a rule of
tasks.aws allows its AWS call, or if Headgate itself implements the action: DynamoDB on the tables of tasks.tables; SNS,
SQS and EventBridge as events of the bus.
"""

from __future__ import annotations

from collections.abc import Mapping

from headgate.asl.expressions.scope import Json
from headgate.asl.tasks.actions import ACTIONS, INVOKE, normalized_call
from headgate.asl.tasks.integrations import Integration, find_integration, unknown_integration
from headgate.asl.tasks.resource_map import ResourceMap
from headgate.asl.tasks.resources import Callee, TaskTarget, WaitMode, target_of
from headgate.asl.tasks.task_access import TaskAccess
from headgate.asl.tasks.user_tables import DeclaredTables


class LocalTasks:
    """What Tasks can use here: the resource map, the allow-list and the tables of users."""

    def __init__(
        self,
        resources: ResourceMap | None = None,
        access: TaskAccess | None = None,
        tables: DeclaredTables | None = None,
    ) -> None:
        """Without `tables`, which tables are declared is not known, and none is refused for that."""
        self.resources = resources or ResourceMap()
        self.access = access or TaskAccess()
        self._tables = tables

    def refusal(self, resource: str, constants: Mapping[str, Json], *, is_complete: bool = False) -> str | None:
        """Return why a Task cannot run here, and the remedy; None if it can, or if that depends on its input.

        `constants` are the parameters known from the definition; `is_complete`: there are no others. Raises
        `ValueError` for a text that is no resource.
        """
        if self.resources.may_have(resource, constants):
            return None
        target = target_of(resource)
        if target.callee is not Callee.SERVICE or (target.name, target.action) == INVOKE:
            return None
        integration = find_integration(target.name, target.action)
        if integration is not None and self._may_call(target, integration, constants, is_complete=is_complete):
            return None
        if _is_implemented(target):
            return self._table_refusal(target, constants)
        if integration is None:
            return unknown_integration(target.name, target.action)
        if not integration.is_supported:
            return f"{integration.name}: only AWS can run it; map it in a resource map (--resources FILE)"
        return self.access.refusal(integration, constants)

    def _may_call(
        self, target: TaskTarget, integration: Integration, constants: Mapping[str, Json], *, is_complete: bool
    ) -> bool:
        return target.wait in integration.waits and self.access.may_allow(
            integration, constants, is_complete=is_complete
        )

    def _table_refusal(self, target: TaskTarget, constants: Mapping[str, Json]) -> str | None:
        service, action, _ = normalized_call(target.name, target.action)
        table = constants.get("TableName", constants.get("tableName"))
        if service != "dynamodb" or self._tables is None or not isinstance(table, str):
            return None
        if self._tables.is_own(table):
            return f"table {table[:120]}: it belongs to Headgate itself, and no Task reads or writes it"
        if self._tables.find(table) is not None:
            return None
        declared = ", ".join(self._tables.names) or "none"
        return (
            f"table {table[:120]}: tasks.tables does not declare it ({declared}), and no rule of tasks.aws allows "
            f'dynamodb:{action} on it; declare it, add "dynamodb:{action}:{table[:120]}" to tasks.aws, or map the '
            "resource in a resource map (--resources FILE)"
        )


def _is_implemented(target: TaskTarget) -> bool:
    """Whether Headgate itself implements a service action."""
    service, action, _ = normalized_call(target.name, target.action)
    return action in ACTIONS.get(service, ()) and target.wait in (WaitMode.ANSWER, WaitMode.TOKEN)
