"""Event types of deadlines, the watchdog, stuck executions, operators' decisions and alert delivery."""

from __future__ import annotations

from typing import Final

from headgate.pipelines.events.event_types import EventType, Scope, inform, note, page, warn
from headgate.pipelines.events.names import EventName as E

_DEADLINES: Final = (
    warn(
        E.SLA_WARNING,
        "{pipeline} {schedule} {date}: it may miss its deadline {deadline} ({status})",
        "not started: look at its sensors; running: it may still be done in time",
        "deadline",
        "status",
    ),
    page(
        E.SLA_BREACH,
        "{pipeline} {schedule} {date}: it missed its deadline {deadline} ({status})",
        "not started: look at its sensors and its trigger; running: tell who waits for it",
        "deadline",
        "status",
        resolves=(E.SLA_WARNING,),
    ),
    inform(
        E.SLA_MET,
        "{pipeline} {schedule} {date}: done before its deadline {deadline}",
        "",
        "deadline",
        resolves=(E.SLA_WARNING, E.RELATIVE_SLA_WARNING),
    ),
    warn(
        E.EVALUATION_SLA_WARNING,
        "{pipeline} {schedule} {date}: it may not be evaluated by {deadline}",
        "'headgate period why PIPELINE' says what it waits for",
        "deadline",
    ),
    page(
        E.EVALUATION_SLA_BREACH,
        "{pipeline} {schedule} {date}: it was not ready by {deadline}",
        "'headgate period why PIPELINE' says what it waits for",
        "deadline",
        resolves=(E.EVALUATION_SLA_WARNING,),
    ),
    warn(
        E.RELATIVE_SLA_WARNING,
        "{pipeline} {schedule} {date}: it may take longer than allowed since its data came; until {deadline}",
        "see how far the job is",
        "deadline",
    ),
    page(
        E.RELATIVE_SLA_BREACH,
        "{pipeline} {schedule} {date}: it takes longer than allowed since its data came; by {deadline}",
        "see how far the job is, and tell who waits for it",
        "deadline",
        resolves=(E.RELATIVE_SLA_WARNING,),
    ),
    page(
        E.SCHEDULE_MISSED,
        "{pipeline} {schedule} {date}: it was due and nothing began",
        "see whether the server ran then; start it by hand or with a backfill",
    ),
    page(
        E.IRREGULAR_SCHEDULE_MISSED,
        "{pipeline} {schedule} {date}: it was due on this date of its own and nothing began",
        "see whether the server ran then; start it by hand or with a backfill",
    ),
    page(
        E.SENSOR_DEADLINE_EXPIRED,
        "{pipeline} {schedule} {date}: the sensor it begins with did not come by {deadline}",
        "see who should have sent it; request a rerun when it is there",
        "deadline",
    ),
    note(E.EXPECTATION_JUDGED, "{pipeline} {schedule} {date}: {kind} is {verdict}", "kind", "verdict"),
)

_WATCHDOG: Final = (
    page(
        E.RUN_STUCK,
        "{pipeline} {schedule} {date}: run {run_id} has been {status} since {since}",
        "see what it waits for; cancel it if nothing comes of it",
        "run_id",
        "status",
        "since",
    ),
    page(
        E.SFN_TIMEOUT,
        "{pipeline} {schedule} {date}: it holds its lock longer than an execution may last",
        "the execution is gone or hangs; ask for a rerun",
    ),
    warn(
        E.TRIGGER_RECOVERED,
        "{pipeline} {schedule} {date}: its sensor had come and nothing began; it was begun now",
        "see why it was not noticed when it came",
    ),
    warn(
        E.WATCHDOG_RETRIGGER,
        "{pipeline} {schedule} {date}: a failed run that may be tried again was",
        "see why its own retry did not begin",
    ),
    page(
        E.WATCHDOG_DEGRADED,
        "checks of the watchdog failed: {checks}",
        "their findings are missing until they work; look at the watchdog's log",
        "checks",
        scope=Scope.INSTALLATION,
    ),
    page(
        E.WATCHDOG_SILENT,
        "the watchdog has been silent since {since}",
        "missed runs and deadlines are not detected; the server restarts it, and 'headgate doctor' shows its state",
        "since",
        scope=Scope.INSTALLATION,
    ),
    inform(
        E.WATCHDOG_RECOVERED,
        "the watchdog works again",
        "",
        scope=Scope.INSTALLATION,
        resolves=(E.WATCHDOG_SILENT, E.WATCHDOG_DEGRADED),
    ),
    page(
        E.SERVER_SILENT,
        "the server has been silent since {since}",
        "no run is started or evaluated; check its process and machine, and start it again with 'headgate up'",
        "since",
        scope=Scope.INSTALLATION,
    ),
    inform(E.SERVER_RECOVERED, "the server works again", "", scope=Scope.INSTALLATION, resolves=(E.SERVER_SILENT,)),
)

_EXECUTIONS: Final = (
    page(
        E.EXECUTION_STUCK,
        "execution {execution_id} of workflow {workflow} is stuck: {error}",
        "fix its code, then let it go on with 'headgate execution redrive ID'",
        "execution_id",
        "workflow",
        "error",
        scope=Scope.INSTALLATION,
    ),
    note(
        E.EXECUTION_WENT_ON,
        "execution {execution_id} is no longer stuck, it is {status}",
        "execution_id",
        "status",
        scope=Scope.INSTALLATION,
        resolves=(E.EXECUTION_STUCK,),
    ),
)

_FANOUTS: Final = (
    warn(
        E.FANOUT_STALLED,
        "fan-out {fanout} makes no progress: {reason}",
        "'headgate fanout stuck ID' lists its stuck chunks; start a worker with 'headgate chunk work' if there is none",
        "fanout",
        "reason",
        scope=Scope.INSTALLATION,
    ),
    note(
        E.FANOUT_WENT_ON,
        "fan-out {fanout} makes progress again, or is paused or cancelled",
        "fanout",
        scope=Scope.INSTALLATION,
        resolves=(E.FANOUT_STALLED,),
    ),
    warn(
        E.FANOUT_FAILING,
        "fan-out {fanout} is failing: {reason}",
        "'headgate fanout errors ID' groups the errors; pause it, fix the cause and redrive the failed chunks",
        "fanout",
        "reason",
        scope=Scope.INSTALLATION,
    ),
    warn(
        E.FANOUT_FAILED,
        "fan-out {fanout} ended as {status}: {reason}",
        "'headgate fanout errors ID' groups the errors; fix the cause and run 'headgate fanout redrive ID --all'",
        "fanout",
        "status",
        "reason",
        scope=Scope.INSTALLATION,
    ),
    note(
        E.FANOUT_ENDED,
        "fan-out {fanout} ended as {status}: {completed} of {chunks} chunks completed, {failed} failed",
        "fanout",
        "status",
        "completed",
        "chunks",
        "failed",
        scope=Scope.INSTALLATION,
        resolves=(E.FANOUT_STALLED, E.FANOUT_FAILING, E.FANOUT_FAILED),
    ),
)

_DECISIONS: Final = (
    note(
        E.PIPELINE_DEFINED,
        "{pipeline}: version {version} of its definition is in force",
        "version",
        scope=Scope.PIPELINE,
        resolves=(E.PIPELINE_CONFIG_INVALID,),
    ),
    inform(
        E.PIPELINE_DELETED,
        "{pipeline}: taken away by {by}; its runs and versions stay",
        "",
        "by",
        scope=Scope.PIPELINE,
        resolves=(E.PIPELINE_CONFIG_INVALID, E.CIRCUIT_BREAKER_TRIPPED),
    ),
    warn(
        E.PIPELINE_REPLACED,
        "{pipeline}: the file {file} replaced version {replaced}, which {by} made over the API",
        "'headgate pipeline diff PIPELINE' shows the difference; put what is missing into the file",
        "file",
        "replaced",
        "by",
        scope=Scope.PIPELINE,
    ),
    page(
        E.PIPELINE_CONFIG_INVALID,
        "{pipeline}: its definition cannot be used: {error}",
        "fix it; the last good one, if there is any, stays in force",
        "error",
        scope=Scope.PIPELINE,
    ),
    inform(E.PIPELINE_PAUSED, "{pipeline}: paused by {by}: {reason}", "", "by", "reason", scope=Scope.PIPELINE),
    inform(E.PIPELINE_RESUMED, "{pipeline}: resumed by {by}", "", "by", scope=Scope.PIPELINE),
    page(
        E.CIRCUIT_BREAKER_TRIPPED,
        "{pipeline}: stopped after {failures} failures in a row",
        "fix the cause, then resume it: nothing begins before",
        "failures",
        scope=Scope.PIPELINE,
    ),
    inform(
        E.CIRCUIT_BREAKER_RESET,
        "{pipeline}: it begins again after its failures ({by})",
        "",
        "by",
        scope=Scope.PIPELINE,
        resolves=(E.CIRCUIT_BREAKER_TRIPPED,),
    ),
    warn(E.RUN_HELD, "{pipeline} {schedule} {date}: held by {by}: {reason}", "approve or skip it", "by", "reason"),
    note(E.RUN_APPROVED, "{pipeline} {schedule} {date}: approved by {by}", "by", resolves=(E.RUN_HELD,)),
    inform(E.RUN_SKIPPED, "{pipeline} {schedule} {date}: skipped by {by}: {reason}", "", "by", "reason"),
    warn(
        E.RUN_FORCED,
        "{pipeline} {schedule} {date}: begun by {by} though it is not ready: {reason}",
        "see whether what comes of it is good enough",
        "by",
        "reason",
    ),
    inform(E.RUN_CANCELLED, "{pipeline} {schedule} {date}: cancelled by {by}: {reason}", "", "by", "reason"),
    warn(
        E.DATASET_HOLD,
        "{pipeline} {schedule} {date}: held because {dataset} is not known to be healthy",
        "it goes on by itself when the dataset recovers; 'headgate period why PIPELINE' says why and who can override",
        "dataset",
    ),
    note(E.DATASET_RELEASED, "{pipeline} {schedule} {date}: {dataset} is healthy again, it goes on", "dataset",
         resolves=(E.DATASET_HOLD,)),
)  # fmt: skip

_ALERTS: Final = (
    page(
        E.ALERT_CHANNEL_FAILED,
        "alerts do not reach the channel {channel}: {error}",
        "fix the channel, try it with 'headgate alert test', then redeliver its dead letters",
        "channel",
        "error",
        scope=Scope.INSTALLATION,
    ),
    note(E.ALERT_CHANNEL_RECOVERED, "alerts reach the channel {channel} again", "channel", scope=Scope.INSTALLATION),
)

WATCH_EVENT_TYPES: Final[tuple[EventType, ...]] = (
    *_DEADLINES,
    *_WATCHDOG,
    *_EXECUTIONS,
    *_FANOUTS,
    *_DECISIONS,
    *_ALERTS,
)
