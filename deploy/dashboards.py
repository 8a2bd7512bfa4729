"""Write the Grafana dashboards of deploy/grafana: `python deploy/dashboards.py`.

Gauges about the store are the same on every server, so that the largest is shown, not the sum.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

FOLDER: Final = Path(__file__).parent / "grafana"
JOB: Final = 'job=~"$job"'
RATE: Final = "$__rate_interval"
WIDTH: Final = 24
HEIGHT: Final = 8
SIGNALS, INCIDENTS, EVIDENCE = (
    "observability-signal-state",
    "observability-incident-index",
    "observability-evidence-cache",
)


class Query(NamedTuple):
    """A query and the legend of its series."""

    expr: str
    legend: str = ""


class Panel(NamedTuple):
    """A panel: a chart, or a number if it is a stat. `about` is shown on hover."""

    title: str
    queries: Sequence[Query]
    unit: str = "short"
    about: str = ""
    width: int = 8
    is_stat: bool = False
    is_stacked: bool = False
    # Above it, a stat is red.
    limit: float | None = None


class Row(NamedTuple):
    """A row of panels under a title."""

    title: str
    panels: Sequence[Panel]


class Dashboard(NamedTuple):
    """A dashboard, written to NAME.json."""

    name: str
    title: str
    about: str
    rows: Sequence[Row]


def selector(series: str, matchers: str = "") -> str:
    return f"{series}{{{', '.join(part for part in (JOB, matchers) if part)}}}"


def rate(series: str, by: str = "", matchers: str = "", *, over: str = RATE) -> str:
    """Return the rate of a counter a second, summed over servers."""
    return f"{aggregated('sum', by)}(rate({selector(series, matchers)}[{over}]))"


def increase(series: str, by: str = "", matchers: str = "", *, over: str) -> str:
    return f"{aggregated('sum', by)}(increase({selector(series, matchers)}[{over}]))"


def largest(series: str, by: str = "", matchers: str = "") -> str:
    """Return a gauge that is the same on every server."""
    return f"{aggregated('max', by)}({selector(series, matchers)})"


def total(series: str, by: str = "", matchers: str = "") -> str:
    """Return a gauge that every process has for itself."""
    return f"{aggregated('sum', by)}({selector(series, matchers)})"


def quantile(share: float, series: str, by: str = "", matchers: str = "") -> str:
    """Return a quantile of a histogram."""
    labels = f"le, {by}" if by else "le"
    buckets = f"rate({selector(f'{series}_bucket', matchers)}[{RATE}])"
    return f"histogram_quantile({share}, sum by ({labels}) ({buckets}))"


def aggregated(function: str, by: str) -> str:
    return f"{function} by ({by}) " if by else f"{function} "


def quantiles(series: str, *, matchers: str = "") -> list[Query]:
    return [Query(quantile(share, series, matchers=matchers), f"p{share * 100:g}") for share in (0.5, 0.95, 0.99)]


def tables_matcher(table: str) -> str:
    """Match the calls of a table, also in a transaction with others."""
    return f'table=~".*{table}.*"'


_HEALTH: Final = Dashboard(
    "health",
    "Headgate: dataset health",
    "The state store: throughput, latency, capacity, and what the signals and incidents say.",
    [
        Row(
            "Throughput",
            [
                Panel(
                    "Reads",
                    [Query(rate("headgate_store_reads_total") + " + " + rate("headgate_store_queries_total"))],
                    "reqps",
                    "Gets and queries of the store a second.",
                    is_stat=True,
                ),
                Panel(
                    "Writes",
                    [Query(rate("headgate_store_writes_total") + " + " + rate("headgate_store_transactions_total"))],
                    "reqps",
                    "Writes and transactions of the store a second.",
                    is_stat=True,
                ),
                Panel(
                    "Cache hits",
                    [
                        Query(
                            rate("cache_lookups_total", matchers='cache_layer="l1", outcome="hit"')
                            + " / "
                            + rate("cache_lookups_total", matchers='cache_layer="l1"')
                        )
                    ],
                    "percentunit",
                    "Share of lookups that the memory of a process answered.",
                    is_stat=True,
                ),
            ],
        ),
        Row(
            "Latency (p99)",
            [
                Panel(
                    title,
                    [
                        Query(quantile(0.99, "dynamodb_read_latency", matchers=tables_matcher(table)), "reads"),
                        Query(quantile(0.99, "dynamodb_write_latency", matchers=tables_matcher(table)), "writes"),
                    ],
                    "ms",
                    f"Calls on {table}, on SQLite as on DynamoDB.",
                )
                for title, table in (("Signal state", SIGNALS), ("Incidents", INCIDENTS), ("Evidence", EVIDENCE))
            ],
        ),
        Row(
            "Capacity and throttling",
            [
                Panel(
                    "Consumed write units by table",
                    [Query(rate("dynamodb_consumed_capacity_total", "table", 'capacity_type="WRITE"'), "{{table}}")],
                    about="DynamoDB alone: SQLite has no capacity.",
                    is_stacked=True,
                ),
                Panel(
                    "Throttled attempts",
                    [Query(increase("dynamodb_throttle_count_total", "table", over=RATE), "{{table}}")],
                    about="It should be 0.",
                ),
                Panel(
                    "Failed store calls",
                    [Query(rate("dynamodb_errors_total", "code"), "{{code}}")],
                    "reqps",
                    "Calls of the store that failed or were refused, by error.",
                ),
            ],
        ),
        Row(
            "Datasets",
            [
                Panel(
                    "Open incidents",
                    [Query(largest("headgate_incidents_open", "severity"), "{{severity}}")],
                    about="Open and acknowledged incidents.",
                    width=6,
                    is_stat=True,
                ),
                Panel(
                    "Signal updates a minute",
                    [Query("60 * " + rate("signal_state_updates_total"))],
                    width=6,
                    is_stat=True,
                ),
                Panel(
                    "State transitions an hour",
                    [
                        Query(
                            increase("signal_state_state_transitions_total", "from_state, to_state", over="1h"),
                            "{{from_state}} to {{to_state}}",
                        )
                    ],
                    width=6,
                ),
                Panel(
                    "Time to resolution",
                    [Query(quantile(0.5, "incident_mttr", "severity"), "{{severity}} median")],
                    "s",
                    "Of incidents that were resolved in the interval.",
                    width=6,
                ),
                Panel(
                    "Checks by result",
                    [Query(rate("headgate_check_runs_total", "state"), "{{state}}")],
                    "ops",
                    is_stacked=True,
                ),
                Panel(
                    "Checks that are late",
                    [Query(largest("headgate_check_lag_seconds"), "the longest")],
                    "s",
                    "How long the check that waits longest has been due.",
                ),
                Panel(
                    "OpenLineage inbox",
                    [Query(largest("openlineage_oldest_event_seconds"), "oldest event")],
                    "s",
                    "Age of the oldest event that has not been processed.",
                ),
            ],
        ),
    ],
)
_PIPELINES: Final = Dashboard(
    "pipelines",
    "Headgate: pipelines",
    "Runs, readiness, deadlines and pools. `headgate run ls` and `headgate expect ls` name the pipelines.",
    [
        Row(
            "Now",
            [
                Panel(
                    "Open runs",
                    [Query(largest("headgate_pipeline_open_runs", "status"), "{{status}}")],
                    width=6,
                    is_stat=True,
                ),
                Panel(
                    "Oldest pending run",
                    [Query(largest("headgate_pipeline_oldest_pending_seconds"))],
                    "s",
                    "Age of the oldest run whose job has not started.",
                    width=6,
                    is_stat=True,
                ),
                Panel(
                    "Missed expectations (24 h)",
                    [Query(increase("headgate_pipeline_expectations_total", matchers='verdict="MISSED"', over="24h"))],
                    about="Verdicts of the watchdog: late, absent or not started.",
                    width=6,
                    is_stat=True,
                    limit=1,
                ),
                Panel(
                    "Failed runs (24 h)",
                    [Query(increase("headgate_pipeline_runs_total", matchers='status="FAILED"', over="24h"))],
                    width=6,
                    is_stat=True,
                    limit=1,
                ),
            ],
        ),
        Row(
            "Runs",
            [
                Panel(
                    "Runs by status",
                    [Query(increase("headgate_pipeline_runs_total", "status", over="1h"), "{{status}}")],
                    about="Runs that took a status in the hour before.",
                    width=12,
                ),
                Panel(
                    "Warnings and critical events",
                    [Query(increase("headgate_pipeline_events_total", "event", over="1h"), "{{event}}")],
                    width=12,
                    is_stacked=True,
                ),
                Panel(
                    "Wait for readiness",
                    quantiles("headgate_pipeline_readiness_wait_seconds"),
                    "s",
                    "From the creation of a run to its trigger.",
                ),
                Panel(
                    "Start of jobs",
                    [
                        Query(quantile(0.95, "headgate_pipeline_start_seconds"), "arrival to start, p95"),
                        Query(quantile(0.95, "headgate_pipeline_trigger_seconds"), "trigger, p95"),
                    ],
                    "s",
                    "From the arrival of the sensor to the started job, and the share of the trigger.",
                ),
                Panel("Duration of jobs", quantiles("headgate_pipeline_job_seconds"), "s"),
            ],
        ),
        Row(
            "Deadlines and pools",
            [
                Panel(
                    "Verdicts",
                    [
                        Query(
                            increase("headgate_pipeline_expectations_total", "kind, verdict", over="1h"),
                            "{{kind}} {{verdict}}",
                        )
                    ],
                ),
                Panel(
                    "Deadlines met with less than a minute left, or missed",
                    [
                        Query(
                            increase("headgate_pipeline_sla_margin_seconds_bucket", matchers='le="60.0"', over="24h")
                            + " / "
                            + increase("headgate_pipeline_sla_margin_seconds_bucket", matchers='le="+Inf"', over="24h"),
                            "share of 24 h",
                        )
                    ],
                    "percentunit",
                ),
                Panel(
                    "Pools",
                    [
                        Query(largest("headgate_pool_slots_used", "pool"), "{{pool}} used"),
                        Query(largest("headgate_pool_slots", "pool"), "{{pool}} slots"),
                        Query(largest("headgate_pool_waiting", "pool"), "{{pool}} waiting"),
                    ],
                ),
                Panel(
                    "Alerts",
                    [
                        Query(increase("headgate_alerts_sent_total", "channel", over="1h"), "{{channel}} sent"),
                        Query(increase("headgate_alerts_failed_total", "channel", over="1h"), "{{channel}} failed"),
                    ],
                    about="Messages to channels in the hour before.",
                ),
                Panel(
                    "Probes by verdict",
                    [Query(rate("headgate_probe_looks_total", "verdict"), "{{verdict}}")],
                    "ops",
                ),
                Panel("Duration of probes", quantiles("headgate_probe_seconds"), "s"),
            ],
        ),
    ],
)
_EXECUTIONS: Final = Dashboard(
    "executions",
    "Headgate: executions",
    "Workflows and activities: what waits, how fast turns are, and what fails.",
    [
        Row(
            "Now",
            [
                Panel(
                    "Open executions",
                    [Query(largest("headgate_executions_open", "status"), "{{status}}")],
                    width=6,
                    is_stat=True,
                ),
                Panel("Live workers", [Query(largest("headgate_workers_live"))], width=6, is_stat=True),
                Panel(
                    "Overdue timers",
                    [Query(largest("headgate_timers_overdue_seconds"))],
                    "s",
                    "How long the first timer that has not fired has been due.",
                    width=6,
                    is_stat=True,
                    limit=60,
                ),
                Panel(
                    "Oldest message",
                    [Query(largest("headgate_inbox_age_seconds"))],
                    "s",
                    "Age of the oldest message that no turn has consumed.",
                    width=6,
                    is_stat=True,
                    limit=60,
                ),
            ],
        ),
        Row(
            "Executions",
            [
                Panel(
                    "Ended by status",
                    [Query(rate("headgate_executions_closed_total", "status"), "{{status}}")],
                    "ops",
                    is_stacked=True,
                ),
                Panel("Start to first turn", quantiles("headgate_execution_start_seconds"), "s"),
                Panel(
                    "Turns (p95)",
                    [
                        Query(quantile(0.95, "headgate_turn_seconds"), "computed"),
                        Query(quantile(0.95, "headgate_turn_commit_seconds"), "committed"),
                        Query(quantile(0.95, "headgate_timer_lag_seconds"), "timer to turn"),
                    ],
                    "s",
                ),
                Panel(
                    "Failed and conflicting turns",
                    [
                        Query(rate("headgate_turn_failures_total", "workflow"), "{{workflow}} failed"),
                        Query(rate("headgate_turn_conflicts_total"), "overtaken"),
                    ],
                    "ops",
                    "After five failed turns in a row the execution is STUCK.",
                ),
                Panel(
                    "Replays",
                    [
                        Query(rate("headgate_replays_total"), "replays"),
                        Query(rate("headgate_execution_cache_hits_total"), "turns in memory"),
                        Query(rate("headgate_execution_cache_evictions_total"), "evictions"),
                    ],
                    "ops",
                ),
                Panel(
                    "Messages that wait", [Query(largest("headgate_inbox_messages"), "messages")], about="In inboxes."
                ),
            ],
        ),
        Row(
            "Activities",
            [
                Panel(
                    "Attempts by outcome",
                    [Query(rate("headgate_activity_attempts_total", "outcome"), "{{outcome}}")],
                    "ops",
                    is_stacked=True,
                ),
                Panel(
                    "Wait and run (p95)",
                    [
                        Query(quantile(0.95, "headgate_activity_wait_seconds"), "wait"),
                        Query(quantile(0.95, "headgate_activity_run_seconds"), "run"),
                    ],
                    "s",
                ),
                Panel(
                    "Queues",
                    [Query(largest("headgate_activity_queue_depth", "queue"), "{{queue}}")],
                    about="Activities that wait for a worker.",
                ),
                Panel(
                    "Longest wait in a queue",
                    [Query(largest("headgate_activity_queue_age_seconds", "queue"), "{{queue}}")],
                    "s",
                ),
                Panel(
                    "Worker slots",
                    [
                        Query(total("headgate_worker_slots_used", "kind"), "{{kind}} used"),
                        Query(total("headgate_worker_slots", "kind"), "{{kind}} slots"),
                    ],
                ),
                Panel(
                    "Lost claims and leases",
                    [
                        Query(rate("headgate_activity_claims_lost_total"), "claims"),
                        Query(rate("headgate_worker_leases_lost_total"), "leases"),
                    ],
                    "ops",
                ),
            ],
        ),
    ],
)
_FANOUTS: Final = Dashboard(
    "fanouts",
    "Headgate: fan-outs",
    "Chunks of all fan-outs. `headgate fanout ls` names them.",
    [
        Row(
            "Now",
            [
                Panel(
                    "Open fan-outs",
                    [Query(largest("headgate_fanouts_open", "status"), "{{status}}")],
                    width=6,
                    is_stat=True,
                ),
                Panel("Stalled", [Query(largest("headgate_fanouts_stalled"))], width=6, is_stat=True, limit=1),
                Panel("Stuck chunks", [Query(largest("headgate_fanout_stuck_chunks"))], width=6, is_stat=True, limit=1),
                Panel(
                    "Largest share of failures",
                    [Query(largest("headgate_fanout_failure_share"))],
                    "percentunit",
                    "Of the open fan-out with the largest, from ten ended chunks on.",
                    width=6,
                    is_stat=True,
                    limit=0.1,
                ),
            ],
        ),
        Row(
            "Chunks",
            [
                Panel(
                    "Chunks of open fan-outs by state",
                    [Query(largest("headgate_fanout_chunks", "state"), "{{state}}")],
                    width=12,
                    is_stacked=True,
                ),
                Panel(
                    "Ended chunks",
                    [
                        Query(
                            f"max by (outcome) (rate({selector('headgate_fanout_chunks_ended_total')}[{RATE}]))",
                            "{{outcome}}",
                        )
                    ],
                    "ops",
                    width=12,
                    is_stacked=True,
                ),
                Panel(
                    "Attempts",
                    [
                        Query(f"max (rate({selector(f'headgate_fanout_{name}_total')}[{RATE}]))", name)
                        for name in ("attempts", "retries", "lost")
                    ],
                    "ops",
                    "Lost: the worker vanished.",
                    width=12,
                ),
                Panel(
                    "Chunk workers",
                    [
                        Query(largest("headgate_chunk_workers", "lane"), "{{lane}} workers"),
                        Query(largest("headgate_chunk_worker_processes", "lane"), "{{lane}} processes"),
                    ],
                    width=12,
                ),
            ],
        ),
    ],
)
_SERVER: Final = Dashboard(
    "server",
    "Headgate: server",
    "Requests, load, store and background work of the server processes.",
    [
        Row(
            "Requests",
            [
                Panel(
                    "Requests by status",
                    [Query(rate("headgate_http_requests_total", "status"), "{{status}}")],
                    "reqps",
                    is_stacked=True,
                ),
                Panel("Latency", quantiles("headgate_http_request_seconds"), "s"),
                Panel(
                    "Refused under load",
                    [Query(rate("headgate_http_requests_shed_total", "priority"), "{{priority}}")],
                    "reqps",
                ),
            ],
        ),
        Row(
            "Store",
            [
                Panel(
                    "Database file",
                    [
                        Query(largest("headgate_store_bytes"), "file"),
                        Query(largest("headgate_store_free_bytes"), "free pages"),
                        Query(largest("headgate_store_wal_bytes"), "WAL"),
                    ],
                    "bytes",
                    "SQLite alone.",
                ),
                Panel(
                    "Rows by table",
                    [Query(largest("headgate_store_rows", "table"), "{{table}}")],
                    about="Counted up to 100,000.",
                ),
                Panel(
                    "Commits and conflicts",
                    [
                        Query(rate("headgate_store_commits_total"), "commits"),
                        Query(rate("headgate_store_conflicts_total"), "conflicts"),
                        Query(rate("headgate_store_retries_total"), "retries"),
                    ],
                    "ops",
                ),
            ],
        ),
        Row(
            "Processes",
            [
                Panel(
                    "Heartbeats",
                    [Query(largest("headgate_heartbeat_age_seconds", "process"), "{{process}}")],
                    "s",
                    "Seconds since the last heartbeat of a process.",
                ),
                Panel(
                    "CPU",
                    [Query(rate("process_cpu_seconds_total", "instance"), "{{instance}} cores")],
                    width=4,
                ),
                Panel(
                    "Memory",
                    [Query(largest("process_resident_memory_bytes", "instance"), "{{instance}}")],
                    "bytes",
                    width=4,
                ),
                Panel(
                    "Failed background work",
                    [Query(increase("headgate_sweep_failures_total", "what", over="1h"), "{{what}}")],
                    about="Sweeps that failed in the hour before.",
                ),
            ],
        ),
    ],
)
DASHBOARDS: Final = (_PIPELINES, _EXECUTIONS, _FANOUTS, _HEALTH, _SERVER)
_VARIABLES: Final = {
    "list": [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
        {
            "name": "job",
            "type": "query",
            "label": "Job",
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "definition": "label_values(headgate_info, job)",
            "query": {"query": "label_values(headgate_info, job)", "refId": "job"},
            "includeAll": True,
            "allValue": ".*",
            "multi": True,
            "current": {"text": ["All"], "value": ["$__all"]},
            "refresh": 2,
        },
    ]
}


def dashboard_json(dashboard: Dashboard) -> str:
    """Return a dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row in dashboard.rows:
        place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": row.title, "gridPos": place, "collapsed": False})
        x, y = 0, y + 1
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y = 0, y + HEIGHT
            place = {"x": x, "y": y, "w": panel.width, "h": HEIGHT}
            panels.append({"id": len(panels) + 1, "gridPos": place, **_panel(panel)})
            x += panel.width
        y += HEIGHT
    content = {
        "uid": f"headgate-{dashboard.name}",
        "title": dashboard.title,
        "description": dashboard.about,
        "tags": ["headgate"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "templating": _VARIABLES,
        "links": [
            {"type": "dashboards", "title": "Headgate", "tags": ["headgate"], "asDropdown": True, "keepTime": True}
        ],
        "panels": panels,
    }
    return json.dumps(content, indent=1) + "\n"


def _panel(panel: Panel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    targets = [
        {"refId": chr(ord("A") + number), "datasource": source, "expr": each.expr, "legendFormat": each.legend}
        for number, each in enumerate(panel.queries)
    ]
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    common = {"title": panel.title, "description": panel.about, "datasource": source, "targets": targets}
    if panel.is_stat:
        steps: list[dict[str, Any]] = [{"color": "green" if panel.limit is not None else "text", "value": None}]
        if panel.limit is not None:
            steps.append({"color": "red", "value": panel.limit})
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": "auto", "colorMode": "value"}
        return {**common, "type": "stat", "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options}
    stacking = {"mode": "normal" if panel.is_stacked else "none", "group": "A"}
    defaults["custom"] = {"lineWidth": 1, "fillOpacity": 30 if panel.is_stacked else 5, "stacking": stacking}
    options = {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return {**common, "type": "timeseries", "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options}


def main() -> None:
    """Write the dashboards."""
    for each in DASHBOARDS:
        (FOLDER / f"{each.name}.json").write_text(dashboard_json(each))


if __name__ == "__main__":
    main()
