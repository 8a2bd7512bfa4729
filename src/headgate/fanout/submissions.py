"""Fan-out submissions: parses a request or manifest, and opens the source of the items."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from headgate import typed_decode
from headgate.errors import DefinitionError, InvalidPayloadError, NotFoundError
from headgate.fanout.core.splitter import Order
from headgate.fanout.model.queue_urls import URL_CHARS_MAX
from headgate.fanout.model.rows import Policy
from headgate.fanout.model.sources import BytesSource, LinesSource, ListSource, RangeSource, Source, open_input
from headgate.file_roots import FileRoots
from headgate.ids import check_new_path

# Target number of chunks: enough to keep workers busy, few enough to inspect.
CHUNKS_USUAL: Final = 1000
LINES_USUAL: Final = 500
BYTES_USUAL_MIN: Final = 1024 * 1024
# Group of a manifest that names none; `headgate fanout submit` sends the same for other sources.
GROUP_DEFAULT: Final = "default"
MANIFEST_BYTES_MAX: Final = 64 * 1024 * 1024
_HANDLER: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_PATHS: Final = ("lines", "bytes")
_STEM_CHARS_MAX: Final = 100
Name = Annotated[str, Meta(min_length=1, max_length=200)]


class NewFanout(Policy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fan-out to create: the source of its items, the chunk size, and how chunks are run.

    The source is one of `items` (inline), `range` ([from, to], end exclusive), `lines` (of a text file) and `bytes` (of
    any file). Paths are below the project folder or `files.roots` of server and workers; relative ones mean the project
    folder. A `manifest` is the path of a JSON file with the same members; those in the request take precedence, and
    `group` defaults to "default". Without `chunk_size` there are about a thousand chunks, or chunks of 500 lines.
    With `queue_url`, each chunk is a message to that SQS queue, whose consumers run it, and no worker of this server.
    `run_id` defaults to the Idempotency-Key, or to a generated id; a repeated request with the same id creates nothing
    new.
    """

    group: Name
    run_id: Name | None = None
    chunk_size: int | None = None
    handler: str | None = None
    params: dict[str, Any] = {}
    campaign: Name | None = None
    submitted_by: Name | None = None
    items: list[Any] | None = None
    range: tuple[int, int] | None = None
    lines: str | None = None
    bytes: str | None = None
    manifest: str | None = None
    queue_url: Annotated[str, Meta(min_length=1, max_length=URL_CHARS_MAX)] | None = None


class Asked(Struct, frozen=True):
    """A validated submission; the items are not read yet."""

    order: Order
    source: Source
    run_id: str | None


def read_order(content: bytes, files: FileRoots | None) -> Asked:
    """Parse the body of a request. Raises `InvalidPayloadError` or `DefinitionError`.

    Files must be below `files`; None: anywhere.
    """
    given = _object(content, "body")
    if given.get("manifest") is not None:
        given = _with_manifest(given, files)
    return _asked(given, "body", files)


def read_manifest(content: bytes, location: str, files: FileRoots | None) -> Asked:
    """Parse a manifest that was put somewhere instead of being sent with a request. Raises as `read_order` does.

    `location` names it in messages. Relative paths in it mean the project folder.
    """
    given = _object(content, f"manifest {location}")
    if "manifest" in given:
        raise InvalidPayloadError(f"manifest {location}: nested manifests are not supported; inline its content")
    return _asked({"group": GROUP_DEFAULT, **given}, f"manifest {location}", files)


def manifest_id(name: str, version: str) -> str:
    """Return the id of the fan-out of a manifest that names none: of its file name, and of what `version` tells apart.

    A manifest that is found twice is one fan-out; one that is put there again is another.
    """
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", PurePosixPath(name).stem).strip("-.")[:_STEM_CHARS_MAX]
    return f"{stem or 'manifest'}-{hashlib.sha256(version.encode()).hexdigest()[:12]}"


def _asked(given: dict[str, Any], what: str, files: FileRoots | None) -> Asked:
    try:
        new = typed_decode.convert(given, NewFanout)
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(f"{what}: {exc}") from exc
    if new.handler is not None and not _HANDLER.fullmatch(new.handler):
        raise DefinitionError(f"handler {new.handler[:80]!r}: write module:function, such as prices:update")
    check_new_path("group", new.group)
    source = _source(new, files)
    order = Order(
        group=new.group,
        chunk_size=_usual_size(new, source) if new.chunk_size is None else new.chunk_size,
        handler=new.handler,
        params=new.params,
        policy=Policy(**{name: getattr(new, name) for name in Policy.__struct_fields__}),
        queue_url=new.queue_url,
        campaign=new.campaign,
        submitted_by=new.submitted_by,
    )
    return Asked(order, source, new.run_id)


def _object(content: bytes, what: str) -> dict[str, Any]:
    try:
        return typed_decode.from_json(content.strip() or b"{}", dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidPayloadError(f"{what}: {exc}") from exc


def _with_manifest(given: dict[str, Any], files: FileRoots | None) -> dict[str, Any]:
    """Merge a manifest with the request, which takes precedence."""
    path = _path(given["manifest"], "manifest", files)
    try:
        with open_input(path, files) as file:
            content = file.read(MANIFEST_BYTES_MAX + 1)
    except (NotFoundError, OSError) as exc:
        raise InvalidPayloadError(f"manifest {path}: cannot be read ({exc})") from exc
    if len(content) > MANIFEST_BYTES_MAX:
        raise InvalidPayloadError(
            f"manifest {path}: larger than {MANIFEST_BYTES_MAX:,} bytes; name a file of lines in it instead"
        )
    said = _object(content, f"manifest {path}")
    if "manifest" in said:
        raise InvalidPayloadError(f"manifest {path}: nested manifests are not supported; inline its content")
    for name in _PATHS:
        if isinstance(said.get(name), str):
            # Relative to the manifest, wherever the server was started.
            said[name] = str(path.parent / said[name])
    kinds = {name for name in _SOURCES if given.get(name) is not None}
    kept = {name: value for name, value in said.items() if not (kinds and name in _SOURCES)}
    own = {name: value for name, value in given.items() if name != "manifest"}
    try:
        # Validated separately first, so that the error names the manifest.
        typed_decode.convert({"group": "-", **said}, NewFanout)
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(f"manifest {path}: {exc}") from exc
    return {"group": GROUP_DEFAULT, **kept, **own}


def _source(new: NewFanout, files: FileRoots | None) -> Source:
    given = [name for name in _SOURCES if getattr(new, name) is not None]
    if len(given) != 1:
        problem = f"{' and '.join(given)} are set" if given else "none is set"
        raise DefinitionError(f"items: set one of {', '.join(_SOURCES)}; {problem}")
    try:
        return _SOURCES[given[0]](new, files)
    except NotFoundError as exc:
        # The request is at fault, not the URL.
        raise InvalidPayloadError(str(exc)) from exc


def _lines(new: NewFanout, files: FileRoots | None) -> Source:
    return LinesSource(_path(new.lines, "lines", files), files)


def _bytes(new: NewFanout, files: FileRoots | None) -> Source:
    return BytesSource(_path(new.bytes, "bytes", files), files)


def _range(new: NewFanout, _: FileRoots | None) -> Source:
    low, high = new.range or (0, 0)
    return RangeSource(low, high)


_SOURCES: Final[dict[str, Callable[[NewFanout, FileRoots | None], Source]]] = {
    "items": lambda new, _: ListSource(new.items or []),
    "range": _range,
    "lines": _lines,
    "bytes": _bytes,
}


def _path(given: object, what: str, files: FileRoots | None) -> Path:
    """Return the path of an input file; a relative one is below the project folder of the server."""
    if not isinstance(given, str) or not given or "\0" in given:
        raise InvalidPayloadError(f"{what}: must be a file path")
    path = Path(given) if files is None else files.absolute(given)
    if not path.is_absolute():
        raise InvalidPayloadError(
            f"{what} {given!r}: there is no project folder; set project, or give an absolute path"
        )
    return path


def _usual_size(new: NewFanout, source: Source) -> int:
    total = source.total()
    if total is None:
        return LINES_USUAL
    size = max(1, math.ceil(total / CHUNKS_USUAL))
    return max(size, BYTES_USUAL_MIN) if new.bytes is not None else size
