"""The routes of state machines under `/api/v1`: machines, their executions, and the Tasks that wait for a token."""

from __future__ import annotations

from typing import Final

from litestar.types import ControllerRouterHandler

from headgate.auth.roles import Permission
from headgate.serve.asl_executions import machine_execution_operations
from headgate.serve.asl_machines import machine_operations
from headgate.serve.operations import Part, operation_routes
from headgate.serve.pool import WorkPool
from headgate.wiring import AppService

_PART: Final = Part(Permission.EXECUTION_READ, Permission.EXECUTION_WRITE)


def machine_routes(service: AppService, pool: WorkPool) -> list[ControllerRouterHandler]:
    """Return the routes of machines."""
    executions = service.asl.executions
    operations = [*machine_operations(executions), *machine_execution_operations(executions, service.client)]
    return operation_routes(operations, pool, _PART, namespace="machines.")
