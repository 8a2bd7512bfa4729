"""Plug-ins: objects that installed packages register under an entry point group.

Names are read from the metadata of installed packages. The code of a plug-in is imported when it is first loaded.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from headgate.errors import SettingsError


@cache
def registered(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name. Raises `SettingsError` if two packages register one name."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise SettingsError(
                f"entry point {point.name!r} of group {group} is registered by {_origin(other)} and by "
                f"{_origin(point)}; uninstall one of them"
            )
    return found


def load(group: str, name: str) -> Any:  # noqa: ANN401 - whatever the package registers
    """Import and return a registered object. Raises `SettingsError` if the import fails."""
    point = registered(group)[name]
    try:
        return point.load()
    except Exception as exc:
        raise SettingsError(
            f"entry point {name!r} of group {group}, registered by {_origin(point)}, cannot be loaded: "
            f"{type(exc).__name__}: {exc}; repair or uninstall the package"
        ) from exc


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
