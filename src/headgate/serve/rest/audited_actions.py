"""Audited actions: how each API operation that is not a GET is audited.

An operation either has an audit entry of its own, written around its handler; or its service writes the entry in the
transaction of the change; or it reports data that is itself a record, such as a signal or a heartbeat; or it changes
nothing. `operation_routes` refuses an operation that is missing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headgate.serve.http.audited_operations import AuditedAction, Unaudited

_SERVICE, _REPORT, _READ = Unaudited.BY_SERVICE, Unaudited.REPORT, Unaudited.READ
_PIPELINE, _CONTROL, _PERIOD = "pipeline/{id}", "/pipelines/{id}/control", "/pipelines/{id}/run-logs/{date}"
_BACKFILL, _BACKFILL_STATE = "backfill/{backfill_id}", "/backfills/{backfill_id}"
_FANOUT, _FANOUT_STATE = "fanout/{id}", "/fanouts/{id}/summary"
_SCHEDULE, _SCHEDULE_STATE = "schedule/{id}", "/schedules/{id}"


def _period(verb: str) -> AuditedAction:
    return AuditedAction(f"period.{verb}", "pipeline/{id}/period/{date}", _PERIOD)


def _backfill(verb: str) -> AuditedAction:
    return AuditedAction(f"backfill.{verb}", _BACKFILL, _BACKFILL_STATE)


def _fanout(verb: str) -> AuditedAction:
    return AuditedAction(f"fanout.{verb}", _FANOUT, _FANOUT_STATE)


def _schedule(verb: str) -> AuditedAction:
    return AuditedAction(f"schedule.{verb}", _SCHEDULE, _SCHEDULE_STATE)


def _deployment(verb: str) -> AuditedAction:
    return AuditedAction(f"deployment.{verb}", "deployment/{app}", "/deployments/{app}")


def _execution(verb: str) -> AuditedAction:
    return AuditedAction(f"execution.{verb}", "execution/{id}")


AUDITED: Final[Mapping[tuple[str, str], AuditedAction | Unaudited]] = {
    # Pipelines.
    ("PUT", "/pipelines/{id}"): AuditedAction("pipeline.put", _PIPELINE, "/pipelines/{id}"),
    ("DELETE", "/pipelines/{id}"): AuditedAction("pipeline.delete", _PIPELINE, "/pipelines/{id}"),
    ("POST", "/pipelines/validate"): _READ,
    ("POST", "/definition-folder/reload"): AuditedAction("definitions.reload", "definition-folder"),
    ("POST", "/pipelines/plan"): _READ,
    ("POST", "/pipelines/{id}/pause"): AuditedAction("pipeline.pause", _PIPELINE, _CONTROL),
    ("POST", "/pipelines/{id}/resume"): AuditedAction("pipeline.resume", _PIPELINE, _CONTROL),
    ("POST", "/pipelines/{id}/evaluate"): _READ,
    ("POST", "/pipelines/{id}/simulate"): _READ,
    ("POST", "/pipelines/{id}/sensors/{key}"): _REPORT,
    ("DELETE", "/pipelines/{id}/sensors/{key}"): AuditedAction(
        "sensor.delete", "pipeline/{id}/sensor/{key}", "/pipelines/{id}/sensors/{key}"
    ),
    ("POST", "/pipelines/{id}/markers"): _REPORT,
    ("POST", "/pipelines/{id}/traits/{type}"): _REPORT,
    ("POST", "/probes/{probe}/try"): _READ,
    ("POST", "/datasets/{dataset_urn}/checks/{check}/run"): AuditedAction(
        "check.run", "dataset/{dataset_urn}/check/{check}"
    ),
    ("POST", "/datasets/{dataset_urn}/checks/{check}/try"): _READ,
    ("POST", "/datasets/{dataset_urn}/checks/{check}/backtest"): _READ,
    ("PUT", "/calendars/{name}"): AuditedAction("calendar.put", "calendar/{name}", "/calendars/{name}"),
    ("DELETE", "/calendars/{name}"): AuditedAction("calendar.delete", "calendar/{name}", "/calendars/{name}"),
    # Runs.
    ("POST", "/pipelines/{id}/runs"): AuditedAction("run.start", "pipeline/{id}/period/{date}"),
    ("POST", "/runs/{run_id}/cancel"): AuditedAction("run.cancel", "run/{run_id}", "/runs/{run_id}"),
    ("POST", "/runs/{run_id}/complete"): AuditedAction("run.complete", "run/{run_id}", "/runs/{run_id}"),
    # The acknowledgement itself has an entry, with the alert and the person.
    ("POST", "/notify/slack/{channel}"): _SERVICE,
    ("POST", "/notify/pagerduty/{channel}"): _SERVICE,
    # Heartbeats have no entry.
    ("POST", "/callbacks/{run_id}"): AuditedAction("run.callback", "run/{run_id}"),
    ("POST", "/pipelines/{id}/reruns"): AuditedAction("run.rerun", "pipeline/{id}/period/{date}"),
    ("POST", "/pipelines/{id}/periods/{date}/hold"): _period("hold"),
    ("POST", "/pipelines/{id}/periods/{date}/approve"): _period("approve"),
    ("POST", "/pipelines/{id}/periods/{date}/skip"): _period("skip"),
    ("POST", "/pipelines/{id}/periods/{date}/mark-success"): _period("mark_success"),
    ("POST", "/pipelines/{id}/periods/{date}/force"): _period("force"),
    ("POST", "/pipelines/{id}/backfills"): AuditedAction("backfill.start", _PIPELINE),
    ("POST", "/backfills/{backfill_id}/pause"): _backfill("pause"),
    ("POST", "/backfills/{backfill_id}/resume"): _backfill("resume"),
    ("POST", "/backfills/{backfill_id}/cancel"): _backfill("cancel"),
    ("POST", "/pools/{name}/free"): AuditedAction("pool.free", "pool/{name}", "/pools/{name}"),
    # Alerts.
    ("POST", "/alerts/{alert_id}/ack"): _SERVICE,
    ("POST", "/alert-mutes"): _SERVICE,
    ("DELETE", "/alert-mutes/{mute_id}"): _SERVICE,
    ("POST", "/alert-channels/{name}/test"): AuditedAction("alert.test", "channel/{name}"),
    ("POST", "/alert-quotas/{team}/acquire"): _REPORT,
    # State machines.
    ("PUT", "/machines/{name}"): AuditedAction("machine.put", "machine/{name}", "/machines/{name}"),
    ("POST", "/machines/validate"): _READ,
    ("POST", "/machines/{name}/executions"): AuditedAction("machine.start", "machine/{name}"),
    ("POST", "/machine-executions/{id}/stop"): _execution("stop"),
    ("POST", "/machine-executions/{id}/redrive"): _execution("redrive"),
    ("POST", "/tasks/success"): _REPORT,
    ("POST", "/tasks/failure"): _REPORT,
    ("POST", "/tasks/heartbeat"): _REPORT,
    # Executions. Programs start and signal them; the history records both.
    ("POST", "/executions"): _REPORT,
    ("POST", "/executions/signal-with-start"): _REPORT,
    ("POST", "/executions/{id}/signals"): _REPORT,
    ("POST", "/executions/{id}/updates"): _REPORT,
    ("POST", "/executions/{id}/queries"): _READ,
    ("POST", "/executions/{id}/cancel"): _execution("cancel"),
    ("POST", "/executions/{id}/terminate"): _execution("terminate"),
    ("POST", "/executions/{id}/redrive"): _execution("redrive"),
    ("POST", "/executions/{id}/retry"): _execution("retry"),
    ("POST", "/executions/{id}/reset"): _execution("reset"),
    ("POST", "/executions/{id}/retry-from-failure"): _execution("retry-from-failure"),
    ("POST", "/executions/bulk"): AuditedAction("execution.bulk", "executions"),
    ("POST", "/deployments/{app}/current"): _deployment("set_current"),
    ("POST", "/deployments/{app}/ramp"): _deployment("ramp"),
    ("POST", "/deployments/{app}/drain"): _deployment("drain"),
    ("POST", "/deployments/{app}/move"): _deployment("move"),
    ("POST", "/activities/complete"): _REPORT,
    ("POST", "/activities/fail"): _REPORT,
    ("POST", "/activities/heartbeat"): _REPORT,
    # Events and schedules.
    ("POST", "/events"): _REPORT,
    ("POST", "/subscriptions/{name}/retire"): AuditedAction("subscription.retire", "subscription/{name}"),
    ("POST", "/subscriptions/{name}/replay"): AuditedAction("subscription.replay", "subscription/{name}"),
    ("POST", "/subscriptions/{name}/replays/{id}/stop"): AuditedAction(
        "subscription.stop_replay", "subscription/{name}/replay/{id}"
    ),
    ("POST", "/dead-letters/redeliver"): AuditedAction("dead_letter.redeliver", "dead-letters"),
    ("POST", "/dead-letters/purge"): AuditedAction("dead_letter.purge", "dead-letters"),
    ("POST", "/schedules"): AuditedAction("schedule.create", _SCHEDULE),
    ("PUT", "/schedules/{id}"): _schedule("update"),
    ("DELETE", "/schedules/{id}"): _schedule("delete"),
    ("POST", "/schedules/{id}/pause"): _schedule("pause"),
    ("POST", "/schedules/{id}/resume"): _schedule("resume"),
    ("POST", "/schedules/{id}/trigger"): _schedule("trigger"),
    ("POST", "/schedules/{id}/backfill"): _schedule("backfill"),
    ("POST", "/schedules/{id}/stop-backfills"): _schedule("stop_backfills"),
    # Fan-outs.
    # Programs create fan-outs and work on chunks; the rows record both.
    ("POST", "/fanouts"): _REPORT,
    ("POST", "/fanouts/{id}/pause"): _fanout("pause"),
    ("POST", "/fanouts/{id}/resume"): _fanout("resume"),
    ("POST", "/fanouts/{id}/cancel"): _fanout("cancel"),
    ("POST", "/fanouts/{id}/tune"): _fanout("tune"),
    ("POST", "/fanouts/{id}/skip"): _fanout("skip"),
    ("POST", "/fanouts/{id}/redrive"): _fanout("redrive"),
    ("POST", "/fanouts/{id}/heal"): _fanout("heal"),
    ("POST", "/fanouts/{id}/bisect"): _fanout("bisect"),
    ("POST", "/fanouts/{id}/reconcile"): _fanout("reconcile"),
    ("POST", "/fanouts/{id}/chunks/{chunk_id}/start"): _REPORT,
    ("POST", "/fanouts/{id}/chunks/{chunk_id}/heartbeat"): _REPORT,
    ("POST", "/fanouts/{id}/chunks/{chunk_id}/complete"): _REPORT,
    ("POST", "/fanouts/{id}/chunks/{chunk_id}/fail"): _REPORT,
    ("POST", "/fanouts/{id}/chunks/{chunk_id}/release"): _REPORT,
    # Health.
    ("POST", "/datasets"): _SERVICE,
    ("PUT", "/datasets/{dataset_urn}"): _SERVICE,
    ("PATCH", "/datasets/{dataset_urn}"): _SERVICE,
    ("DELETE", "/datasets/{dataset_urn}"): _SERVICE,
    ("POST", "/datasets/{dataset_urn}/deprecate"): _SERVICE,
    ("POST", "/datasets/{dataset_urn}/merge"): _SERVICE,
    ("POST", "/datasets/{dataset_urn}/restore"): _SERVICE,
    ("POST", "/datasets/{dataset_urn}/rollback"): _SERVICE,
    ("PUT", "/datasets/{dataset_urn}/aliases"): _SERVICE,
    ("DELETE", "/dataset-names"): _SERVICE,
    ("PUT", "/datasets/{dataset_urn}/baselines/{metric}"): AuditedAction(
        "baseline.put", "{dataset_urn}", "/datasets/{dataset_urn}/baselines/{metric}"
    ),
    ("POST", "/datasets/{dataset_urn}/resolution-rules"): _SERVICE,
    ("PUT", "/resolution-rules/{topic_pattern}/{name}"): _SERVICE,
    ("DELETE", "/resolution-rules/{topic_pattern}/{name}"): _SERVICE,
    ("POST", "/resolve"): _READ,
    ("POST", "/resolve/explain"): _READ,
    ("PUT", "/datasets/{dataset_urn}/signals/{signal_type}"): _REPORT,
    ("POST", "/signals/batch"): _REPORT,
    ("POST", "/datasets/{dataset_urn}/signals/reset"): _SERVICE,
    ("POST", "/evidence"): _REPORT,
    ("POST", "/evidence/batch"): _REPORT,
    ("POST", "/incidents"): _SERVICE,
    ("PATCH", "/incidents/{incident_id}"): _SERVICE,
    ("POST", "/incidents/{incident_id}/merge"): _SERVICE,
    ("POST", "/incidents/{incident_id}/snooze"): _SERVICE,
    ("POST", "/gate"): _READ,
    ("POST", "/gate/overrides/{dataset_urn}"): _SERVICE,
    ("DELETE", "/gate/overrides/{dataset_urn}/{override_id}"): _SERVICE,
    ("PUT", "/flags/{name}"): _SERVICE,
    ("POST", "/lineage"): _REPORT,
    ("POST", "/lineage/batch"): _REPORT,
    ("POST", "/lineage/dbt"): _REPORT,
    ("PUT", "/lineage/specs/{spec_id}"): _REPORT,
    ("POST", "/lineage/dead-letters/{event_id}/redrive"): AuditedAction("lineage.redrive", "lineage-event/{event_id}"),
    ("DELETE", "/lineage/dead-letters/{event_id}"): AuditedAction("lineage.discard", "lineage-event/{event_id}"),
    ("PUT", "/topics/{topic}/producers/{producer_id}"): _REPORT,
    # Keys and the audit log.
    ("POST", "/api-keys"): _SERVICE,
    ("DELETE", "/api-keys/{key_id}"): _SERVICE,
    ("POST", "/api-keys/{key_id}/rotate"): _SERVICE,
    ("DELETE", "/sessions/{sign_in_id}"): _SERVICE,
    ("POST", "/audit/verify"): _READ,
    ("POST", "/audit/chains/{chain}/reopen"): _SERVICE,
}
