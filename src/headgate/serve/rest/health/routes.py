"""Health routes: assembles the health API."""

from __future__ import annotations

from typing import Final

from litestar.types import ControllerRouterHandler

from headgate.auth.api_keys import ApiKeys
from headgate.auth.roles import Permission
from headgate.checks.service import CheckService
from headgate.health.service import HealthService
from headgate.serve.http.idempotency import RETENTION_SECONDS, IdempotencyStore
from headgate.serve.http.operations import (
    AccessPolicy,
    Auditing,
    operation_routes,
)
from headgate.serve.rest.health.audit import audit_operations
from headgate.serve.rest.health.baselines import baseline_operations
from headgate.serve.rest.health.checks import check_operations
from headgate.serve.rest.health.datasets import dataset_operations
from headgate.serve.rest.health.evidence import evidence_operations
from headgate.serve.rest.health.fields import field_operations
from headgate.serve.rest.health.flags import flag_operations
from headgate.serve.rest.health.gate import gate_operations
from headgate.serve.rest.health.incidents import incident_operations
from headgate.serve.rest.health.jobs import job_operations
from headgate.serve.rest.health.lineage import lineage_operations
from headgate.serve.rest.health.merges import merge_operations
from headgate.serve.rest.health.resolution import resolution_operations
from headgate.serve.rest.health.results import result_operations
from headgate.serve.rest.health.schemas import schema_operations
from headgate.serve.rest.health.signals import signal_operations
from headgate.serve.rest.health.topic_producers import topic_producer_operations
from headgate.serve.rest.parameters import ColumnUrn, DatasetUrn, ProducerId, SignalType, SpecId, TopicPattern
from headgate.serve.runtime.thread_pool import WorkPool

# Every operation has its own rule; one without would require administration.
_POLICY: Final = AccessPolicy(Permission.KEY_MANAGE, Permission.KEY_MANAGE)


def health_routes(
    health: HealthService,
    keys: ApiKeys,
    pool: WorkPool,
    *,
    checks: CheckService | None = None,
    auditing: Auditing | None = None,
    idempotency_seconds: int = RETENTION_SECONDS,
) -> list[ControllerRouterHandler]:
    """Return the routes of health. They are one set: several nouns share the paths below a dataset.

    Responses by Idempotency-Key are kept for `idempotency_seconds`.
    """
    operations = [
        *dataset_operations(health),
        *result_operations(health),
        *field_operations(health),
        *merge_operations(health),
        *job_operations(health),
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
        *([] if checks is None else check_operations(checks)),
    ]
    return operation_routes(
        operations,
        pool,
        _POLICY,
        namespace="health.",
        auditing=auditing,
        idempotency=IdempotencyStore(health.store, health.clock, kept_seconds=idempotency_seconds),
        resolve_dataset=health.registered,
        path_types={
            "dataset_urn": DatasetUrn,
            "column_urn": ColumnUrn,
            "spec_id": SpecId,
            "topic_pattern": TopicPattern,
            "signal_type": SignalType,
            "producer_id": ProducerId,
            "job_id": ProducerId,
        },
    )
