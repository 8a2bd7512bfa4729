"""DAGs of the Airflow soak. `MODE` names a file: "ok", "fails once" or "fails" decides on `load`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from airflow.exceptions import AirflowFailException
from openlineage.client.event_v2 import Dataset

from headgate_airflow.operators import GateOperator
from headgate_airflow.reports import report_failed_task, run_reports
from headgate_airflow.sensors import GateSensor

try:
    from airflow.sdk import DAG
except ImportError:
    from airflow import DAG

try:
    from airflow.providers.standard.operators.python import PythonOperator
except ImportError:
    from airflow.operators.python import PythonOperator

RAW, ORDERS = "urn:dp:shop:raw:v1", "urn:dp:shop:orders:v1"
MODE = Path(os.environ["SHOP_MODE"])
RETRY = {"retries": 1, "retry_delay": 1}


def load(ti: Any = None) -> None:
    mode = MODE.read_text()
    if mode == "fails" or (mode == "fails once" and ti.try_number == 1):
        raise ValueError("orders: column amount is missing")


def write_lake() -> None:
    if MODE.read_text() == "fails":
        raise AirflowFailException("lake: the bucket is read-only")


with DAG("shop", schedule=None, on_failure_callback=report_failed_task):
    (
        GateSensor(task_id="wait", datasets=[RAW], poke_interval=10, timeout=120)
        >> PythonOperator(task_id="load", python_callable=load, **RETRY, **run_reports(inputs=[RAW], outputs=[ORDERS]))
        >> GateOperator(task_id="publish", datasets=[ORDERS], verb="publish")
    )

with DAG("reader", schedule=None):
    # Airflow 3 fails a task that is queued again before the end of its last look is recorded.
    GateSensor(task_id="reschedule", datasets=[ORDERS], poke_interval=10, timeout=600)
    GateSensor(task_id="deferrable", datasets=[ORDERS], poke_interval=2, timeout=600, deferrable=True)

with DAG("held", schedule=None):
    GateOperator(task_id="fails", datasets=[ORDERS], retries=3)
    GateOperator(task_id="skips", datasets=[ORDERS], on_hold="skip")
    GateOperator(task_id="unregistered", datasets=["urn:dp:shop:ordrs:v1"], retries=3)
    GateOperator(task_id="refused", datasets=[ORDERS], conn_id="wrong_key", retries=3)
    GateSensor(task_id="sensor_ends", datasets=[ORDERS], poke_interval=1, timeout=3)
    GateSensor(task_id="deferred_ends", datasets=[ORDERS], poke_interval=1, timeout=3, deferrable=True)
    GateSensor(task_id="soft_fail", datasets=[ORDERS], poke_interval=1, timeout=3, deferrable=True, soft_fail=True)

with DAG("killed", schedule=None, on_failure_callback=report_failed_task):
    PythonOperator(
        task_id="load",
        python_callable=lambda: os.kill(os.getpid(), signal.SIGKILL),
        **run_reports(outputs=["urn:dp:shop:killed:v1"]),
    )

# What Airflow's own OpenLineage provider reports, without a line of Headgate.
with DAG("lake", schedule=None):
    PythonOperator(
        task_id="write",
        python_callable=write_lake,
        inlets=[Dataset(namespace="postgres://db:5432", name="shop.public.orders")],
        outlets=[Dataset(namespace="s3://lake", name="orders")],
    )
