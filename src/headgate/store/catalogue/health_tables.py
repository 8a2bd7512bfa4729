"""Health tables of the catalogue: signals, incidents, datasets, resolution rules, evidence, lineage and audit."""

from __future__ import annotations

from typing import Final

from headgate.store.model.schema import Billing, Classification, Entity, Index, KeyAttribute, Table

_PK: Final = KeyAttribute("PK")
_SK: Final = KeyAttribute("SK")
_GSI1: Final = (KeyAttribute("GSI1PK"), KeyAttribute("GSI1SK"))
_GSI2: Final = (KeyAttribute("GSI2PK"), KeyAttribute("GSI2SK"))

BREACH_SHARDS: Final = 8

SIGNAL: Final = Entity(
    "signal state",
    "{dataset_urn}",
    "{signal_type}",
    {"breach_pk": "BREACH#{state}#{tier}#{shard}", "breach_sk": "{state_changed_at}#{dataset_urn}#{signal_type}"},
)
SIGNAL_STATE: Final = Table(
    "observability-signal-state",
    "The current state of each health signal of each dataset",
    _PK,
    _SK,
    # Sparse and sharded: only signals in breach are in it.
    (Index("breach-index", KeyAttribute("breach_pk"), KeyAttribute("breach_sk")),),
    ttl_attribute="ttl",
    stream=True,
    entities=(SIGNAL,),
    refreshed=True,
)
REPORTED_RESULT: Final = Entity("reported result", "{dataset_urn}#RESULTS", "{kind}#{test_id}")
SIGNAL_HISTORY: Final = Table(
    "observability-signal-history",
    "Transitions of health signals by month, hourly volumes, and the results of tests and jobs",
    _PK,
    _SK,
    ttl_attribute="ttl",
    entities=(
        Entity("signal transition", "{dataset_urn}#{signal_type}#{yyyymm}", "{window_end}#{version:010d}"),
        Entity("volume of an hour", "{dataset_urn}#VOLUME#HOURS", "{hour}"),
        Entity("volume of a late window", "{dataset_urn}#VOLUME#HOURS", "{hour}#{ended_ms:07d}"),
        REPORTED_RESULT,
    ),
)
INCIDENT: Final = Entity(
    "incident",
    "INC#{incident_id}",
    "META",
    {
        "GSI1PK": "DS#{dataset_urn}",
        "GSI1SK": "{created_at}",
        "GSI2PK": "STATUS#{status}",
        "GSI2SK": "{severity}#{created_at}",
        "GSI3PK": "TEAM#{owner_team}#{status}",
        "GSI3SK": "{created_at}",
        "GSI4PK": "SIG#{failure_signature}",
        "GSI4SK": "{created_at}",
    },
)
INCIDENT_INDEX: Final = Table(
    "observability-incident-index",
    "Incidents, open and resolved",
    _PK,
    _SK,
    (
        Index("dataset-time-index", *_GSI1),
        Index("status-severity-index", *_GSI2),
        Index("team-status-index", KeyAttribute("GSI3PK"), KeyAttribute("GSI3SK")),
        Index("signature-index", KeyAttribute("GSI4PK"), KeyAttribute("GSI4SK")),
    ),
    ttl_attribute="ttl",
    stream=True,
    entities=(INCIDENT,),
)
DATASET_CONFIG: Final = Entity(
    "dataset (latest)", "{dataset_urn}", "CONFIG#LATEST", {"latest_tier": "{tier}", "latest_owner_team": "{owner_team}"}
)
DATASET_CONFIG_VERSION: Final = Entity("dataset (archived version)", "{dataset_urn}", "CONFIG#v{version:06d}")
DATASET_ALIAS: Final = Entity("registered versions of a dataset's name", "{dataset_urn}", "ALIAS")
DATASET_NAME: Final = Entity("external name", "NAME#{namespace}", "{name}")
DATASET_NAMED: Final = Entity("external name (by dataset)", "{dataset_urn}", "NAME#{digest}")
DATASET_FIELDS: Final = Entity("fields of a dataset", "{dataset_urn}", "FIELDS")
DATASET_CHANGE: Final = Entity("latest change of a dataset", "FEED#{shard}", "{sequence:012d}")
DATASET_FEED_END: Final = Entity("end of the change feed", "FEED#{shard}", "END")
DATASET_REGISTRY: Final = Table(
    "observability-dataset-registry",
    "Registered datasets with every version of their configuration",
    _PK,
    _SK,
    # Only CONFIG#LATEST has these attributes, so a listing shows each dataset once.
    (
        Index("tier-index", KeyAttribute("latest_tier"), _PK),
        Index("owner-index", KeyAttribute("latest_owner_team"), _PK),
    ),
    stream=True,
    billing=Billing.PROVISIONED,
    classification=Classification.CONFIDENTIAL,
    entities=(
        DATASET_CONFIG, DATASET_CONFIG_VERSION, DATASET_ALIAS, DATASET_NAME, DATASET_NAMED, DATASET_CHANGE,
        DATASET_FEED_END, DATASET_FIELDS,
    ),
)  # fmt: skip
RESOLUTION_RULE: Final = Entity("resolution rule", "TOPIC#{topic_pattern}", "RULE#{name}", {"enabled_pk": "ENABLED"})
RULE_DATASET: Final = Entity("dataset of a conditional rule", "TOPIC#{topic_pattern}", "REF#{name}#{number:03d}")
RULE_SET: Final = Entity("rule set", "RULES", "META")
DATASET_RESOLUTION: Final = Table(
    "observability-dataset-resolution",
    "Rules that resolve the dataset of a message",
    _PK,
    _SK,
    (
        Index("dataset-index", KeyAttribute("dataset_urn"), _SK),
        # Deliberately one partition: about 5,000 rules are read together into the compiled matcher.
        Index("enabled-index", KeyAttribute("enabled_pk"), _PK),
    ),
    stream=True,
    billing=Billing.PROVISIONED,
    entities=(RESOLUTION_RULE, RULE_DATASET, RULE_SET),
)
EVIDENCE: Final = Entity("evidence", "{evidence_id}")
EVIDENCE_CACHE: Final = Table(
    "observability-evidence-cache",
    "Recent evidence of passed and failed checks",
    KeyAttribute("evidence_id"),
    None,
    (Index("dataset-time-index", KeyAttribute("dataset_urn"), KeyAttribute("created_at")),),
    ttl_attribute="ttl",
    entities=(EVIDENCE,),
)
DATASET_WRITER: Final = Entity("dataset writer", "{dataset_urn}", "producer#{producer_id}")
DATASET_READER: Final = Entity("dataset reader", "{dataset_urn}", "consumer#{consumer_id}")
COLUMN_WRITER: Final = Entity("column writer", "urn:col:{dataset_urn}:{column}", "producer#{producer_id}")
COLUMN_READER: Final = Entity("column reader", "urn:col:{dataset_urn}:{column}", "consumer#{consumer_id}")


def _lineage(name: str, purpose: str, entity: Entity, by: str) -> Table:
    reverse = Index(f"{by}-index", KeyAttribute(f"{by}_id"), _PK)
    return Table(f"observability-{name}", purpose, _PK, _SK, (reverse,), ttl_attribute="ttl", entities=(entity,))


DATASET_WRITERS: Final = _lineage("dataset-writers", "Producers of a dataset", DATASET_WRITER, "producer")
DATASET_READERS: Final = _lineage("dataset-readers", "Consumers of a dataset", DATASET_READER, "consumer")
COLUMN_WRITERS: Final = _lineage("column-writers", "Producers of a column", COLUMN_WRITER, "producer")
COLUMN_READERS: Final = _lineage("column-readers", "Consumers of a column", COLUMN_READER, "consumer")
AUDIT_ENTRY: Final = Entity("audit entry", "AUDIT#{chain}", "{sequence:012d}")
AUDIT_HEAD: Final = Entity("audit head", "AUDIT#{chain}", "HEAD")
AUDIT_INTENT: Final = Entity("audit intent", "INTENT#{chain}", "{id}")
AUDIT_ANCHOR: Final = Entity("audit anchor", "AUDIT#{chain}", "ANCHOR")
AUDIT: Final = Table(
    "observability-audit",
    "Audit log of changes, as a hash chain",
    _PK,
    _SK,
    (Index("entity-index", KeyAttribute("entity"), KeyAttribute("at")),),
    classification=Classification.CONFIDENTIAL,
    entities=(AUDIT_ENTRY, AUDIT_HEAD, AUDIT_ANCHOR, AUDIT_INTENT),
)
REGION_PULSE: Final = Entity("region pulse", "PULSE#{region}")
HEALTH_CHECK: Final = Table(
    "observability-health-check",
    "One row that the deep health check writes and reads back, and the pulses by which replication is measured",
    _PK,
    entities=(Entity("health probe", "health"), REGION_PULSE),
)
