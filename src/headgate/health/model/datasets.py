"""What is known of a dataset: who owns it, where it comes from, what is promised of it."""

from __future__ import annotations

import enum
from typing import Annotated, Any

from msgspec import Meta, Struct

from headgate.health.model.enums import Tier

Rate = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0)]
Text = Annotated[str, Meta(max_length=1024)]


class DatasetStatus(enum.StrEnum):
    """Whether a dataset is in use. DISCOVERED: someone spoke of it, and nobody has registered it yet."""

    ACTIVE = "ACTIVE"
    DISCOVERED = "DISCOVERED"
    DEPRECATED = "DEPRECATED"
    DELETED = "DELETED"


class Source(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a dataset's data lies."""

    type: Text = "OTHER"
    topic: Text | None = None
    cluster: Text | None = None
    namespace: Text | None = None
    name: Text | None = None


class SchemaBinding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which schema a dataset follows."""

    registry: Text
    schema_name: Text
    schema_id: Text | None = None
    version_policy: Text = "LATEST"
    compatibility: Text = "BACKWARD"


class ContractBinding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which contract a dataset keeps. Constraints are those of JSON Schema, field by field."""

    contract_id: Text | None = None
    required_fields: tuple[Text, ...] = ()
    field_constraints: dict[str, dict[str, Any]] = {}


class FreshnessSlo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How late data may be."""

    max_delay_seconds: Positive
    warning_delay_seconds: Positive | None = None
    evaluation_window: Text = "TUMBLING_5MIN"


class VolumeSlo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much data there must be."""

    min_events_per_window: Annotated[int, Meta(ge=0)] | None = None
    max_deviation_percent: Annotated[float, Meta(ge=0)] | None = None
    baseline_window_days: Annotated[int, Meta(ge=1)] = 7


class ComplianceSlo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much of the data must keep the contract."""

    min_compliance_rate: Rate
    warning_compliance_rate: Rate | None = None


class Slos(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is promised of a dataset."""

    freshness: FreshnessSlo | None = None
    volume: VolumeSlo | None = None
    contract_compliance: ComplianceSlo | None = None


class PiiPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is to happen if personal data is found."""

    scan_enabled: bool = False
    fields_to_scan: tuple[Text, ...] = ()
    action_on_detection: Text = "WARN"


class DatasetSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What people say of a dataset: all of it can be changed by them."""

    display_name: Text = ""
    description: Text = ""
    tier: Tier = Tier.TIER_3
    owner_team: Text = "unowned"
    owner_email: Text | None = None
    oncall_rotation: Text | None = None
    source: Source | None = None
    schema_binding: SchemaBinding | None = None
    contract_binding: ContractBinding | None = None
    slos: Slos | None = None
    pii_policy: PiiPolicy | None = None
    retention_days: Annotated[int, Meta(ge=1, le=36_500)] = 90
    tags: dict[str, Text] = {}


class Dataset(DatasetSpec, frozen=True, kw_only=True, omit_defaults=True):
    """A dataset as it is registered: what people say of it, and since when."""

    dataset_urn: str
    config_version: int
    status: DatasetStatus = DatasetStatus.ACTIVE
    created_at: str = ""
    updated_at: str = ""
    updated_by: str = ""
    approval_ticket: str | None = None
    archived_at: str | None = None
    # Set on answers alone. `is_fallback`: nothing is known of it, and these are lenient defaults.
    stale: bool = False
    age_seconds: float = 0.0
    is_fallback: bool = False


class DatasetProfile(Struct, frozen=True):
    """What the registry says of a dataset: signals carry it, so that a board needs no second look-up.

    `dataset_urn` is the name it is registered under, where that is not the one that was asked for.
    """

    tier: Tier
    owner_team: str
    dataset_urn: str | None = None
