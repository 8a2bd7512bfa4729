"""Names of Airflow: those of the task SDK in Airflow 3, and those of Airflow 2."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async

try:
    from airflow.sdk import BaseHook, BaseOperator, BaseSensorOperator
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowSensorTimeout,
        AirflowSkipException,
    )
except ImportError:
    from airflow.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowSensorTimeout,
        AirflowSkipException,
    )
    from airflow.hooks.base import BaseHook
    from airflow.models.baseoperator import BaseOperator
    from airflow.sensors.base import BaseSensorOperator

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "BaseHook",
    "BaseOperator",
    "BaseSensorOperator",
    "connection_in_trigger",
]


async def connection_in_trigger(conn_id: str) -> Any:  # noqa: ANN401 - a connection of Airflow 2 or 3
    """Return a connection without blocking the event loop of the triggerer."""
    if hasattr(BaseHook, "aget_connection"):
        return await BaseHook.aget_connection(conn_id)
    return await sync_to_async(BaseHook.get_connection)(conn_id)
