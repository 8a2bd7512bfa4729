"""Function settings: the environment variables of the Lambdas beyond Headgate's own settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.errors import SettingsError
from headgate.settings import Settings

# Defaults. In a Lambda only /tmp is writable.
_DEFAULTS: Final = {
    "HEADGATE_HOME": "/tmp/headgate",
    "HEADGATE_STORE_BACKEND": "dynamodb",
    "HEADGATE_LOG_FORMAT": "json",
}
_REGION: Final = "AWS_REGION"
# The app of the workflow functions, as module:name. Not a setting of Headgate, which takes it as `--app`.
_APP: Final = "HEADGATE_APP"

S = TypeVar("S", bound=Struct)


class FunctionSettings(Struct, frozen=True, kw_only=True):
    """Settings of the lifecycle functions. Each is an environment variable of the same name in upper case."""

    # The state machine of the lifecycle.
    state_machine_arn: str
    # One-shot schedules for SLA deadlines: the function they invoke, their role and their group.
    sla_monitor_arn: str
    scheduler_role_arn: str
    scheduler_group_name: str
    # The topic for ended periods; empty publishes nothing.
    lifecycle_topic_arn: str = ""
    # The secret with the keyring; without it every sandbox generates its own.
    keys_secret_arn: str = ""
    # The queue for calls of one-shot schedules that EventBridge gives up.
    schedule_failures_arn: str = ""
    # Any text: write the metrics of the state store to the log, from which CloudWatch takes them.
    custom_metrics: str = ""


class AppSettings(Struct, frozen=True, kw_only=True):
    """Settings of the workflow functions. Each is an environment variable of the same name in upper case."""

    # The app to run, as module:name.
    headgate_app: str
    # The queue of turns, and the delay queue with its ARN for schedules.
    turns_queue_url: str
    later_queue_url: str
    later_queue_arn: str
    # A JSON object of queue URLs by task queue.
    activity_queue_urls: str
    # The role and the group of one-shot schedules.
    scheduler_role_arn: str
    scheduler_group_name: str
    keys_secret_arn: str = ""
    schedule_failures_arn: str = ""
    # Any text: write the metrics of the state store to the log, from which CloudWatch takes them.
    custom_metrics: str = ""
    # A JSON object of function ARNs by activity: those that are invoked asynchronously.
    activity_function_arns: str = "{}"

    def activity_queues(self) -> dict[str, str]:
        """Return the queue URLs by task queue. Raises `SettingsError`."""
        return _texts("ACTIVITY_QUEUE_URLS", self.activity_queue_urls, "URLs by task queue")

    def activity_functions(self) -> dict[str, str]:
        """Return the ARNs of functions by activity. Raises `SettingsError`."""
        return _texts("ACTIVITY_FUNCTION_ARNS", self.activity_function_arns, "ARNs by activity")


class FanoutFunctionSettings(Struct, frozen=True, kw_only=True):
    """Settings of the fan-out functions. Each is an environment variable of the same name in upper case."""

    # The app whose package has chunk handlers, as module:name; empty: `fanout.handlers` names all packages.
    headgate_app: str = ""
    keys_secret_arn: str = ""
    # As in `FunctionSettings`.
    custom_metrics: str = ""


class ApiSettings(Struct, frozen=True, kw_only=True):
    """Settings of the HTTP functions. Each is an environment variable of the same name in upper case."""

    # The app whose routes are served and whose workflows can be started, as module:name; empty: none.
    headgate_app: str = ""
    keys_secret_arn: str = ""
    # As in `FunctionSettings`.
    custom_metrics: str = ""


class EventSettings(Struct, frozen=True, kw_only=True):
    """Settings of the event functions. Each is an environment variable of the same name in upper case."""

    # The source of this deployment's events on EventBridge: its own rules skip it.
    event_source: str
    # The bus and the topic that events are published to; empty: none.
    event_bus_name: str = ""
    event_topic_arn: str = ""
    # The queue of events that a target refused.
    failed_events_url: str = ""
    keys_secret_arn: str = ""


def read_function_settings(environ: Mapping[str, str]) -> FunctionSettings:
    """Read the settings from the environment. Raises `SettingsError` with all missing variables."""
    return _read(FunctionSettings, environ)


def read_app_settings(environ: Mapping[str, str]) -> AppSettings:
    """Read the settings from the environment. Raises `SettingsError` with all missing variables."""
    return _read(AppSettings, environ)


def read_fanout_settings(environ: Mapping[str, str]) -> FanoutFunctionSettings:
    """Read the settings from the environment."""
    return _read(FanoutFunctionSettings, environ)


def read_api_settings(environ: Mapping[str, str]) -> ApiSettings:
    """Read the settings from the environment."""
    return _read(ApiSettings, environ)


def read_event_settings(environ: Mapping[str, str]) -> EventSettings:
    """Read the settings from the environment. Raises `SettingsError` with all missing variables."""
    return _read(EventSettings, environ)


def _texts(variable: str, value: str, what: str) -> dict[str, str]:
    try:
        return typed_decode.from_json(value, dict[str, str])
    except msgspec.DecodeError as exc:
        raise SettingsError(
            f"{variable}: {exc}; write a JSON object of {what}, as deploy/terraform/workflows.tf sets it"
        ) from exc


def _read(kind: type[S], environ: Mapping[str, str]) -> S:
    fields = kind.__struct_fields__
    required = fields[: len(fields) - len(kind.__struct_defaults__)]
    values = {name: environ[name.upper()] for name in fields if environ.get(name.upper())}
    missing = [name.upper() for name in required if name not in values]
    if missing:
        raise SettingsError(f"variables {', '.join(missing)}: a function needs them; deploy/terraform sets them")
    return kind(**values)


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Return Headgate's settings, with the defaults of a Lambda. Raises `SettingsError`."""
    region = {"HEADGATE_STORE_AWS_REGION": environ[_REGION]} if environ.get(_REGION) else {}
    product = {name: value for name, value in environ.items() if name != _APP}
    return Settings.load({**_DEFAULTS, **region, **product}, None, {})
