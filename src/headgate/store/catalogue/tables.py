"""Table catalogue: every table, key, index, TTL and change stream of the product.

SQLite's schema, DynamoDB's CreateTable, the Terraform input, health checks and docs/reference/tables.md are derived
from it. Names and keys that users' own queries rely on must not change (ADR-0005).
"""

from __future__ import annotations

from typing import Final

from headgate.errors import InvalidItemError
from headgate.store.catalogue.health_tables import AUDIT as AUDIT
from headgate.store.catalogue.health_tables import AUDIT_ANCHOR as AUDIT_ANCHOR
from headgate.store.catalogue.health_tables import AUDIT_ENTRY as AUDIT_ENTRY
from headgate.store.catalogue.health_tables import AUDIT_HEAD as AUDIT_HEAD
from headgate.store.catalogue.health_tables import AUDIT_INTENT as AUDIT_INTENT
from headgate.store.catalogue.health_tables import BREACH_SHARDS as BREACH_SHARDS
from headgate.store.catalogue.health_tables import COLUMN_READER as COLUMN_READER
from headgate.store.catalogue.health_tables import COLUMN_READERS as COLUMN_READERS
from headgate.store.catalogue.health_tables import COLUMN_WRITER as COLUMN_WRITER
from headgate.store.catalogue.health_tables import COLUMN_WRITERS as COLUMN_WRITERS
from headgate.store.catalogue.health_tables import DATASET_ALIAS as DATASET_ALIAS
from headgate.store.catalogue.health_tables import DATASET_CHANGE as DATASET_CHANGE
from headgate.store.catalogue.health_tables import DATASET_CONFIG as DATASET_CONFIG
from headgate.store.catalogue.health_tables import DATASET_CONFIG_VERSION as DATASET_CONFIG_VERSION
from headgate.store.catalogue.health_tables import DATASET_FEED_END as DATASET_FEED_END
from headgate.store.catalogue.health_tables import DATASET_FIELDS as DATASET_FIELDS
from headgate.store.catalogue.health_tables import DATASET_NAME as DATASET_NAME
from headgate.store.catalogue.health_tables import DATASET_NAMED as DATASET_NAMED
from headgate.store.catalogue.health_tables import DATASET_READER as DATASET_READER
from headgate.store.catalogue.health_tables import DATASET_READERS as DATASET_READERS
from headgate.store.catalogue.health_tables import DATASET_REGISTRY as DATASET_REGISTRY
from headgate.store.catalogue.health_tables import DATASET_RESOLUTION as DATASET_RESOLUTION
from headgate.store.catalogue.health_tables import DATASET_WRITER as DATASET_WRITER
from headgate.store.catalogue.health_tables import DATASET_WRITERS as DATASET_WRITERS
from headgate.store.catalogue.health_tables import EVIDENCE as EVIDENCE
from headgate.store.catalogue.health_tables import EVIDENCE_CACHE as EVIDENCE_CACHE
from headgate.store.catalogue.health_tables import HEALTH_CHECK as HEALTH_CHECK
from headgate.store.catalogue.health_tables import INCIDENT as INCIDENT
from headgate.store.catalogue.health_tables import INCIDENT_INDEX as INCIDENT_INDEX
from headgate.store.catalogue.health_tables import REGION_PULSE as REGION_PULSE
from headgate.store.catalogue.health_tables import REPORTED_RESULT as REPORTED_RESULT
from headgate.store.catalogue.health_tables import RESOLUTION_RULE as RESOLUTION_RULE
from headgate.store.catalogue.health_tables import RULE_DATASET as RULE_DATASET
from headgate.store.catalogue.health_tables import RULE_SET as RULE_SET
from headgate.store.catalogue.health_tables import SIGNAL as SIGNAL
from headgate.store.catalogue.health_tables import SIGNAL_HISTORY as SIGNAL_HISTORY
from headgate.store.catalogue.health_tables import SIGNAL_STATE as SIGNAL_STATE
from headgate.store.model.schema import Classification, Entity, Index, KeyAttribute, KeyKind, Shards, Table

_PK: Final = KeyAttribute("PK")
_SK: Final = KeyAttribute("SK")
_GSI1: Final = (KeyAttribute("GSI1PK"), KeyAttribute("GSI1SK"))
_GSI2: Final = (KeyAttribute("GSI2PK"), KeyAttribute("GSI2SK"))
# Shards of what every process reads in order, where the backend has partitions (ADR-0045). Each takes 1,000 writes a
# second; a poll reads all of them, so that there are no more than the load model needs.
_BUSY: Final = Shards(8)
_MODERATE: Final = Shards(2)


def _due(shards: Shards) -> Index:
    """Return an index of work by due time: its partition names the kind of work."""
    return Index("due-index", KeyAttribute("due_pk"), KeyAttribute("due_at_ms", KeyKind.NUMBER), shards)


def _pipeline(name: str, sort: str, **index_keys: str) -> Entity:
    return Entity(name, "PIPELINE#{pipeline_id}", sort, index_keys)


PIPELINE_CONFIG: Final = _pipeline("pipeline config", "CONFIG", GSI1PK="PIPELINES", GSI1SK="{pipeline_id}")
TRAIT_RESULT: Final = _pipeline("trait result", "TRAIT#{trait_type}")
TRAIT_OF_DATE: Final = _pipeline("trait result of a date", "TRAIT#{trait_type}#{date}")
TRAIT_OF_PERIOD: Final = _pipeline("trait result of a period", "TRAIT#{trait_type}#{date}#{schedule_id}")
RUN_STATE: Final = Entity(
    "run state", "RUN#{run_id}", "STATE", {"GSI1PK": "RUNS#{day}#{shard}", "GSI1SK": "{run_sort}"}
)
# Only copies of open runs are in the index.
RUN_COPY: Final = _pipeline("run (list copy)", "RUN#{run_id}", GSI1PK="OPEN-RUNS#{shard}", GSI1SK="{run_sort}")
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
JOB: Final = _pipeline("job log", "JOB#{schedule_id}#{date}#{at_ms:013d}{digest:06d}")
RERUN_REQUEST: Final = _pipeline("rerun request", "RERUN_REQUEST#{schedule_id}#{date}")
DRY_RUN: Final = _pipeline("dry run", "DRY_RUN#{schedule_id}#{date}")
OVERRIDE: Final = _pipeline(
    "override", "OVERRIDE#{override_id}", GSI1PK="OVERRIDES", GSI1SK="{expires_at}#{override_id}"
)
BACKFILL_STATE: Final = Entity(
    "backfill", "BACKFILL#{backfill_id}", "STATE", {"GSI1PK": "BACKFILLS", "GSI1SK": "{backfill_id}"}
)
BACKFILL_COPY: Final = _pipeline(
    "backfill (list copy)", "BACKFILL#{backfill_id}", GSI1PK="ALL-BACKFILLS#{year}", GSI1SK="{backfill_id}"
)
DEPENDENCY: Final = Entity("dependency", "DEP#{upstream_id}", "DEP#{downstream_id}")
QUARANTINE: Final = _pipeline("quarantine", "QUARANTINE#{date}#{hour}")
PIPELINE_CONTROL: Final = Entity(
    "pipeline control", "CONTROL#{pipeline_id}", "STATUS", {"GSI1PK": "CONTROLS", "GSI1SK": "{pipeline_id}"}
)
LATE_DATA: Final = _pipeline("late data", "LATE#{date}#{schedule_id}#{at_ms:013d}{digest:06d}")
REPLAY: Final = _pipeline("replay", "REPLAY#{date}#{schedule_id}")
ALERT: Final = _pipeline("alert", "ALERT#{at_ms:013d}#{alert_id}", GSI1PK="ALERTS", GSI1SK="{at_ms:013d}#{alert_id}")
THREAD: Final = _pipeline("alert thread", "THREAD#{schedule_id}#{date}")
# Only waiters that are polled for are in the index.
WAITER: Final = _pipeline(
    "waiter", "WAIT#{schedule_id}#{date}#{kind}", GSI1PK="WATCHED", GSI1SK="{pipeline_id}#{schedule_id}#{date}"
)
BASELINE: Final = _pipeline("post-run baseline", "BASELINE#{schedule_id}#{date}")
CURSOR: Final = _pipeline("watchdog cursor", "CURSOR#{schedule_id}")
WRITER_WORD: Final = Entity("writer's word", "DATASET#{dataset_urn}", "WORD#{signal_type}#{pipeline_id}")
DATASET_WRITE: Final = Entity("last write of a dataset", "DATASET#{dataset_urn}", "WRITTEN#{pipeline_id}")
HEARTBEAT: Final = Entity("heartbeat", "HEARTBEAT#{name}", "STATE")
POOL: Final = Entity("pool", "POOL#{pool}", "STATE")
POOL_TICKET: Final = Entity("pool ticket", "POOL#{pool}", "TICKET#{run_created_at_ms:013d}#{run_id}")
PROBE_STATE: Final = Entity("probe", "PROBE#{probe_id}", "STATE")
# Only checks that are due at some time are in the index.
CHECK_STATE: Final = Entity(
    "check",
    "CHECK#{dataset}",
    "STATE#{check_id}",
    {"GSI1PK": "CHECKS", "GSI1SK": "{due_at_ms:013d}#{dataset}#{check_id}"},
)

PIPELINES: Final = Table(
    "headgate-pipelines",
    "Pipelines: definitions, sensors, evaluations, runs, locks, expectations in one table",
    _PK,
    _SK,
    # Runs name their shard themselves.
    (Index("GSI1", *_GSI1, Shards(4, of=("WATCHED", "EXPECT#", "ALERTS"))),),
    ttl_attribute="ttl",
    stream=True,
    entities=(
        PIPELINE_CONFIG, TRAIT_RESULT, TRAIT_OF_DATE, TRAIT_OF_PERIOD,
        RUN_STATE, RUN_COPY, RUN_LOG, PIPELINE_EVENT, LOCK, RERUN_STATE, RERUN_COPY,
        READINESS, MARKER, SENSOR, EVALUATION, EXPECTATION, JOB, RERUN_REQUEST, DRY_RUN, OVERRIDE, BACKFILL_STATE,
        BACKFILL_COPY, DEPENDENCY, QUARANTINE, PIPELINE_CONTROL, LATE_DATA, REPLAY, ALERT, THREAD, WAITER,
        BASELINE, CURSOR, WRITER_WORD, DATASET_WRITE, HEARTBEAT, POOL, POOL_TICKET, PROBE_STATE, CHECK_STATE,
    ),
)  # fmt: skip

# Fan-out. Users query this table with AWS's own tools, so its layout is stable.

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
        # Sparse: chunks by their disposition, except those in the queue, and those that a search finds at once.
        Index("attention-index", KeyAttribute("attention_pk"), KeyAttribute("attention_sk")),
        # Sparse: claimable chunks in claim order.
        Index("queue-index", KeyAttribute("queue_pk"), KeyAttribute("queue_sk")),
    ),
    ttl_attribute="ttl",
    entities=(
        FANOUT_RUN,
        CHUNK,
        Entity("campaign member", "CAMPAIGN#{campaign}", "MEMBER#{created_at}#{run_id}"),
        Entity("deferred items of a chunk", "{run_id}", "SLOW#slow-{start:07d}"),
        Entity("chunk attempt", "{run_id}", "ATT#chunk-{start:07d}#{attempt:04d}"),
        Entity("log of an attempt", "{run_id}", "LOG#chunk-{start:07d}#{attempt:04d}"),
        Entity("fan-out event", "{run_id}", "EVT#{event_id}"),
        Entity("fan-out counters", "{run_id}", "CTR#{shard:02d}"),
    ),
)

# Durable execution.

EXECUTIONS: Final = Table(
    "headgate-executions",
    "Executions of workflows: status, version, pending waits",
    KeyAttribute("execution_id"),
    None,
    (
        # Sparse: executions with commands to dispatch, or a history to archive. Readers read the row.
        Index("ready-index", KeyAttribute("ready_pk"), KeyAttribute("ready_at_ms", KeyKind.NUMBER), _BUSY, ()),
        Index("status-index", KeyAttribute("status"), KeyAttribute("started_at"), _BUSY),
        Index("workflow-index", KeyAttribute("workflow"), KeyAttribute("started_at"), _BUSY),
        Index("parent-index", KeyAttribute("parent_id"), KeyAttribute("execution_id")),
    ),
    ttl_attribute="ttl",
    entities=(Entity("execution", "{execution_id}"),),
)
TURNS: Final = Table(
    "headgate-turns",
    "The history of each execution: consumed events and issued commands, one row per turn",
    KeyAttribute("execution_id"),
    KeyAttribute("turn", KeyKind.NUMBER),
    ttl_attribute="ttl",
    entities=(Entity("turn", "{execution_id}", "{turn}"),),
)
INBOXES: Final = Table(
    "headgate-inboxes",
    "Messages that an execution has not consumed yet, ids of its signals, answers to updates",
    KeyAttribute("execution_id"),
    KeyAttribute("message_id"),
    # Sparse: messages without their bodies, so that workers find executions with messages; and queries for workers.
    (
        Index(
            "ready-index",
            KeyAttribute("ready_pk"),
            KeyAttribute("at_ms", KeyKind.NUMBER),
            Shards(16, of=("INBOX",)),
            projected=("workflow", "name", "input", "timeout_seconds"),
        ),
    ),
    ttl_attribute="ttl",
    entities=(
        Entity("message", "{execution_id}", "M#{at_ms:013d}#{unique}"),
        Entity("signal id", "{execution_id}", "S#{signal_id}"),
        Entity("answer to an update", "{execution_id}", "U#{update_id}"),
        Entity("query for a worker", "{execution_id}", "Q#{query_id}"),
        Entity("answer to a query", "{execution_id}", "A#{query_id}"),
    ),
    wakes=True,
)
# On DynamoDB: a process has committed work, and others may look for it. In no index.
COMMIT_NOTICE: Final = Entity("commit notice", "COMMITS#{shard}")
ACTIVITIES: Final = Table(
    "headgate-activities",
    "Activities: claims, leases, attempts, results",
    KeyAttribute("activity_id"),
    None,
    (
        Index("queue-index", KeyAttribute("queue_pk"), KeyAttribute("available_at_ms", KeyKind.NUMBER), _BUSY),
        # By worker, but for activities that no worker holds.
        Index(
            "lease-index",
            KeyAttribute("lease_pk"),
            KeyAttribute("lease_expires_ms", KeyKind.NUMBER),
            Shards(4, of=("WATCH",)),
            projected=("token",),
        ),
        Index("execution-index", KeyAttribute("execution_id"), KeyAttribute("seq", KeyKind.NUMBER), projected=()),
    ),
    ttl_attribute="ttl",
    entities=(
        Entity("activity", "{execution_id}#{run}#{seq:06d}"),
        Entity("delivery of an event", "{subscription}#{event_id}"),
        COMMIT_NOTICE,
    ),
    wakes=True,
)
TIMERS: Final = Table(
    "headgate-timers",
    "Timers of executions and of the watchdog",
    KeyAttribute("timer_id"),
    None,
    (_due(_BUSY),),
    entities=(Entity("timer", "{timer_id}"),),
    wakes=True,
)
SUBSCRIPTIONS: Final = Table(
    "headgate-subscriptions",
    "Subscriptions to events, and dead letters",
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
    "Events emitted on the bus, by day",
    KeyAttribute("day"),
    KeyAttribute("event_id"),
    (Index("type-index", KeyAttribute("type"), KeyAttribute("event_id"), _BUSY),),
    ttl_attribute="ttl",
    entities=(Entity("event", "{yyyymmdd}", "{event_id}"),),
    wakes=True,
    shards=_BUSY,
)

# Shared by all parts.

IDEMPOTENCY: Final = Table(
    "headgate-idempotency",
    "Responses by Idempotency-Key",
    KeyAttribute("idempotency_key"),
    ttl_attribute="ttl",
    entities=(Entity("idempotency key", "{scope}#{idempotency_key}"),),
)
API_KEYS: Final = Table(
    "headgate-api-keys",
    "API keys, as digests, with their roles and scopes",
    KeyAttribute("key_id"),
    None,
    (
        Index("principal-index", KeyAttribute("principal"), KeyAttribute("created_at")),
        # Deliberately one partition: keys are few and listed together.
        Index("kind-index", KeyAttribute("kind"), KeyAttribute("created_at")),
    ),
    ttl_attribute="ttl",
    classification=Classification.CONFIDENTIAL,
    entities=(Entity("API key", "{key_id}", None, {"kind": "KEY"}),),
)
SESSIONS: Final = Table(
    "headgate-sessions",
    "Sessions of people who are signed in to the pages, by the digest of their cookie",
    KeyAttribute("session_id"),
    None,
    # Deliberately one partition: sessions are few and listed together.
    (Index("kind-index", KeyAttribute("kind"), KeyAttribute("sign_in_id")),),
    ttl_attribute="ttl",
    classification=Classification.CONFIDENTIAL,
    entities=(Entity("session", "{session_id}", None, {"kind": "SESSION"}),),
)
WORKERS: Final = Table(
    "headgate-workers",
    "Worker processes and their heartbeats",
    KeyAttribute("worker_id"),
    None,
    (Index("fleet-index", KeyAttribute("fleet"), KeyAttribute("worker_id"), _BUSY),),
    ttl_attribute="ttl",
    entities=(Entity("worker", "{worker_id}"), Entity("chunk worker", "CHUNKS#{worker_id}", None, {"fleet": "CHUNKS"})),
)
SCHEDULES: Final = Table(
    "headgate-schedules",
    "Recurring schedules: cron expression, time zone, policy, next time",
    KeyAttribute("schedule_id"),
    None,
    (_due(_MODERATE),),
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
OUTSIDE_JOB: Final = Entity("job outside Headgate", "JOBS#{shard}", "{job_id}")
OUTSIDE_RUNS: Final = Entity("runs of a job outside Headgate", "JOBRUNS#{job_id}", "RUNS")
DEPLOYMENT: Final = Entity("deployment of an app", "DEPLOYMENTS", "{app}")
FUNCTION_APP: Final = Entity("functions of an app", "FUNCTIONS", "{app}")
ALERT_DELIVERER: Final = Entity("alert deliverer", "ALERT-DELIVERER", "LEASE")
KEY_CHECK: Final = Entity("key check", "KEYRING", "CHECK")
CONTROL: Final = Table(
    "headgate-control",
    "Small shared state: dedup keys, escalations, quotas, lineage specs, baselines, contexts",
    _PK,
    _SK,
    # Other kinds of work name their shard themselves, or are few.
    (_due(Shards(4, of=("DELIVERIES", "ARCHIVES", "ALERT#GROUP"))),),
    ttl_attribute="ttl",
    entities=(
        Entity("dedup key", "DEDUP#{dedup_key}", "DEDUP"),
        Entity("escalation", "ESCALATION#{incident_id}", "STATE", {"due_pk": "ESCALATION#{shard}"}),
        Entity("quota", "QUOTA#{subject}", "{bucket}"),
        Entity("lineage spec", "LSPEC#{producer_id}", "SPEC#{spec_id}"),
        Entity("lineage spec of a commit", "LCOMMIT#{commit}", "{spec_id}"),
        Entity("lineage manifest", "LSPEC#{producer_id}", "MANIFEST", {"due_pk": "LINEAGE#PENDING"}),
        Entity("lineage graph", "LSPEC#{producer_id}", "GRAPH", {"due_pk": "LINEAGE#GRAPH"}),
        Entity("OpenLineage event", "OLIN#{shard}", "{event_id}"),
        Entity("OpenLineage event put aside", "OLDEAD", "{event_id}"),
        Entity("OpenLineage shard", "OLIN#{shard}", "LEASE"),
        Entity("OpenLineage run", "OLRUN#{producer_id}", "RUN#{run_id}"),
        OUTSIDE_JOB,
        OUTSIDE_RUNS,
        Entity("baseline", "BASELINE#{dataset_urn}", "{metric}"),
        Entity("producer of a topic", "PRODUCERS#{topic}", "{producer_id}"),
        Entity("pending deliveries", "DELIVERIES#{event_id}", "REST", {"due_pk": "DELIVERIES"}),
        Entity("incident context", "CONTEXT#{incident_id}", "CONTEXT"),
        Entity("evidence to be archived", "EVIDENCE-SPOOL#{shard}", "{ulid}"),
        Entity("last good evidence", "LAST-GOOD#{dataset_urn}", "EVIDENCE"),
        Entity("recovery", "RECOVERY#{incident_id}", "STATE", {"due_pk": "RECOVERY#{shard}"}),
        Entity("pins of an incident", "PINS#{incident_id}", "STATE", {"due_pk": "PINS#{shard}"}),
        Entity("blast radius to complete", "RADIUS#{incident_id}", "STATE", {"due_pk": "RADIUS#{shard}"}),
        Entity("open incident of a dataset", "OPEN#{dataset_urn}", "{incident_id}"),
        Entity("dataset deleted or restored", "RETIREMENT#{dataset_urn}", "STATE", {"due_pk": "RETIREMENT"}),
        Entity("freshness timer", "FRESHNESS#{dataset_urn}", "STATE", {"due_pk": "FRESHNESS#{shard}"}),
        Entity("freshness backfill", "FRESHNESS-BACKFILL", "STATE"),
        Entity("flag", "FLAGS", "{name}"),
        Entity("gate override", "OVERRIDE#{dataset_urn}", "{override_id}"),
        Entity("alert group", "ALERT-GROUP#{group}", "STATE", {"due_pk": "ALERT#GROUP"}),
        Entity("alert thread", "ALERT-THREAD#{thread}", "STATE"),
        Entity("alert mute", "ALERT-MUTES", "{mute_id}"),
        Entity("writer region", "REGION#WRITER", "LEASE"),
        Entity("region epoch", "REGION#EPOCH", "EPOCH"),
        Entity("failover", "REGION#FAILOVER", "STATE"),
        Entity("region report", "REGION#REPORTS", "{region}#{observer}"),
        Entity("alert quota", "QUOTA#ALERTS#{team}", "{hour}"),
        KEY_CHECK,
        DEPLOYMENT,
        FUNCTION_APP,
        ALERT_DELIVERER,
    ),
)
STREAM_CHECKPOINTS: Final = Table(
    "headgate-stream-checkpoints",
    "Checkpoints of change-stream consumers",
    KeyAttribute("consumer"),
    KeyAttribute("stream"),
    entities=(Entity("checkpoint", "{consumer}", "{table}"),),
)

# Items that state machines store with DynamoDB Tasks. Nothing of Headgate itself is in this table.
TASK_ITEM: Final = Entity("item of a user's table", "{table}#{partition}", "{sort}")
TASK_ITEMS: Final = Table(
    "headgate-task-items",
    "Items of users' tables, which DynamoDB Tasks of state machines read and write",
    KeyAttribute("task_pk"),
    KeyAttribute("task_sk"),
    entities=(TASK_ITEM,),
)

ALL_TABLES: Final[tuple[Table, ...]] = (
    PIPELINES,
    SIGNAL_STATE, INCIDENT_INDEX, DATASET_REGISTRY, DATASET_RESOLUTION, EVIDENCE_CACHE,
    DATASET_WRITERS, DATASET_READERS, COLUMN_WRITERS, COLUMN_READERS,
    SIGNAL_HISTORY, AUDIT, HEALTH_CHECK,
    FANOUT,
    EXECUTIONS, TURNS, INBOXES, ACTIVITIES, TIMERS, SUBSCRIPTIONS, EVENTS,
    IDEMPOTENCY, API_KEYS, SESSIONS, WORKERS, SCHEDULES, DEFINITIONS, CONTROL, STREAM_CHECKPOINTS,
    TASK_ITEMS,
)  # fmt: skip


def named(name: str) -> Table:
    """Return the table with this name. Raises `InvalidItemError` for an unknown name."""
    for table in ALL_TABLES:
        if table.name == name:
            return table
    raise InvalidItemError(f"table {name!r}: the catalogue has {[table.name for table in ALL_TABLES]}")
