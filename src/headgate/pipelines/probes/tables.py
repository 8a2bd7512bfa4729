"""Table probes: the last commit of a Delta table and the current snapshot of an Iceberg table, in a local folder.

Only metadata is read, never data files.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from headgate.errors import DefinitionError
from headgate.file_roots import FileRoots
from headgate.pipelines.definition.model import Json
from headgate.pipelines.enums import FailureCategory
from headgate.pipelines.probes.errors import ProbeFailedError
from headgate.pipelines.probes.extras import library
from headgate.pipelines.probes.local_paths import allowed_path, check_allowed
from headgate.pipelines.probes.model import DeltaProbe, IcebergProbe, Sighting

DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
_LOG: Final = "_delta_log"
_METADATA: Final = ".metadata.json"
_NUMBER: Final = re.compile(r"v?(\d+)")


class TableLooks:
    """Runs table probes. Safe to use from many threads."""

    def __init__(self, files: FileRoots) -> None:
        self._files = files

    def delta(self, probe: DeltaProbe) -> Sighting:
        """Return version, time and rows of a Delta table. Without a table, only that it is missing."""
        deltalake = library("deltalake", DELTA)
        folder = self._folder(probe.path)
        log = folder / _LOG
        if not log.is_dir():
            return Sighting({"exists": False})
        check_allowed(log.resolve(), str(log), self._files)
        try:
            table = deltalake.DeltaTable(str(folder), without_files=False)
            at_ms = table.history(1)[0]["timestamp"]
            rows, files = _delta_rows(table)
            version = table.version()
        except (deltalake.exceptions.DeltaError, OSError) as exc:
            raise ProbeFailedError(f"table {folder}: {exc}", FailureCategory.TRANSIENT) from exc
        return Sighting(
            {
                "exists": True,
                "value": version,
                "version": version,
                "committed_at": _iso(at_ms),
                "files": files,
                # Writers may leave out statistics; the number of rows is then unknown.
                **({} if rows is None else {"rows": rows}),
            }
        )

    def delta_columns(self, probe: DeltaProbe) -> Sighting:
        """Return the types of the columns of a Delta table by name. Without a table, only that it is missing."""
        deltalake = library("deltalake", DELTA)
        folder = self._folder(probe.path)
        log = folder / _LOG
        if not log.is_dir():
            return Sighting({"exists": False})
        check_allowed(log.resolve(), str(log), self._files)
        try:
            fields = deltalake.DeltaTable(str(folder)).schema().fields
        except (deltalake.exceptions.DeltaError, OSError) as exc:
            raise ProbeFailedError(f"table {folder}: {exc}", FailureCategory.TRANSIENT) from exc
        columns: dict[str, Json] = {each.name: str(getattr(each.type, "type", each.type)) for each in fields}
        return Sighting({"exists": True, "columns": columns})

    def iceberg_columns(self, probe: IcebergProbe) -> Sighting:
        """Return the types of the columns of an Iceberg table by name. Without a table, only that it is missing."""
        table = self._iceberg_table(probe)
        if table is None:
            return Sighting({"exists": False})
        columns: dict[str, Json] = {each.name: str(each.field_type) for each in table.schema().fields}
        return Sighting({"exists": True, "columns": columns})

    def iceberg(self, probe: IcebergProbe) -> Sighting:
        """Return snapshot, time and rows of an Iceberg table. Without a table, only that it is missing."""
        table = self._iceberg_table(probe)
        if table is None:
            return Sighting({"exists": False})
        snapshot = table.current_snapshot()
        if snapshot is None:
            return Sighting({"exists": True, "snapshots": 0})
        summary: dict[str, str] = {} if snapshot.summary is None else snapshot.summary.additional_properties
        seen: dict[str, Json] = {
            "exists": True,
            # As text: 64 bits are more than JSON numbers keep everywhere.
            "value": str(snapshot.snapshot_id),
            "snapshot_id": str(snapshot.snapshot_id),
            "committed_at": _iso(snapshot.timestamp_ms),
            "snapshots": len(table.metadata.snapshots),
        }
        if "total-records" in summary:
            seen["rows"] = int(summary["total-records"])
        return Sighting(seen)

    def _iceberg_table(self, probe: IcebergProbe) -> Any:  # noqa: ANN401 - a table of pyiceberg
        static = library("pyiceberg.table", ICEBERG).StaticTable
        path = self._folder(probe.path)
        metadata = path if path.is_file() else _newest_metadata(path / "metadata")
        if metadata is None:
            return None
        check_allowed(metadata.resolve(), str(metadata), self._files)
        try:
            return static.from_metadata(metadata.as_uri(), {"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"})
        except (ValueError, OSError) as exc:
            raise ProbeFailedError(f"table {path}: {exc}", FailureCategory.TRANSIENT) from exc

    def _folder(self, given: str) -> Path:
        if "://" in given:
            raise DefinitionError(f"path {given[:80]}: use a local path")
        return allowed_path(given, self._files)


def _delta_rows(table: Any) -> tuple[int | None, int]:  # noqa: ANN401 - a table of deltalake
    actions = table.get_add_actions(flatten=True)
    files = actions.num_rows
    if not files:
        return 0, 0
    if "num_records" not in actions.schema.names:
        return None, files
    counts = [each.as_py() for each in actions.column("num_records")]
    return (None, files) if None in counts else (sum(counts), files)


def _newest_metadata(folder: Path) -> Path | None:
    """Return the metadata file with the highest number: 00003-….metadata.json, or v3.metadata.json."""
    if not folder.is_dir():
        return None
    found = [path for path in folder.iterdir() if path.name.endswith(_METADATA)]
    return max(found, key=lambda path: (_number(path), path.name), default=None)


def _number(path: Path) -> int:
    match = _NUMBER.match(path.name)
    return int(match.group(1)) if match is not None else -1


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()
