"""Third-party triggers: classes that installed packages register under the entry point group `headgate.triggers`.

The name of the entry point is the `type` of definitions. The class has the class attributes and methods of
`contract.Kind`; its constructor takes `TriggerTools`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from msgspec import Struct

from headgate import plugins
from headgate.clock import Clock
from headgate.errors import SettingsError
from headgate.triggers.contract import TriggerKind
from headgate.triggers.http.client import TriggerHttpClient

GROUP: Final = "headgate.triggers"
_CLASS_ATTRIBUTES: Final = ("name", "config_type", "secret_fields", "is_local")


class TriggerTools(Struct, frozen=True):
    """What Headgate gives a third-party trigger: the clock, and an HTTP client that is guarded against SSRF."""

    clock: Clock
    outbound: TriggerHttpClient


def registered_types() -> tuple[str, ...]:
    """Return the trigger types that installed packages add, without importing them."""
    return tuple(sorted(plugins.registered(GROUP)))


def trigger_class(name: str, *, reserved: Collection[str]) -> type[Any]:
    """Return the class behind a third-party type. Raises `SettingsError` for a built-in name or an unfit object."""
    if name in reserved:
        raise SettingsError(f"entry point {name!r} of group {GROUP}: the type is built in; register another name")
    found: Any = plugins.load(GROUP, name)
    missing = [attribute for attribute in _CLASS_ATTRIBUTES if not hasattr(found, attribute)]
    if missing or not isinstance(found, type):
        lacks = f"lacks {', '.join(missing)}" if missing else "is not a class"
        raise SettingsError(f"entry point {name!r} of group {GROUP}: {found!r} {lacks}; see headgate.triggers.contract")
    trigger: Any = found
    if trigger.name != name:
        raise SettingsError(
            f"entry point {name!r} of group {GROUP}: the class is named {trigger.name!r}; use one name for both"
        )
    return found


def open_triggers(tools: TriggerTools, *, reserved: Collection[str]) -> list[TriggerKind[Any]]:
    """Return every third-party trigger. Raises `SettingsError` as `trigger_class` does."""
    return [trigger_class(name, reserved=reserved)(tools) for name in registered_types()]
