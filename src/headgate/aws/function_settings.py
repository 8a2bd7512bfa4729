"""Function settings: what the environment of a Lambda says beside the settings of the product."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from headgate.errors import SettingsError
from headgate.settings import Settings

# What holds where the environment says nothing else. Only /tmp can be written to in a Lambda.
_DEFAULTS: Final = {
    "HEADGATE_HOME": "/tmp/headgate",
    "HEADGATE_STORE_BACKEND": "dynamodb",
    "HEADGATE_LOG_FORMAT": "json",
}
_REGION: Final = "AWS_REGION"


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


def read_function_settings(environ: Mapping[str, str]) -> FunctionSettings:
    """Return what the environment says. Raises `SettingsError` that names every variable which is missing."""
    fields = FunctionSettings.__struct_fields__
    required = fields[: len(fields) - len(FunctionSettings.__struct_defaults__)]
    given = {name: environ[name.upper()] for name in fields if environ.get(name.upper())}
    missing = [name.upper() for name in required if name not in given]
    if missing:
        raise SettingsError(f"variables {', '.join(missing)}: a function needs them; deploy/terraform sets them")
    return FunctionSettings(**given)


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Return the settings of the product as they are in a Lambda. Raises `SettingsError`."""
    region = {"HEADGATE_STORE_AWS_REGION": environ[_REGION]} if environ.get(_REGION) else {}
    return Settings.load({**_DEFAULTS, **region, **environ}, None, {})
