"""The page of metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from docs.generator.declared_metrics import declared_metrics
from docs.generator.markdown import NOTE, cell
from headgate import embedded_metrics
from headgate.checks.metrics import SERIES as CHECK_SERIES
from headgate.metric_series import Series
from headgate.serve.execution_metrics import (
    COUNTED_MAX,
    COUNTED_MAX_DYNAMODB,
    PROCESS_SERIES,
    REFRESHED_EVERY_SECONDS,
    STORE_SERIES,
)
from headgate.serve.fanout_metrics import SERIES as FANOUT_SERIES
from headgate.serve.incident_metrics import INCIDENTS_EVERY_SECONDS
from headgate.serve.incident_metrics import SERIES as INCIDENT_SERIES
from headgate.serve.metrics import CACHE_SERIES
from headgate.serve.pipeline_metrics import SERIES
from headgate.store.stats import COUNTERS as STORE_COUNTERS


def _series_rows(series: Sequence[Series]) -> list[str]:
    return [
        "| Series | Type | Labels | For |",
        "|---|---|---|---|",
        *(
            f"| `{each.name}{'_total' if each.kind == 'counter' else ''}` | {each.kind} "
            f"| {', '.join(f'`{label}`' for label in each.labels)} | {cell(each.help)} |"
            for each in series
        ),
    ]


# Where modules declare metrics themselves, with the section of the page.
_SECTIONS: Final[Mapping[str, str]] = {
    "health/metrics.py": "Health",
    "auth/failed_logins.py": "Requests",
    "serve/http/access_log.py": "Requests",
    "serve/http/limits/caller_limits.py": "Requests",
    "serve/http/limits/load_shedder.py": "Requests",
    "serve/metrics.py": "Server",
    "serve/intake/client.py": "Server",
    "serve/processes/supervisor.py": "Server",
    "notify/metrics.py": "Alerts",
    "pipelines/probes/metrics.py": "Probes",
}
_STORE: Final = [
    Series(f"headgate_store_{name}", "counter", (), f"Store {name} since the start of the process.")
    for name in STORE_COUNTERS
]
_VERSION: Final = Series("headgate_info", "gauge", ("version",), "The version that runs; the value is 1.")
_HEALTH: Final = """\
The names are those of the state store's specification. `owner_team`, `signal_type` and `table` have a bounded number of
values; further ones are counted as `other`. `dynamodb_…` measures calls to the store, SQLite included.
"""


def metrics_page() -> str:
    """Return the page of metrics. A module with metrics that has no section is an error: add it to `_SECTIONS`."""
    declared: dict[str, list[Series]] = {title: [] for title in _SECTIONS.values()}
    for module, found in declared_metrics().items():
        declared[_SECTIONS[module]] += found
    declared["Server"] += [*CACHE_SERIES.values(), *_STORE, _VERSION]
    return "\n".join(
        [
            "# Metrics",
            "",
            NOTE,
            "The server exports them at `/metrics`, in the Prometheus format. Alarms on them are in",
            "`deploy/prometheus/pipeline-rules.yml`. No label names a pipeline, because there may be very many:",
            "`headgate run ls` and `headgate expect ls` name them. Gauges are read every 15",
            "seconds. Counters and histograms start at 0 with the server.",
            "",
            "## Pipelines",
            "",
            *_series_rows(SERIES),
            "",
            "## Checks",
            "",
            "No label names a check: `headgate check ls` lists them. Each server counts the checks that it ran.",
            "",
            *_series_rows(CHECK_SERIES),
            "",
            "## Fan-outs",
            "",
            "The server reads them from the store every 15 seconds, for all workers: with several servers take the",
            "largest, not the sum. Counters start at 0 with the server. Alarms on them are in",
            "`deploy/prometheus/fanout-rules.yml`. No label is the id of a fan-out: `headgate fanout ls` lists them.",
            "",
            *_series_rows(FANOUT_SERIES),
            "",
            "## Incidents",
            "",
            f"Counted every {INCIDENTS_EVERY_SECONDS:.0f} seconds; the same on every server of a store.",
            "",
            *_series_rows(INCIDENT_SERIES),
            "",
            "## Executions, turns and activities",
            "",
            "The server exports them for the workflows that it runs itself, and each `headgate worker` with",
            "`--metrics` at its own address: sum over both. Labels name workflows and activities of apps, 200 of each",
            "at most; further ones are counted as `other`. No label is the id of an execution.",
            "",
            *_series_rows(PROCESS_SERIES),
            "",
            "## Pending work",
            "",
            "The server alone exports it, for all workers of the store. Counts come from indexes, every",
            f"{REFRESHED_EVERY_SECONDS:.0f} seconds, up to {COUNTED_MAX:,} entries ({COUNTED_MAX_DYNAMODB:,} on",
            "DynamoDB, which bills each).",
            "",
            *_series_rows(STORE_SERIES),
            "",
            "## Health",
            "",
            _HEALTH,
            *_series_rows(declared["Health"]),
            "",
            "## Probes",
            "",
            *_series_rows(declared["Probes"]),
            "",
            "## Alerts",
            "",
            *_series_rows(declared["Alerts"]),
            "",
            "## Requests",
            "",
            *_series_rows(declared["Requests"]),
            "",
            "## Server",
            "",
            "Beside them, `/metrics` has the series `process_…` and `python_info` of the Prometheus client, and one",
            "that ends in `_created`, the time of its start, for most counters and histograms.",
            "",
            *_series_rows(declared["Server"]),
            "",
            "## CloudWatch",
            "",
            "Functions write these in the embedded metric format if the Terraform variable `custom_metrics` is set,",
            f"in the namespace `{embedded_metrics.NAMESPACE}`. A value is counted in every set of dimensions.",
            f"A scheduled function always writes `{embedded_metrics.COMPLETED}`, in the namespace",
            f"`{embedded_metrics.FUNCTIONS_NAMESPACE}` with the dimension `function`, when it has completed.",
            "",
            "| Metric | Unit | Dimensions |",
            "|---|---|---|",
            *(
                f"| `{each.name}` | {each.unit} | {_dimension_sets(each)} |"
                for each in embedded_metrics.METRICS.values()
            ),
            "",
        ]
    )


def _dimension_sets(metric: embedded_metrics.CloudWatchMetric) -> str:
    return "; ".join(", ".join(f"`{name}`" for name in names) or "none" for names in metric.dimensions)
