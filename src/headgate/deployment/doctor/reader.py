"""Reads the facts of a deployment. Nothing is changed, and a call that AWS refuses does not stop the others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

import boto3
from botocore.config import Config

from headgate.clock import Clock
from headgate.deployment.doctor.calls import DoctorCalls
from headgate.deployment.doctor.facts import DeploymentFacts
from headgate.deployment.doctor.metrics import Metrics
from headgate.deployment.doctor.services import ServiceReader
from headgate.deployment.doctor.tables import TableReader
from headgate.store.model.schema import Table
from headgate.store.table_names import TableNames


def read_deployment(
    session: boto3.Session,
    clock: Clock,
    *,
    region: str,
    name: str,
    catalogue: Sequence[Table],
    names: TableNames,
    hours: int,
    endpoint_url: str | None = None,
) -> DeploymentFacts:
    """Return the facts of the deployment `name`. Raises `StoreIOError` if AWS cannot be reached."""
    calls = DoctorCalls()
    options: dict[str, Any] = {
        "region_name": region,
        "endpoint_url": endpoint_url,
        # Lists and metrics are throttled early, and a diagnosis has time.
        "config": Config(retries={"total_max_attempts": 3, "mode": "standard"}, connect_timeout=5, read_timeout=30),
    }
    with ExitStack() as opened:
        dynamodb = opened.enter_context(closing(session.client("dynamodb", **options)))
        cloudwatch = opened.enter_context(closing(session.client("cloudwatch", **options)))
        functions = opened.enter_context(closing(session.client("lambda", **options)))
        queues = opened.enter_context(closing(session.client("sqs", **options)))
        machines: Any = opened.enter_context(closing(session.client("stepfunctions", **options)))
        metrics = Metrics(cloudwatch, calls, clock, hours)
        services = ServiceReader(name, calls, metrics, functions=functions, queues=queues, machines=machines)
        tables = TableReader(dynamodb, cloudwatch, calls, metrics).read(catalogue, names)
        mappings = services.mappings()
        return DeploymentFacts(
            region=region,
            name=name,
            hours=hours,
            tables=tables,
            functions=services.functions(),
            mappings=mappings,
            queues=services.queues(mappings),
            machines=services.machines(),
            failures=tuple(calls.failures),
        )
