"""Reports: callbacks of a task and a DAG that report runs to Headgate as OpenLineage events."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from headgate_airflow.airflow_names import BaseHook
from headgate_airflow.events import Datasets, RunEventType, TaskInstance, run_event
from headgate_airflow.hook import DEFAULT_CONN_ID, server_of
from headgate_airflow.server import AddressError, RequestRefusedError, ServerUnavailableError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunReport:
    """A callback of a task: reports one state of its run."""

    kind: RunEventType
    datasets: Datasets
    conn_id: str
    namespace: str

    def __call__(self, context: Any) -> None:  # noqa: ANN401 - the context of Airflow
        """Report the state, at the time of the task instance."""
        found = context["ti"]
        at = found.start_date if self.kind is RunEventType.START else found.end_date
        self.report(context, at or datetime.now(UTC))

    def report(self, context: Any, at: datetime) -> None:  # noqa: ANN401 - the context of Airflow
        """Report the state at a time. An error is logged: a report never fails the task."""
        found = context["ti"]
        interval = (context.get("data_interval_start"), context.get("data_interval_end"))
        task = TaskInstance(found.dag_id, found.task_id, found.run_id, found.map_index, *interval)
        error = None
        if self.kind in (RunEventType.RUNNING, RunEventType.FAIL):
            error = context.get("exception") or "the task failed without an exception; its process may have been killed"
        event = run_event(self.kind, task, self.datasets, at, namespace=self.namespace, error=error)
        try:
            server_of(BaseHook.get_connection(self.conn_id)).report(event)
        except (AddressError, RequestRefusedError, ServerUnavailableError) as exc:
            _log.error("run of %s was not reported to Headgate as %s: %s", task.job_name, self.kind, exc)
        else:
            _log.info("run of %s was reported to Headgate as %s", task.job_name, self.kind)


def run_reports(
    *,
    outputs: Sequence[str | tuple[str, str]],
    inputs: Sequence[str | tuple[str, str]] = (),
    conn_id: str = DEFAULT_CONN_ID,
    namespace: str = "airflow",
) -> dict[str, RunReport]:
    """Return the callbacks that report the runs of a task: `PythonOperator(..., **run_reports(outputs=[URN]))`.

    Datasets are URNs, or pairs of an OpenLineage namespace and name. A try that fails and is retried is reported as
    such and decides nothing; the last one decides. Callbacks never fail the task: a report that the server does not
    accept within 40 seconds is logged as an error.
    """
    datasets = Datasets(tuple(inputs), tuple(outputs))
    kinds = {
        "on_execute_callback": RunEventType.START,
        "on_retry_callback": RunEventType.RUNNING,
        "on_success_callback": RunEventType.COMPLETE,
        "on_failure_callback": RunEventType.FAIL,
    }
    return {name: RunReport(kind, datasets, conn_id, namespace) for name, kind in kinds.items()}


def report_failed_task(context: Any) -> None:  # noqa: ANN401 - the context of Airflow
    """Report the task that failed a DAG run, as `on_failure_callback` of a DAG.

    Airflow 3 calls no callback of a task whose process was killed, for example for want of memory. A task that has
    reported its failure keeps that report.
    """
    task = context.get("task")
    callbacks = getattr(task, "on_failure_callback", None) or []
    for each in callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]:
        if isinstance(each, RunReport):
            # Before any end that the task has reported, so that its error text stays. Airflow 3 does not give the
            # start of the task.
            began_at = getattr(context["ti"], "start_date", None) or context["dag_run"].start_date
            each.report(context, began_at + timedelta(milliseconds=1))
