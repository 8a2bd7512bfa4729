"""Table names: maps catalogue names to physical names, so that a restored table can be swapped in."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Final

from headgate.errors import SettingsError
from headgate.store.catalogue.tables import ALL_TABLES
from headgate.store.model.schema import Table

_PHYSICAL: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}")


class TableNames:
    """Physical table names: `prefix` plus the catalogue name, or the name in `overrides`. Raises `SettingsError`."""

    def __init__(self, prefix: str = "", overrides: Mapping[str, str] | None = None) -> None:
        known = [table.name for table in ALL_TABLES]
        for name in overrides or {}:
            if name not in known:
                nearest = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {nearest[0]!r}?" if nearest else f"it is one of {known}"
                raise SettingsError(f"store.table_names: there is no table {name!r}; {hint}")
        self._physical = {name: (overrides or {}).get(name, prefix + name) for name in known}
        taken: dict[str, str] = {}
        for name, physical in self._physical.items():
            if not _PHYSICAL.fullmatch(physical):
                raise SettingsError(
                    f"store.table_names: {physical!r} is not 3 to 255 letters, digits, '_', '-' and '.'"
                )
            # SQLite ignores case in names and reserves this prefix.
            if physical.lower().startswith("sqlite_"):
                raise SettingsError(f"store.table_names: {physical!r} must not start with 'sqlite_'; choose another")
            other = taken.setdefault(physical.lower(), name)
            if other != name:
                raise SettingsError(f"store.table_names: {name!r} and {other!r} would both be {physical!r}")

    def physical(self, table: Table) -> str:
        """Return the name of `table` in the backend."""
        return self._physical[table.name]
