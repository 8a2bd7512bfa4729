"""GraphQL types of dataset configuration: source, schema, contract, SLOs, tags and versions."""

from __future__ import annotations

import strawberry
from strawberry.scalars import JSON

from headgate.health.model.datasets import (
    ContractBinding,
    DatasetGate,
    OnSilence,
    OnUpstream,
    SchemaBinding,
    Slos,
    Source,
)
from headgate.health.model.enums import Tier
from headgate.serve.graphql.enums import Moment
from headgate.serve.http.views import shown


@strawberry.type(name="DatasetSource")
class DatasetSourceType:
    """Location of a dataset's data."""

    type: str
    topic: str | None
    cluster: str | None
    namespace: str | None
    name: str | None

    @classmethod
    def of(cls, source: Source | None) -> DatasetSourceType | None:
        return None if source is None else shown(cls, source)


@strawberry.type(name="SchemaBinding")
class SchemaBindingType:
    """Schema of a dataset."""

    registry: str
    schema_name: str
    schema_id: str | None
    version_policy: str
    compatibility: str

    @classmethod
    def of(cls, binding: SchemaBinding | None) -> SchemaBindingType | None:
        return None if binding is None else shown(cls, binding)


@strawberry.type(name="ContractBinding")
class ContractBindingType:
    """Contract of a dataset. Constraints are JSON Schema, by field."""

    contract_id: str | None
    required_fields: list[str]
    field_constraints: JSON

    @classmethod
    def of(cls, binding: ContractBinding | None) -> ContractBindingType | None:
        return None if binding is None else shown(cls, binding)


@strawberry.type(name="Slos")
class SlosType:
    """SLOs of a dataset. An SLO that is not set is null."""

    max_delay_seconds: float | None
    warning_delay_seconds: float | None
    freshness_window: str | None
    on_silence: OnSilence | None
    min_events_per_window: float | None
    max_deviation_percent: float | None
    baseline_window_days: int | None
    min_compliance_rate: float | None
    warning_compliance_rate: float | None

    @classmethod
    def of(cls, slos: Slos | None) -> SlosType | None:
        if slos is None:
            return None
        freshness = slos.freshness
        window = None if freshness is None else freshness.evaluation_window
        return shown(cls, freshness, slos.volume, slos.contract_compliance, freshness_window=window)


@strawberry.type(name="DatasetGate")
class DatasetGateType:
    """How the gate judges a dataset. A field that is null is as the server is set."""

    upstream: OnUpstream | None
    upstream_hops: int | None

    @classmethod
    def of(cls, gate: DatasetGate | None) -> DatasetGateType | None:
        return None if gate is None else shown(cls, gate)


@strawberry.type(name="Tag")
class TagType:
    """A tag of a dataset: name and value."""

    key: str
    value: str


@strawberry.type(name="DatasetVersion")
class DatasetVersionType:
    """A version of a dataset's configuration: number, time and author."""

    config_version: int
    tier: Tier
    owner_team: str
    updated_at: Moment
    updated_by: str
