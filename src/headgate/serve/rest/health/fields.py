"""Fields API: the observed schema of a dataset, the origins of its columns, and the latest changes."""

from __future__ import annotations

from msgspec import Struct

from headgate.auth import rules
from headgate.auth.roles import Permission
from headgate.health.model.dataset_fields import DatasetField, SchemaChange
from headgate.health.service import HealthService
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.rest.health.models import complete


class FieldList(Struct, frozen=True, kw_only=True):
    """Fields of a dataset as last observed, and the latest changes, newest first."""

    dataset_urn: str
    fields: list[DatasetField]
    changes: list[SchemaChange]
    # The tool and time of the last observation; empty if no tool reported fields.
    source: str
    at: str


def field_operations(health: HealthService) -> list[Operation]:
    """Return the operations on fields."""

    def ls(call: Call[None, NoQuery]) -> Answer:
        found = health.registry.fields.get(call.path["dataset_urn"])
        listed = FieldList(
            dataset_urn=found.dataset_urn,
            fields=list(found.fields),
            changes=list(found.changes),
            source=found.source,
            at=found.at,
        )
        return Answer(complete(listed))

    return [
        Operation(
            "GET",
            "/datasets/{dataset_urn}/fields",
            "List fields of a dataset",
            ls,
            {200: FieldList},
            rule=rules.named(Permission.DATASET_READ, "path.dataset_urn"),
        )
    ]
