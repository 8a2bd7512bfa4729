"""The catalogue: every table, key, index, expiry and stream of the product, once.

SQLite's schema, DynamoDB's CreateTable, the Terraform input, health checks and docs/reference/tables.md
derive from it. Names and keys that users' own queries rely on are kept to the letter (ADR-0005).
"""

from __future__ import annotations

from typing import Final

from headgate.errors import InvalidItemError
from headgate.store.schema import Billing, Classification, Entity, Index, KeyAttribute, KeyKind, Table

_PK: Final = KeyAttribute("PK")
_SK: Final = KeyAttribute("SK")
_GSI1: Final = (KeyAttribute("GSI1PK"), KeyAttribute("GSI1SK"))
_GSI2: Final = (KeyAttribute("GSI2PK"), KeyAttribute("GSI2SK"))
# What must happen by a time: the partition names the kind of work (and a shard), the sort key is when.
_DUE: Final = Index("due-index", KeyAttribute("due_pk"), KeyAttribute("due_at_ms", KeyKind.NUMBER))


def _pipeline(name: str, sort: str, **index_keys: str) -> Entity:
    return Entity(name, "PIPELINE#{pipeline_id}", sort, index_keys)


PIPELINE_CONFIG: Final = _pipeline("pipeline config", "CONFIG", GSI1PK="PIPELINES", GSI1SK="{pipeline_id}")
TRAIT_RESULT: Final = _pipeline("trait result", "TRAIT#{trait_type}")
RUN_STATE: Final = Entity("run state", "RUN#{run_id}", "STATE")
RUN_COPY: Final = _pipeline("run (list copy)", "RUN#{run_id}")
RUN_LOG: Final = _pipeline("run log", "RUNLOG#{date}#{schedule_id}")
PIPELINE_EVENT: Final = _pipeline("event", "EVENT#{timestamp}#{event_id}")
LOCK: Final = Entity("lock", "LOCK#{lock_key}", "LOCK")
RERUN_STATE: Final = Entity("rerun", "RERUN#{rerun_id}", "STATE", {"GSI1PK": "RERUNS", "GSI1SK": "{rerun_id}"})
RERUN_COPY: Final = _pipeline("rerun (list copy)", "RERUN#{rerun_id}")
READINESS: Final = _pipeline("readiness cache", "READINESS")
MARKER: Final = Entity("marker", "MARKER#{pipeline_id}", "{date}#{schedule_id}")
SENSOR: Final = _pipeline("sensor", "SENSOR#{sensor_key}")
EVALUATION: Final = _pipeline("evaluation", "EVAL#{date}#{schedule_id}#{evaluation_id}")
EXPECTATION: Final = _pipeline(
    "expectation", "EXPECT#{schedule_id}#{date}#{kind}", GSI1PK="EXPECT#{verdict}", GSI1SK="{due_at}#{pipeline_id}"
)
JOB: Final = _pipeline("job log", "JOB#{schedule_id}#{date}#{at_ms:013d}")
RERUN_REQUEST: Final = _pipeline("rerun request", "RERUN_REQUEST#{schedule_id}#{date}")
DRY_RUN: Final = _pipeline("dry run", "DRY_RUN#{schedule_id}#{date}")
OVERRIDE: Final = _pipeline(
    "override", "OVERRIDE#{override_id}", GSI1PK="OVERRIDES", GSI1SK="{expires_at}#{override_id}"
)
BACKFILL_STATE: Final = Entity(
    "backfill", "BACKFILL#{backfill_id}", "STATE", {"GSI1PK": "BACKFILLS", "GSI1SK": "{backfill_id}"}
)
BACKFILL_COPY: Final = _pipeline("backfill (list copy)", "BACKFILL#{backfill_id}")
DEPENDENCY: Final = Entity("dependency", "DEP#{upstream_id}", "DEP#{downstream_id}")
QUARANTINE: Final = _pipeline("quarantine", "QUARANTINE#{date}#{hour}")
PIPELINE_CONTROL: Final = Entity(
    "pipeline control", "CONTROL#{pipeline_id}", "STATUS", {"GSI1PK": "CONTROLS", "GSI1SK": "{pipeline_id}"}
)
LATE_DATA: Final = _pipeline("late data", "LATE#{date}#{schedule_id}#{at_ms:013d}")
REPLAY: Final = _pipeline("replay", "REPLAY#{date}#{schedule_id}")
ALERT: Final = _pipeline("alert", "ALERT#{at_ms:013d}#{alert_id}", GSI1PK="ALERTS", GSI1SK="{at_ms:013d}#{alert_id}")
THREAD: Final = _pipeline("alert thread", "THREAD#{schedule_id}#{date}")

PIPELINES: Final = Table(
    "headgate-pipelines",
    "Pipelines: definitions, sensors, evaluations, runs, locks, expectations in one table",
    _PK,
    _SK,
    (Index("GSI1", *_GSI1),),
    ttl_attribute="ttl",
    stream=True,
    entities=(
        PIPELINE_CONFIG, TRAIT_RESULT, RUN_STATE, RUN_COPY, RUN_LOG, PIPELINE_EVENT, LOCK, RERUN_STATE, RERUN_COPY,
        READINESS, MARKER, SENSOR, EVALUATION, EXPECTATION, JOB, RERUN_REQUEST, DRY_RUN, OVERRIDE, BACKFILL_STATE,
        BACKFILL_COPY, DEPENDENCY, QUARANTINE, PIPELINE_CONTROL, LATE_DATA, REPLAY, ALERT, THREAD,
    ),
)  # fmt: skip

# Health.

BREACH_SHARDS: Final = 8

SIGNAL: Final = Entity(
    "signal state",
    "{dataset_urn}",
    "{signal_type}",
    {"breach_pk": "BREACH#{state}#{tier}#{shard}", "breach_sk": "{state_changed_at}#{dataset_urn}#{signal_type}"},
)
SIGNAL_STATE: Final = Table(
    "observability-signal-state",
    "The present state of each health signal of each dataset",
    _PK,
    _SK,
    # Sparse and sharded: only signals in breach carry the attributes, so healthy ones cost it nothing.
    (Index("breach-index", KeyAttribute("breach_pk"), KeyAttribute("breach_sk")),),
    ttl_attribute="ttl",
    stream=True,
    entities=(SIGNAL,),
)
SIGNAL_HISTORY: Final = Table(
    "observability-signal-history",
    "Every transition of a health signal, by month",
    _PK,
    _SK,
    ttl_attribute="ttl",
    entities=(Entity("signal transition", "{dataset_urn}#{signal_type}#{yyyymm}", "{window_end}#{version:010d}"),),
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
DATASET_REGISTRY: Final = Table(
    "observability-dataset-registry",
    "Registered datasets with every version of their configuration",
    _PK,
    _SK,
    # Keyed by attributes that only CONFIG#LATEST carries, so that a listing shows each dataset once.
    (
        Index("tier-index", KeyAttribute("latest_tier"), _PK),
        Index("owner-index", KeyAttribute("latest_owner_team"), _PK),
    ),
    stream=True,
    billing=Billing.PROVISIONED,
    classification=Classification.CONFIDENTIAL,
    entities=(DATASET_CONFIG, DATASET_CONFIG_VERSION),
)
RESOLUTION_RULE: Final = Entity("resolution rule", "TOPIC#{topic_pattern}", "RULE#{name}", {"enabled_pk": "ENABLED"})
DATASET_RESOLUTION: Final = Table(
    "observability-dataset-resolution",
    "Rules that find the dataset a message belongs to",
    _PK,
    _SK,
    (
        Index("dataset-index", KeyAttribute("dataset_urn"), _SK),
        # One partition on purpose: some 5,000 rules are read whole into the compiled matcher.
        Index("enabled-index", KeyAttribute("enabled_pk"), _PK),
    ),
    stream=True,
    billing=Billing.PROVISIONED,
    entities=(RESOLUTION_RULE,),
)
EVIDENCE: Final = Entity("evidence", "{evidence_id}")
EVIDENCE_CACHE: Final = Table(
    "observability-evidence-cache",
    "Recent proof of passed and failed checks",
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


DATASET_WRITERS: Final = _lineage("dataset-writers", "Who writes a dataset", DATASET_WRITER, "producer")
DATASET_READERS: Final = _lineage("dataset-readers", "Who reads a dataset", DATASET_READER, "consumer")
COLUMN_WRITERS: Final = _lineage("column-writers", "Who writes a column", COLUMN_WRITER, "producer")
COLUMN_READERS: Final = _lineage("column-readers", "Who reads a column", COLUMN_READER, "consumer")
OUTBOX_EVENT: Final = Entity("outbox event", "OUTBOX#{shard}", "{event_id}")
OUTBOX: Final = Table(
    "observability-outbox",
    "Events committed with the change that caused them, waiting to be published",
    _PK,
    _SK,
    entities=(OUTBOX_EVENT,),
)
AUDIT_ENTRY: Final = Entity("audit entry", "AUDIT#{chain}", "{sequence:012d}")
AUDIT: Final = Table(
    "observability-audit",
    "Who changed what and why, as a hash chain",
    _PK,
    _SK,
    (Index("entity-index", KeyAttribute("entity"), KeyAttribute("at")),),
    classification=Classification.CONFIDENTIAL,
    entities=(AUDIT_ENTRY,),
)
HEALTH_CHECK: Final = Table(
    "observability-health-check",
    "One row that the deep health check writes and reads back",
    _PK,
    entities=(Entity("health probe", "health"),),
)

# Fan-out. Queries that users make on this table with AWS's own tools must go on working.

FANOUT_RUN: Final = Entity("fan-out", "{run_id}", "RUN", {"GSI1_PK": "{group}", "GSI1_SK": "{created_at}"})
CHUNK: Final = Entity(
    "chunk",
    "{run_id}",
    "CHUNK#chunk-{start:07d}",
    {
        "attention_pk": "{run_id}#{attention}",
        "attention_sk": "{since}#{start:07d}",
        "queue_pk": "{run_id}#{lane}",
        "queue_sk": "{available_at_ms}#{start:07d}",
    },
)
FANOUT: Final = Table(
    "headgate-fanout",
    "Fan-outs, their chunks, attempts and counters",
    _PK,
    _SK,
    (
        Index("GSI1", KeyAttribute("GSI1_PK"), KeyAttribute("GSI1_SK")),
        # Sparse: only chunks that someone may have to look at.
        Index("attention-index", KeyAttribute("attention_pk"), KeyAttribute("attention_sk")),
        # Sparse: chunks that a worker may take, in the order in which they may be taken.
        Index("queue-index", KeyAttribute("queue_pk"), KeyAttribute("queue_sk")),
    ),
    ttl_attribute="ttl",
    entities=(
        FANOUT_RUN,
        CHUNK,
        Entity("campaign member", "CAMPAIGN#{campaign}", "MEMBER#{created_at}#{run_id}"),
        Entity("deferred items of a chunk", "{run_id}", "SLOW#slow-{start:07d}"),
        Entity("chunk attempt", "{run_id}", "ATT#chunk-{start:07d}#{attempt:04d}"),
        Entity("fan-out event", "{run_id}", "EVT#{event_id}"),
        Entity("fan-out counters", "{run_id}", "CTR#{shard:02d}"),
    ),
)

# Durable execution.

EXECUTIONS: Final = Table(
    "headgate-executions",
    "Executions of workflows: status, version, what they wait for",
    KeyAttribute("execution_id"),
    None,
    (
        # Sparse: executions with messages to take or commands still to dispatch.
        Index("ready-index", KeyAttribute("ready_pk"), KeyAttribute("ready_at_ms", KeyKind.NUMBER)),
        Index("status-index", KeyAttribute("status"), KeyAttribute("started_at")),
        Index("workflow-index", KeyAttribute("workflow"), KeyAttribute("started_at")),
        Index("parent-index", KeyAttribute("parent_id"), KeyAttribute("execution_id")),
    ),
    ttl_attribute="ttl",
    entities=(Entity("execution", "{execution_id}"),),
)
TURNS: Final = Table(
    "headgate-turns",
    "The history of each execution: events consumed and commands issued, a row a turn",
    KeyAttribute("execution_id"),
    KeyAttribute("turn", KeyKind.NUMBER),
    ttl_attribute="ttl",
    entities=(Entity("turn", "{execution_id}", "{turn}"),),
)
INBOXES: Final = Table(
    "headgate-inboxes",
    "Messages that an execution has not consumed yet, ids of signals it was sent, answers to updates",
    KeyAttribute("execution_id"),
    KeyAttribute("message_id"),
    # Sparse: only messages carry it, so that whoever drives executions finds those with mail.
    (Index("ready-index", KeyAttribute("ready_pk"), KeyAttribute("at_ms", KeyKind.NUMBER)),),
    ttl_attribute="ttl",
    entities=(
        Entity("message", "{execution_id}", "M#{at_ms:013d}#{unique}"),
        Entity("signal id", "{execution_id}", "S#{signal_id}"),
        Entity("answer to an update", "{execution_id}", "U#{update_id}"),
    ),
)
ACTIVITIES: Final = Table(
    "headgate-activities",
    "Activities: claims, leases, attempts, results",
    KeyAttribute("activity_id"),
    None,
    (
        Index("queue-index", KeyAttribute("queue_pk"), KeyAttribute("available_at_ms", KeyKind.NUMBER)),
        Index("lease-index", KeyAttribute("lease_pk"), KeyAttribute("lease_expires_ms", KeyKind.NUMBER)),
        Index("execution-index", KeyAttribute("execution_id"), KeyAttribute("seq", KeyKind.NUMBER)),
    ),
    ttl_attribute="ttl",
    entities=(
        Entity("activity", "{execution_id}#{run}#{seq:06d}"),
        Entity("delivery of an event", "{subscription}#{event_id}"),
    ),
)
TIMERS: Final = Table(
    "headgate-timers",
    "What is to happen at a time, for executions and for the watchdog",
    KeyAttribute("timer_id"),
    None,
    (_DUE,),
    entities=(Entity("timer", "{timer_id}"),),
)
SUBSCRIPTIONS: Final = Table(
    "headgate-subscriptions",
    "Subscriptions to events, and the deliveries that failed for good",
    KeyAttribute("subscription"),
    _SK,
    (Index("kind-index", KeyAttribute("kind"), _SK),),
    ttl_attribute="ttl",
    entities=(
        Entity("subscription", "{subscription}", "META"),
        Entity("dead letter", "{subscription}", "DEAD#{event_id}"),
        Entity("replay of events", "{subscription}", "REPLAY#{replay_id}"),
    ),
)
EVENTS: Final = Table(
    "headgate-events",
    "What was emitted on the bus, by day",
    KeyAttribute("day"),
    KeyAttribute("event_id"),
    (Index("type-index", KeyAttribute("type"), KeyAttribute("event_id")),),
    ttl_attribute="ttl",
    entities=(Entity("event", "{yyyymmdd}", "{event_id}"),),
)

# Shared by all parts.

IDEMPOTENCY: Final = Table(
    "headgate-idempotency",
    "Answers already given under an Idempotency-Key",
    KeyAttribute("idempotency_key"),
    ttl_attribute="ttl",
    entities=(Entity("idempotency key", "{scope}#{idempotency_key}"),),
)
API_KEYS: Final = Table(
    "headgate-api-keys",
    "API keys, as digests, with their roles and scopes",
    KeyAttribute("key_id"),
    None,
    (Index("principal-index", KeyAttribute("principal"), KeyAttribute("created_at")),),
    ttl_attribute="ttl",
    classification=Classification.CONFIDENTIAL,
    entities=(Entity("API key", "{key_id}"),),
)
WORKERS: Final = Table(
    "headgate-workers",
    "Worker processes and their heartbeats",
    KeyAttribute("worker_id"),
    None,
    (Index("fleet-index", KeyAttribute("fleet"), KeyAttribute("worker_id")),),
    ttl_attribute="ttl",
    entities=(Entity("worker", "{worker_id}"),),
)
SCHEDULES: Final = Table(
    "headgate-schedules",
    "Recurring starts: cron expression, zone, policy, next time",
    KeyAttribute("schedule_id"),
    None,
    (_DUE,),
    entities=(Entity("schedule", "{schedule_id}"),),
)
DEFINITION: Final = Entity("definition (latest)", "{kind}#{name}", "LATEST", {"latest_kind": "{kind}"})
DEFINITION_VERSION: Final = Entity("definition (version)", "{kind}#{name}", "v{version:06d}")
DEFINITIONS: Final = Table(
    "headgate-definitions",
    "Versioned definitions: state machines, archetypes, calendars",
    _PK,
    _SK,
    (Index("kind-index", KeyAttribute("latest_kind"), _PK),),
    stream=True,
    entities=(DEFINITION, DEFINITION_VERSION),
)
CONTROL: Final = Table(
    "headgate-control",
    "Small shared facts: dedup keys, escalations, quotas, lineage specs, baselines, contexts",
    _PK,
    _SK,
    (_DUE,),
    ttl_attribute="ttl",
    entities=(
        Entity("dedup key", "DEDUP#{dedup_key}", "DEDUP"),
        Entity("escalation", "ESCALATION#{incident_id}", "STATE", {"due_pk": "ESCALATION#{shard}"}),
        Entity("quota", "QUOTA#{subject}", "{bucket}"),
        Entity("lineage spec", "LSPEC#{producer_id}", "SPEC#{spec_id}"),
        Entity("baseline", "BASELINE#{dataset_urn}", "{metric}"),
        Entity("deliveries still to be made", "DELIVERIES#{event_id}", "REST", {"due_pk": "DELIVERIES"}),
        Entity("incident context", "CONTEXT#{incident_id}", "CONTEXT"),
    ),
)
STREAM_CHECKPOINTS: Final = Table(
    "headgate-stream-checkpoints",
    "How far each consumer of a change stream has come",
    KeyAttribute("consumer"),
    KeyAttribute("stream"),
    entities=(Entity("checkpoint", "{consumer}", "{table}"),),
)

ALL_TABLES: Final[tuple[Table, ...]] = (
    PIPELINES,
    SIGNAL_STATE, INCIDENT_INDEX, DATASET_REGISTRY, DATASET_RESOLUTION, EVIDENCE_CACHE,
    DATASET_WRITERS, DATASET_READERS, COLUMN_WRITERS, COLUMN_READERS,
    SIGNAL_HISTORY, OUTBOX, AUDIT, HEALTH_CHECK,
    FANOUT,
    EXECUTIONS, TURNS, INBOXES, ACTIVITIES, TIMERS, SUBSCRIPTIONS, EVENTS,
    IDEMPOTENCY, API_KEYS, WORKERS, SCHEDULES, DEFINITIONS, CONTROL, STREAM_CHECKPOINTS,
)  # fmt: skip


def named(name: str) -> Table:
    """Return the table called `name`. Raises `InvalidItemError` for a name the catalogue does not have."""
    for table in ALL_TABLES:
        if table.name == name:
            return table
    raise InvalidItemError(f"table {name!r}: the catalogue has {[table.name for table in ALL_TABLES]}")
