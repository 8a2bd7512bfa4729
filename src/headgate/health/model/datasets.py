"""Dataset values: the config of a dataset with its owner, source, schema, contract and SLOs."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from headgate.health.model.enums import Tier

Rate = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0)]
Text = Annotated[str, Meta(max_length=1024)]
UNOWNED: Final = "unowned"


class DatasetStatus(enum.StrEnum):
    """The lifecycle of a dataset. DISCOVERED: an event or lineage names it, and it is not registered yet."""

    ACTIVE = "ACTIVE"
    DISCOVERED = "DISCOVERED"
    DEPRECATED = "DEPRECATED"
    DELETED = "DELETED"


class Source(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a dataset is stored."""

    type: Text = "OTHER"
    topic: Text | None = None
    cluster: Text | None = None
    namespace: Text | None = None
    name: Text | None = None


class SchemaBinding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The schema of a dataset."""

    registry: Text
    schema_name: Text
    schema_id: Text | None = None
    version_policy: Text = "LATEST"
    compatibility: Text = "BACKWARD"


class ContractBinding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The contract of a dataset. Field constraints are JSON Schema keywords."""

    contract_id: Text | None = None
    required_fields: tuple[Text, ...] = ()
    field_constraints: dict[str, dict[str, Any]] = {}


class OnSilence(enum.StrEnum):
    """What it means that no report on a freshness SLO came in time. CRITICAL: a WARNING first, then CRITICAL."""

    IGNORE = "ignore"
    WARN = "warn"
    CRITICAL = "critical"


class FreshnessSlo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The maximum delay of data. `on_silence` is the server's setting unless it is given."""

    max_delay_seconds: Positive
    warning_delay_seconds: Positive | None = None
    evaluation_window: Text = "TUMBLING_5MIN"
    on_silence: OnSilence | None = None


class VolumeSlo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The expected amount of data."""

    min_events_per_window: Annotated[int, Meta(ge=0)] | None = None
    max_deviation_percent: Annotated[float, Meta(ge=0)] | None = None
    baseline_window_days: Annotated[int, Meta(ge=1)] = 7


class ComplianceSlo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The share of data that must comply with the contract."""

    min_compliance_rate: Rate
    warning_compliance_rate: Rate | None = None


class Slos(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The service level objectives of a dataset."""

    freshness: FreshnessSlo | None = None
    volume: VolumeSlo | None = None
    contract_compliance: ComplianceSlo | None = None


class OnUpstream(enum.StrEnum):
    """What the gate does about a dataset that an unhealthy one feeds."""

    IGNORE = "ignore"
    WARN = "warn"
    HOLD = "hold"


# The distance in producers up to which the gate considers datasets upstream.
UPSTREAM_HOPS_MAX: Final = 20


class DatasetGate(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the gate judges a dataset. What is not given is as the server is set."""

    upstream: OnUpstream | None = None
    upstream_hops: Annotated[int, Meta(ge=1, le=UPSTREAM_HOPS_MAX)] | None = None


class PiiPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Detection of personal data, and the action on it."""

    scan_enabled: bool = False
    fields_to_scan: tuple[Text, ...] = ()
    action_on_detection: Text = "WARN"


class DatasetSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The config of a dataset: all fields that users edit."""

    display_name: Text = ""
    description: Text = ""
    tier: Tier = Tier.TIER_3
    owner_team: Text = UNOWNED
    owner_email: Text | None = None
    oncall_rotation: Text | None = None
    source: Source | None = None
    schema_binding: SchemaBinding | None = None
    contract_binding: ContractBinding | None = None
    slos: Slos | None = None
    pii_policy: PiiPolicy | None = None
    gate: DatasetGate | None = None
    retention_days: Annotated[int, Meta(ge=1, le=36_500)] = 90
    tags: dict[str, Text] = {}


class Dataset(DatasetSpec, frozen=True, kw_only=True, omit_defaults=True):
    """A registered dataset: its config with version, status and timestamps."""

    dataset_urn: str
    config_version: int
    status: DatasetStatus = DatasetStatus.ACTIVE
    created_at: str = ""
    updated_at: str = ""
    updated_by: str = ""
    approval_ticket: str | None = None
    archived_at: str | None = None
    # The dataset that this one was merged into.
    merged_into: str | None = None
    # The tool that each field comes from; a field without one was set by a person. Tags are named `tags.KEY`.
    field_sources: dict[str, str] = {}
    # Set on answers only. `is_fallback`: the dataset is unknown, and this is the lenient default config.
    stale: bool = False
    age_seconds: float = 0.0
    is_fallback: bool = False


class Metadata(Struct, frozen=True, kw_only=True):
    """What a tool knows of a dataset. Empty fields say nothing."""

    source: str
    description: str = ""
    owner_team: str = ""
    owner_email: str = ""
    tags: dict[str, str] = {}


class DatasetProfile(Struct, frozen=True):
    """The registry fields that a signal carries, so that a listing of signals needs no lookup of datasets.

    `dataset_urn` is the registered URN, if it differs from the requested one. `freshness` is the SLO whose reports
    are expected in time. `gate` is the dataset's own policy at the gate.
    """

    tier: Tier
    owner_team: str
    dataset_urn: str | None = None
    freshness: FreshnessSlo | None = None
    gate: DatasetGate | None = None
