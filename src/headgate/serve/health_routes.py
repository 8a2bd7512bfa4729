"""The routes of health under `/api/v1`: datasets, signals, incidents, evidence, lineage, the gate, the audit."""

from __future__ import annotations

from typing import Final

from litestar.types import ControllerRouterHandler

from headgate.auth.api_keys import ApiKeys
from headgate.auth.roles import Permission
from headgate.health.service import HealthService
from headgate.serve.answered import AnsweredBefore
from headgate.serve.audits import audit_operations
from headgate.serve.baselines import baseline_operations
from headgate.serve.datasets import dataset_operations
from headgate.serve.evidence import evidence_operations
from headgate.serve.flags import flag_operations
from headgate.serve.gates import gate_operations
from headgate.serve.incidents import incident_operations
from headgate.serve.lineage import lineage_operations
from headgate.serve.operations import Part, operation_routes
from headgate.serve.pool import WorkPool
from headgate.serve.resolutions import resolution_operations
from headgate.serve.schemas import schema_operations
from headgate.serve.signals import signal_operations
from headgate.serve.topic_producers import topic_producer_operations

# Every operation here says by itself who may ask it; what did not would be for those who may do everything.
_PART: Final = Part(Permission.KEY_MANAGE, Permission.KEY_MANAGE)


def health_routes(health: HealthService, keys: ApiKeys, pool: WorkPool) -> list[ControllerRouterHandler]:
    """Return the routes of health. They are one set: several nouns share the paths below a dataset."""
    operations = [
        *dataset_operations(health),
        *resolution_operations(health),
        *topic_producer_operations(health),
        *signal_operations(health),
        *baseline_operations(health),
        *incident_operations(health),
        *evidence_operations(health),
        *lineage_operations(health),
        *gate_operations(health),
        *flag_operations(health),
        *audit_operations(health, keys),
        *schema_operations(),
    ]
    return operation_routes(
        operations,
        pool,
        _PART,
        namespace="health.",
        answered=AnsweredBefore(health.store, health.clock),
        registered=health.registered,
    )
