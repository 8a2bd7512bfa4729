"""Hook: the Headgate server of an Airflow connection."""

from __future__ import annotations

from typing import Any

from headgate_airflow.airflow_names import BaseHook
from headgate_airflow.server import (
    AddressError,
    HeadgateServer,
    RequestRefusedError,
    ServerUnavailableError,
    address_of,
)

DEFAULT_CONN_ID = "headgate_default"


class HeadgateHook(BaseHook):
    """The Headgate server of a connection: host, port, schema (http or https), API key as password, `ca` as extra."""

    conn_name_attr = "conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "headgate"
    hook_name = "Headgate"

    def __init__(self, conn_id: str = DEFAULT_CONN_ID) -> None:
        super().__init__()
        self.conn_id = conn_id

    def get_conn(self) -> HeadgateServer:
        """Return the server. Raises `AddressError`."""
        return server_of(self.get_connection(self.conn_id))

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the server answers, for the button of the connection's form."""
        try:
            return True, self.get_conn().status()
        except (AddressError, RequestRefusedError, ServerUnavailableError) as exc:
            return False, str(exc)

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return how the form of a connection shows its fields."""
        return {
            "hidden_fields": ["login"],
            "relabeling": {"password": "API key", "schema": "http or https"},
            "placeholders": {"host": "headgate.example", "extra": '{"ca": "/etc/ssl/headgate.pem"}'},
        }


def server_of(connection: Any, *, retry_seconds: float | None = None) -> HeadgateServer:  # noqa: ANN401 - of Airflow 2 or 3
    """Return the server of a connection. Raises `AddressError`."""
    ca = connection.extra_dejson.get("ca")
    address = address_of(connection.host, connection.port, connection.schema, connection.password, ca)
    return HeadgateServer(address) if retry_seconds is None else HeadgateServer(address, retry_seconds=retry_seconds)
