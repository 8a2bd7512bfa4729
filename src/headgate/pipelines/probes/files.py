"""File probes: files and objects that match a pattern, through fsspec.

Local files are below the allowed folders, with links resolved. Objects in S3 are listed with the client that Headgate
uses for AWS itself, so that region, endpoint and credentials are those of the settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Final

from headgate.errors import DefinitionError
from headgate.file_roots import FileRoots
from headgate.pipelines.definition.model import Json
from headgate.pipelines.enums import FailureCategory
from headgate.pipelines.probes.errors import ProbeFailedError
from headgate.pipelines.probes.extras import library
from headgate.pipelines.probes.local_paths import allowed_path, check_allowed
from headgate.pipelines.probes.model import FilesProbe, Sighting
from headgate.triggers.aws.clients import AwsClients, aws_call

EXTRA: Final = "files"
S3: Final = "s3://"
# More matches than this are refused: a probe is for a partition, not for a lake.
MATCHES_MAX: Final = 10_000
_DEPTH_MAX: Final = 12
_MAGIC: Final = re.compile(r"[*?\[]")


class FileLooks:
    """Runs file probes. Safe to use from many threads."""

    def __init__(
        self,
        files: FileRoots,
        aws: Callable[[], AwsClients] | None = None,
        own_objects: tuple[str, str] | None = None,
    ) -> None:
        """`own_objects` is the bucket and key prefix of Headgate's own payloads, which probes must not read."""
        self._files = files
        self._aws = aws
        self._own_objects = own_objects

    def look(self, probe: FilesProbe, timeout_seconds: float) -> Sighting:
        """Return number, size and times of the matches. Raises `ProbeFailedError` and `DefinitionError`."""
        fsspec = library("fsspec", EXTRA)
        is_s3 = probe.path.startswith(S3)
        if "://" in probe.path and not is_s3:
            raise DefinitionError(f"path {probe.path[:80]}: use a local path or {S3}bucket/key")
        try:
            if is_s3:
                system, pattern = self._s3(fsspec, probe.path, timeout_seconds), probe.path.removeprefix(S3)
                found = _matches(system, pattern)
            else:
                system = fsspec.filesystem("file", skip_instance_cache=True)
                found = self._local(system, probe.path)
            folders = {str(PurePosixPath(name).parent) for name in found}
            marked = [folder for folder in folders if probe.marker and system.exists(f"{folder}/{probe.marker}")]
        except PermissionError as exc:
            raise ProbeFailedError(f"{probe.path}: {exc.strerror or exc}", FailureCategory.PERMANENT) from exc
        except OSError as exc:
            raise ProbeFailedError(f"{probe.path}: {exc.strerror or exc}", FailureCategory.TRANSIENT) from exc
        return Sighting(_summary(found, probe, is_complete=bool(folders) and len(marked) == len(folders)))

    def _local(self, system: Any, given: str) -> dict[str, dict[str, Any]]:  # noqa: ANN401
        parts = Path(given).parts
        fixed = next((index for index, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
        base = allowed_path(str(Path(*parts[:fixed])) if fixed else ".", self._files)
        found = _matches(system, str(base.joinpath(*parts[fixed:])))
        for name in found:
            check_allowed(Path(name).resolve(), name, self._files)
        return found

    def _s3(self, fsspec: Any, path: str, timeout_seconds: float) -> Any:  # noqa: ANN401
        if self._aws is None:
            raise DefinitionError(f"path {path[:80]}: there is no S3 here")
        bucket, _, key = path.removeprefix(S3).partition("/")
        if not bucket or _MAGIC.search(bucket):
            raise DefinitionError(f"path {path[:80]}: name the bucket")
        own = self._own_objects
        fixed = _MAGIC.split(key)[0]
        if own is not None and bucket == own[0] and (fixed.startswith(own[1]) or own[1].startswith(fixed)):
            raise DefinitionError(f"path {path[:80]} is among Headgate's own objects; use another bucket or prefix")
        from headgate.pipelines.probes.s3_objects import s3_filesystem

        client = self._aws().client("s3", read_seconds=timeout_seconds)
        return s3_filesystem(fsspec, client, MATCHES_MAX)


def _matches(system: Any, pattern: str) -> dict[str, dict[str, Any]]:  # noqa: ANN401
    """Return the files that match a pattern, by path."""
    with aws_call(pattern):
        if _MAGIC.search(pattern):
            found: dict[str, dict[str, Any]] = system.glob(pattern, maxdepth=_DEPTH_MAX, detail=True)
        else:
            try:
                info = system.info(pattern)
            except FileNotFoundError:
                return {}
            found = {pattern: info}
    files = {name: info for name, info in found.items() if info["type"] == "file"}
    if len(files) > MATCHES_MAX:
        raise ProbeFailedError(f"{len(files)} files match; narrow the path", FailureCategory.PERMANENT)
    return files


def _summary(found: dict[str, dict[str, Any]], probe: FilesProbe, *, is_complete: bool) -> dict[str, Json]:
    times = sorted(_modified(info) for info in found.values())
    seen: dict[str, Json] = {
        "value": len(found),
        "count": len(found),
        "bytes": sum(int(info["size"] or 0) for info in found.values()),
        "smallest_bytes": min((int(info["size"] or 0) for info in found.values()), default=0),
    }
    if times:
        seen |= {"oldest": times[0].isoformat(), "newest": times[-1].isoformat()}
    if probe.marker is not None:
        seen["complete"] = is_complete
    return seen


def _modified(info: dict[str, Any]) -> datetime:
    at = info.get("LastModified", info.get("mtime"))
    return at if isinstance(at, datetime) else datetime.fromtimestamp(float(at or 0), UTC)
