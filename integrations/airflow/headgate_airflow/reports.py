"""Reports: callbacks of a task that report its runs to Headgate as OpenLineage events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from headgate_airflow.airflow_names import BaseHook
from headgate_airflow.events import Datasets, RunEventType, TaskInstance, run_event
from headgate_airflow.hook import DEFAULT_CONN_ID, server_of
from headgate_airflow.server import AddressError, RequestRefusedError, ServerUnavailableError

Callback = Callable[[Any], None]
_log = logging.getLogger(__name__)


def run_reports(
    *,
    outputs: Sequence[str | tuple[str, str]],
    inputs: Sequence[str | tuple[str, str]] = (),
    conn_id: str = DEFAULT_CONN_ID,
    namespace: str = "airflow",
) -> dict[str, Callback]:
    """Return the callbacks that report the runs of a task: `PythonOperator(..., **run_reports(outputs=[URN]))`.

    Datasets are URNs, or pairs of an OpenLineage namespace and name. A try that fails and is retried is reported as
    such and decides nothing; the last one decides. Callbacks never fail the task: a report that the server does not
    accept within 30 seconds is logged as an error.
    """
    datasets = Datasets(tuple(inputs), tuple(outputs))

    def reporting(kind: RunEventType) -> Callback:
        def report(context: Any) -> None:  # noqa: ANN401 - the context of Airflow
            _report(kind, context, datasets, conn_id, namespace)

        return report

    return {
        "on_execute_callback": reporting(RunEventType.START),
        "on_retry_callback": reporting(RunEventType.RUNNING),
        "on_success_callback": reporting(RunEventType.COMPLETE),
        "on_failure_callback": reporting(RunEventType.FAIL),
    }


def _report(kind: RunEventType, context: Any, datasets: Datasets, conn_id: str, namespace: str) -> None:  # noqa: ANN401
    found = context["ti"]
    task = TaskInstance(
        found.dag_id,
        found.task_id,
        found.run_id,
        found.map_index,
        context.get("data_interval_start"),
        context.get("data_interval_end"),
    )
    is_start = kind is RunEventType.START
    at = (found.start_date if is_start else found.end_date) or datetime.now(UTC)
    error = None if is_start or kind is RunEventType.COMPLETE else context.get("exception") or "the task failed"
    event = run_event(kind, task, datasets, at, namespace=namespace, error=error)
    try:
        server_of(BaseHook.get_connection(conn_id)).report(event)
    except (AddressError, RequestRefusedError, ServerUnavailableError) as exc:
        _log.error("run of %s was not reported to Headgate as %s: %s", task.job_name, kind, exc)
        return
    _log.info("run of %s was reported to Headgate as %s", task.job_name, kind)
