"""Retention catalogue: how the rows of every entity end, and the setting that says when.

The reference of the tables is derived from it, and a test compares it with the catalogue: an entity without an end
cannot be added by accident.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class Ending(Struct, frozen=True):
    """How rows of an entity end. `setting` is the key that says when, if there is one."""

    how: str
    setting: str = ""


def _days(days: int, after: str = "it was written") -> Ending:
    return Ending(f"expires {days} days after {after}")


def _setting(how: str, setting: str) -> Ending:
    return Ending(how, setting)


_CONFIGURATION: Final = Ending("configuration: stays until it is changed or deleted")
_VERSION: Final = Ending("stays: versions grow with changes by people alone")
_ONE_EACH: Final = Ending("one row that is overwritten")
_CONSUMED: Final = Ending("deleted when it is done")
_UNUSED: Final = Ending("reserved; no row is written")
_RUN: Final = _setting(
    "deleted some days after its end; stays while its execution or backfill is open, or as the last of its schedule",
    "retention.runs_days",
)
_FANOUT: Final = _setting(
    "deleted some days after the end of its fan-out, as its `retention_days` says", "retention.fanouts_days"
)
_LINEAGE: Final = Ending("expires when its producer has not reported it again for some time, as its spec says")
_EXECUTION: Final = _setting(
    "moved to the archive 7 days after the end, or as its workflow says; the archive is deleted", "archive.days"
)

_PIPELINES: Final = {
    "pipeline config": _CONFIGURATION,
    "trait result": _setting(
        "expires some days after its own expiry; one row for a trait of all periods", "retention.trait_results_days"
    ),
    "trait result of a date": _setting("expires some days after its date", "retention.trait_results_days"),
    "trait result of a period": _setting("expires some days after its period", "retention.trait_results_days"),
    "run state": _RUN,
    "run (list copy)": _RUN,
    "run log": _setting(
        "deleted some days after its last change, after the runs of the period; the latest of a schedule stays",
        "retention.run_logs_days",
    ),
    "event": _setting("expires", "retention.pipeline_events_days"),
    "lock": Ending("expires with its lease"),
    "rerun": _setting("deleted some days after the request, once it is decided and done", "retention.runs_days"),
    "rerun (list copy)": _setting("as the rerun", "retention.runs_days"),
    "readiness cache": Ending("expires when it is no longer fresh"),
    "marker": _setting("expires", "retention.markers_days"),
    "sensor": _setting(
        "expires if it belongs to a period; otherwise one row that is overwritten", "retention.sensors_days"
    ),
    "evaluation": _setting("expires", "retention.evaluations_days"),
    "expectation": _setting("expires", "retention.expectations_days"),
    "job log": _setting("expires", "retention.job_logs_days"),
    "rerun request": _setting("deleted with its rerun", "retention.runs_days"),
    "dry run": _UNUSED,
    "override": _UNUSED,
    "backfill": _setting("deleted some days after its end", "retention.runs_days"),
    "backfill (list copy)": _setting("as the backfill", "retention.runs_days"),
    "dependency": Ending("deleted with the definition that has it"),
    "quarantine": _setting("expires, unless its job wrote another expiry", "retention.quarantine_days"),
    "pipeline control": _ONE_EACH,
    "late data": _setting("expires", "retention.late_data_days"),
    "replay": _UNUSED,
    "alert": _setting("expires", "retention.alerts_days"),
    "probe": _days(30, "its last look"),
    "check": _days(400, "its last run"),
    "alert thread": _setting("expires", "retention.alerts_days"),
    "waiter": _days(7, "the wait began; deleted when it ends"),
    "post-run baseline": _setting("expires", "retention.run_baselines_days"),
    "watchdog cursor": _ONE_EACH,
    "writer's word": Ending("expires if it is OK; otherwise one row that is overwritten"),
    "last write of a dataset": _days(30, "the run was completed"),
    "heartbeat": _ONE_EACH,
    "pool": _days(30, "its last change; a lease in it ends with its run"),
    "pool ticket": _days(30, "the run entered the queue; deleted when the run gets its slots or ends"),
}
_HEALTH: Final = {
    "signal state": _setting(
        "expires after the last update, while it is OK; otherwise stays", "retention.signals_days"
    ),
    "signal transition": _setting("expires", "retention.signal_history_days"),
    "volume of an hour": Ending("expires after 64 days, when no expected band is fitted to it"),
    "volume of a late window": Ending("expires after 64 days, when no expected band is fitted to it"),
    "reported result": _days(30, "a tool reported it last"),
    "incident": _setting("expires some days after it was resolved; an open one stays", "retention.incidents_days"),
    "dataset (latest)": _CONFIGURATION,
    "dataset (archived version)": _VERSION,
    "registered versions of a dataset's name": _CONFIGURATION,
    "external name": _CONFIGURATION,
    "external name (by dataset)": _CONFIGURATION,
    "job outside Headgate": _days(90, "a run was reported"),
    "runs of a job outside Headgate": _days(90, "a run was reported"),
    "fields of a dataset": Ending("one row for each dataset"),
    "latest change of a dataset": Ending("one row for each dataset"),
    "end of the change feed": _ONE_EACH,
    "resolution rule": _CONFIGURATION,
    "dataset of a conditional rule": _CONFIGURATION,
    "rule set": _ONE_EACH,
    "evidence": _setting(
        "expires after some hours, then it is in the archive; evidence of an open incident stays", "evidence.hot_hours"
    ),
    "dataset writer": _LINEAGE,
    "dataset reader": _LINEAGE,
    "column writer": _LINEAGE,
    "column reader": _LINEAGE,
    "audit entry": _setting(
        "pruned; a signed anchor stays, and so does the last entry of a chain", "retention.audit_days"
    ),
    "audit head": _ONE_EACH,
    "audit anchor": _ONE_EACH,
    "audit intent": _CONSUMED,
    "health probe": _ONE_EACH,
    "region pulse": Ending("replaced by the next one"),
}
_DURABLE: Final = {
    "fan-out": _FANOUT,
    "chunk": _FANOUT,
    "campaign member": _FANOUT,
    "deferred items of a chunk": _FANOUT,
    "chunk attempt": _FANOUT,
    "log of an attempt": _FANOUT,
    "fan-out event": _FANOUT,
    "fan-out counters": _FANOUT,
    "execution": _EXECUTION,
    "turn": _EXECUTION,
    "message": _CONSUMED,
    "signal id": Ending("deleted when its execution is archived"),
    "answer to an update": _days(1),
    "query for a worker": Ending("deleted when a worker answers it, or its caller gives up; expires after two minutes"),
    "answer to a query": Ending("deleted when its caller has read it; expires after two minutes"),
    "activity": _CONSUMED,
    "commit notice": Ending("replaced by the next one; expires after a day"),
    "delivery of an event": Ending("deleted when it is delivered, or becomes a dead letter"),
    "timer": _CONSUMED,
    "subscription": _CONFIGURATION,
    "dead letter": _setting("expires", "retention.dead_letters_days"),
    "replay of events": _setting("expires", "retention.events_days"),
    "item of a user's table": Ending("stays until a Task of a state machine deletes it"),
}
_SHARED: Final = {
    "idempotency key": _setting(
        "a response to a request expires; keys of events, Tasks and transactions expire within a day",
        "retention.idempotency_hours",
    ),
    "API key": _days(30, "it expired; one without expiry stays until it is revoked"),
    "session": _setting("deleted on sign-out; expires with its absolute limit", "auth.session_seconds"),
    "chunk worker": Ending("deleted when it stops; expires 35 seconds after its last heartbeat"),
    "worker": Ending("deleted when it stops, or when others find its lease expired"),
    "schedule": _CONFIGURATION,
    "definition (latest)": _CONFIGURATION,
    "definition (version)": _VERSION,
    "checkpoint": _ONE_EACH,
}
_CONTROL: Final = {
    "dedup key": Ending("deleted or expires with what it belongs to"),
    "key check": _ONE_EACH,
    "deployment of an app": _ONE_EACH,
    "functions of an app": _ONE_EACH,
    "alert deliverer": _ONE_EACH,
    "escalation": _CONSUMED,
    "quota": Ending("expires with its bucket"),
    "lineage spec": _LINEAGE,
    "lineage spec of a commit": _LINEAGE,
    "lineage manifest": _LINEAGE,
    "lineage graph": _LINEAGE,
    "OpenLineage event": _CONSUMED,
    "OpenLineage event put aside": _days(30),
    "OpenLineage shard": _ONE_EACH,
    "OpenLineage run": _days(30),
    "baseline": Ending("one row for each metric of a dataset"),
    "producer of a topic": _days(90, "it was last seen"),
    "pending deliveries": _setting("deleted when they are delivered; expires", "retention.events_days"),
    "incident context": _UNUSED,
    "evidence to be archived": _CONSUMED,
    "last good evidence": _days(400),
    "recovery": _CONSUMED,
    "pins of an incident": _CONSUMED,
    "blast radius to complete": _CONSUMED,
    "open incident of a dataset": Ending("deleted when the incident is resolved"),
    "dataset deleted or restored": _CONSUMED,
    "freshness timer": Ending("deleted when its finding is CRITICAL, or with the SLO; set again by the next report"),
    "freshness backfill": _ONE_EACH,
    "flag": _CONFIGURATION,
    "gate override": Ending("expires when it ends"),
    "alert group": Ending("expires an hour after it closes"),
    "alert thread": _setting("expires after its last change", "retention.alerts_days"),
    "alert mute": Ending("expires when it ends"),
    "writer region": _ONE_EACH,
    "region epoch": _ONE_EACH,
    "failover": _ONE_EACH,
    "region report": _days(1),
    "alert quota": _days(1),
}
# Events on the bus share their name with pipeline events.
_BY_TABLE: Final = {("headgate-events", "event"): _setting("expires", "retention.events_days")}
_BY_NAME: Final = {**_PIPELINES, **_HEALTH, **_DURABLE, **_SHARED, **_CONTROL}


def ending_of(table: str, entity: str) -> Ending:
    """Return how rows of an entity end. Raises `KeyError` for an entity that the catalogue lacks."""
    return _BY_TABLE.get((table, entity)) or _BY_NAME[entity]


def described() -> frozenset[str]:
    """Return the names of all entities with an ending."""
    return frozenset(_BY_NAME)
