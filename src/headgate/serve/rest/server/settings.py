"""Settings API: the settings in effect on this server, each with its source. Secrets are never returned."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Final

from litestar.types import ControllerRouterHandler
from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.auth.rules import Reach, Rule
from headgate.serve.http.operations import AccessPolicy, Answer, Call, NoQuery, Operation, operation_routes
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.setting_sources import SettingOrigin
from headgate.settings import Secret, Settings, SettingSource, SourcedTable, describe
from headgate.telemetry import without_url_secrets

HIDDEN: Final = "(hidden)"
_READ: Final = Rule(Permission.SETTINGS_READ, Reach.NONE)
_DEFAULT: Final = SettingSource(SettingOrigin.DEFAULT, "default")

Shown = bool | int | float | str | list[str] | dict[str, str] | None


class SettingView(Struct, frozen=True, kw_only=True):
    """A setting in effect. `is_hidden`: it is set, and its value is a secret."""

    name: str
    value: Shown
    origin: SettingOrigin
    # File and line, variable or flag.
    source: str
    default: str
    variable: str
    description: str
    is_hidden: bool = False


class StoreView(Struct, frozen=True, kw_only=True):
    """The store of the server: the database file, or the region and prefix of the tables."""

    backend: str
    place: str


class SettingList(Struct, frozen=True, kw_only=True):
    """The build of the server, its home and store, and every setting by name."""

    version: str
    python: str
    home: str
    store: StoreView
    settings: list[SettingView]


def settings_routes(settings: Settings, pool: WorkPool, *, version: str) -> list[ControllerRouterHandler]:
    """Return the routes of the settings, for administrators."""
    view = setting_list(settings, version)

    def ls(_call: Call[None, NoQuery]) -> Answer:
        return Answer(view)

    operations = [Operation("GET", "/settings", "List the settings in effect", ls, {200: SettingList}, rule=_READ)]
    policy = AccessPolicy(Permission.SETTINGS_READ, Permission.SETTINGS_READ)
    return operation_routes(operations, pool, policy, namespace="server.")


def setting_list(settings: Settings, version: str) -> SettingList:
    """Return the settings as they are shown."""
    found = []
    for about in describe():
        value = settings.value_of(about.key)
        is_hidden = _is_secret(value)
        source = settings.sources.get(about.key, _DEFAULT)
        found.append(
            SettingView(
                name=about.key,
                value=HIDDEN if is_hidden else _shown(value),
                origin=source.origin,
                source=source.place,
                default=about.default,
                variable=about.variable,
                description=about.description,
                is_hidden=is_hidden,
            )
        )
    store = settings.store
    place = str(settings.home) if store.backend == "sqlite" else f"{store.aws_region} {store.table_prefix}".strip()
    return SettingList(
        version=version,
        python=platform.python_version(),
        home=str(settings.home),
        store=StoreView(backend=store.backend, place=place),
        settings=found,
    )


def _is_secret(value: object) -> bool:
    # The table of alert channels holds webhook addresses, which authenticate by themselves.
    return isinstance(value, Secret) or (isinstance(value, SourcedTable) and bool(value.value))


def _shown(value: object) -> Shown:
    """Return a setting as JSON, without the passwords of URLs."""
    match value:
        case None | bool() | int() | float():
            return value
        case SourcedTable():
            return {}
        case dict():
            return {str(name): without_url_secrets(str(each)) for name, each in value.items()}
        case list() | tuple() if type(value) in (list, tuple):
            return [without_url_secrets(str(each)) for each in value]
        case Path():
            return str(value)
        case _:
            # An address is a named tuple with a text of its own.
            return without_url_secrets(str(value))
