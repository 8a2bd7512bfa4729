"""Function settings: what the environment of a Lambda says beside the settings of the product."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.errors import SettingsError
from headgate.settings import Settings

# What holds where the environment says nothing else. Only /tmp can be written to in a Lambda.
_DEFAULTS: Final = {
    "HEADGATE_HOME": "/tmp/headgate",
    "HEADGATE_STORE_BACKEND": "dynamodb",
    "HEADGATE_LOG_FORMAT": "json",
}
_REGION: Final = "AWS_REGION"
# Which app the functions of workflows run: module:name. No setting of the product, which is told so by `--app`.
_APP: Final = "HEADGATE_APP"

S = TypeVar("S", bound=Struct)


class FunctionSettings(Struct, frozen=True, kw_only=True):
    """What a function needs to know of those around it. Each is a variable of the same name in upper case."""

    # The lifecycle.
    state_machine_arn: str
    # Whom a one-shot schedule calls when an SLA is due, as whom, and in which group schedules are.
    sla_monitor_arn: str
    scheduler_role_arn: str
    scheduler_group_name: str
    # Where it is published that a period has ended; without it, nowhere.
    lifecycle_topic_arn: str = ""
    # A secret that holds a keyring; without it every container has one of its own.
    keys_secret_arn: str = ""


class AppSettings(Struct, frozen=True, kw_only=True):
    """What the functions of workflows need to know. Each is a variable of the same name in upper case."""

    # The app whose workflows and activities they run: module:name.
    headgate_app: str
    # The queues of wakes, and what schedules know the one for later by.
    turns_queue_url: str
    later_queue_url: str
    later_queue_arn: str
    # A JSON object: the queue of activities for each task queue.
    activity_queue_urls: str
    # As whom schedules put wakes into the queue, and in which group they are.
    scheduler_role_arn: str
    scheduler_group_name: str
    keys_secret_arn: str = ""

    def activity_queues(self) -> dict[str, str]:
        """Return the queues of activities by task queue. Raises `SettingsError`."""
        try:
            return typed_decode.from_json(self.activity_queue_urls, dict[str, str])
        except msgspec.DecodeError as exc:
            raise SettingsError(
                f'ACTIVITY_QUEUE_URLS: {exc}; write a JSON object of URLs by task queue, such as {{"default": "https://…"}}'
            ) from exc


def read_function_settings(environ: Mapping[str, str]) -> FunctionSettings:
    """Return what the environment says. Raises `SettingsError` that names every variable which is missing."""
    return _read(FunctionSettings, environ)


def read_app_settings(environ: Mapping[str, str]) -> AppSettings:
    """Return what the environment says. Raises `SettingsError` that names every variable which is missing."""
    return _read(AppSettings, environ)


def _read(kind: type[S], environ: Mapping[str, str]) -> S:
    fields = kind.__struct_fields__
    required = fields[: len(fields) - len(kind.__struct_defaults__)]
    given = {name: environ[name.upper()] for name in fields if environ.get(name.upper())}
    missing = [name.upper() for name in required if name not in given]
    if missing:
        raise SettingsError(f"variables {', '.join(missing)}: a function needs them; deploy/terraform sets them")
    return kind(**given)


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Return the settings of the product as they are in a Lambda. Raises `SettingsError`."""
    region = {"HEADGATE_STORE_AWS_REGION": environ[_REGION]} if environ.get(_REGION) else {}
    product = {name: value for name, value in environ.items() if name != _APP}
    return Settings.load({**_DEFAULTS, **region, **product}, None, {})
