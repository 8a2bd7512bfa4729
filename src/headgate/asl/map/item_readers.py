"""Item readers: read the items of a distributed Map from blobs, as its ItemReader configures.

A bucket is a folder of the store's blobs: the object `Key` of the bucket `Bucket` is the blob `buckets/<Bucket>/<Key>`.
A definition from Step Functions runs unchanged, and cannot read any other blob of the store.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import unquote_plus

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.asl.errors import ITEM_READER_FAILED, StateError
from headgate.asl.expressions.scope import Json, Member
from headgate.errors import NotFoundError, UserError
from headgate.store.blobs.folder import Blobs

_BUCKETS: Final = "buckets"
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")
_GET: Final = "s3:getObject"
_LIST: Final = "s3:listObjectsV2"
_DELIMITERS: Final = {"COMMA": ",", "PIPE": "|", "SEMICOLON": ";", "SPACE": " ", "TAB": "\t"}
_GZIP: Final = b"\x1f\x8b"
# Raises the csv module's own limit; the size limit of an item applies instead.
_FIELD_CHARS_MAX: Final = 16 * 1024 * 1024


class ItemReading(Struct, frozen=True, omit_defaults=True):
    """An evaluated ItemReader."""

    resource: str
    parameters: Mapping[str, Json]
    config: Mapping[str, Json] = {}
    # 0 is unlimited.
    items_max: int = 0

    @property
    def source(self) -> str:
        """`$$.Map.Item.Source`: the bucket of a listing, otherwise the object."""
        bucket = self.parameters.get("Bucket", "")
        if self.resource.endswith(_LIST) and not self._is_flat:
            return f"S3://{bucket}"
        return f"S3://{bucket}/{self.parameters.get('Key', self.parameters.get('Prefix', ''))}"

    @property
    def _is_flat(self) -> bool:
        return self.config.get("Transformation") == "LOAD_AND_FLATTEN"


def blob_name(bucket: str, key: str) -> str:
    """Return the blob name of an object in a bucket. Raises `UserError` for a name that would leave the bucket."""
    if not _BUCKET.fullmatch(bucket):
        raise UserError(f"bucket {bucket[:80]!r}: use letters, digits and _ . -, beginning with a letter or digit")
    if any(part in (".", "..") for part in key.split("/")) or key.startswith("/"):
        raise UserError(f"key {key[:80]!r}: it must stay inside its bucket, without '..' and not beginning with '/'")
    return f"{_BUCKETS}/{bucket}/{key}"


def read_all(blobs: Blobs, reading: ItemReading) -> Iterator[Json]:
    """Yield the items. Raises `StateError` States.ItemReaderFailed if an object is missing or invalid."""
    found = _listed(blobs, reading) if reading.resource.endswith(_LIST) else _loaded(blobs, reading)
    return itertools.islice(found, reading.items_max or None)


def _listed(blobs: Blobs, reading: ItemReading) -> Iterator[Json]:
    bucket, prefix = _named(reading, "Bucket"), str(reading.parameters.get("Prefix", ""))
    try:
        start = blob_name(bucket, "")
        keys = [name.removeprefix(start) for name in blobs.list(blob_name(bucket, prefix))]
    except UserError as exc:
        raise _failed(f"bucket {bucket}, prefix {prefix}: {exc}") from exc
    if reading.config.get("Transformation") != "LOAD_AND_FLATTEN":
        # S3 also lists size, time and ETag; blobs only have names.
        return ({"Key": key} for key in keys)
    return (item for key in keys for item in _items(blobs, reading, bucket, key))


def _loaded(blobs: Blobs, reading: ItemReading) -> Iterator[Json]:
    if not reading.resource.endswith(_GET):
        raise _failed(f"resource {reading.resource}: items are read with {_GET} or {_LIST}")
    return _items(blobs, reading, _named(reading, "Bucket"), _named(reading, "Key"))


def _items(blobs: Blobs, reading: ItemReading, bucket: str, key: str) -> Iterator[Json]:
    config = reading.config
    kind = config.get("InputType")
    if config.get("ManifestType") == "ATHENA_DATA":
        return _athena(blobs, reading, bucket, key)
    if kind == "MANIFEST" or config.get("ManifestType") == "S3_INVENTORY":
        return _inventory(blobs, bucket, key)
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise _failed(f"InputType {kind}: {', '.join((*_READERS, 'MANIFEST'))} can be read")
    return _with_object_errors(reader(_content(blobs, bucket, key), config), bucket, key)


def _with_object_errors(items: Iterator[Json], bucket: str, key: str) -> Iterator[Json]:
    """Yield the items; an error in one names its object."""
    try:
        yield from items
    except (csv.Error, msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as exc:
        raise _failed(f"object {key} of bucket {bucket}: {exc}") from exc


def _content(blobs: Blobs, bucket: str, key: str) -> bytes:
    try:
        content = blobs.get(blob_name(bucket, key))
    except NotFoundError as exc:
        raise _failed(f"object {key} of bucket {bucket}: there is no blob {_BUCKETS}/{bucket}/{key}") from exc
    except UserError as exc:
        raise _failed(f"object {key} of bucket {bucket}: {exc}") from exc
    try:
        return gzip.decompress(content) if content.startswith(_GZIP) else content
    except (OSError, EOFError, zlib.error) as exc:
        raise _failed(f"object {key} of bucket {bucket}: it is compressed, and cannot be expanded ({exc})") from exc


# File formats.


def _csv(content: bytes, config: Mapping[str, Json]) -> Iterator[Json]:
    delimiter = _DELIMITERS[config.get("CSVDelimiter", "COMMA")]
    rows = _rows(content, delimiter)
    headers = config.get("CSVHeaders")
    header = headers if config.get("CSVHeaderLocation") == "GIVEN" and headers else next(rows, [])
    for row in rows:
        # As documented: extra cells are dropped, missing cells are empty.
        yield dict(itertools.zip_longest(header, row[: len(header)], fillvalue=""))


def _rows(content: bytes, delimiter: str) -> Iterator[list[str]]:
    csv.field_size_limit(_FIELD_CHARS_MAX)
    lines = io.StringIO(content.decode("utf-8-sig"), newline="")
    yield from (row for row in csv.reader(lines, delimiter=delimiter) if row)


def _json(content: bytes, config: Mapping[str, Json]) -> Iterator[Json]:
    found = msgspec.json.decode(content)
    pointer = config.get("ItemsPointer")
    if pointer:
        found = _pointed(found, pointer)
    yield from items_in(found, "the JSON file")


def _pointed(document: Json, pointer: str) -> Json:
    """Resolve a JSON pointer (RFC 6901). Raises `ValueError`."""
    found = document
    for part in pointer.removeprefix("/").split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(name)] if isinstance(found, list) else found[name]
        except (KeyError, IndexError, TypeError, ValueError) as exc:
            raise ValueError(f"ItemsPointer {pointer}: there is no {name!r}") from exc
    return found


def _lines(content: bytes, _: Mapping[str, Json]) -> Iterator[Json]:
    return (msgspec.json.decode(line) for line in content.split(b"\n") if line.strip())


_READERS: Final[Mapping[str, Callable[[bytes, Mapping[str, Json]], Iterator[Json]]]] = {
    "CSV": _csv,
    "JSON": _json,
    "JSONL": _lines,
}


# Manifests.


def _inventory(blobs: Blobs, bucket: str, key: str) -> Iterator[Json]:
    """Yield the rows of an S3 inventory; its manifest lists the files and the columns."""
    try:
        manifest = typed_decode.from_json(_content(blobs, bucket, key), _Inventory)
    except msgspec.DecodeError as exc:
        raise _failed(f"manifest {key} of bucket {bucket}: {exc}") from exc
    if manifest.file_format != "CSV":
        raise _failed(f"manifest {key} of bucket {bucket}: its files are {manifest.file_format}; CSV can be read")
    columns = [column.strip() for column in manifest.file_schema.split(",")]
    held = manifest.destination_bucket.rpartition(":")[2] or bucket
    for file in manifest.files:
        rows = _with_object_errors(_rows(_content(blobs, held, file.key), ","), held, file.key)
        for row in rows:
            item = dict(zip(columns, row, strict=False))
            if "Key" in item:
                item["Key"] = unquote_plus(item["Key"])
            yield item


def _athena(blobs: Blobs, reading: ItemReading, bucket: str, key: str) -> Iterator[Json]:
    """Yield the items of all files in the manifest of an Athena UNLOAD query, one URI per line."""
    plain = msgspec.structs.replace(
        reading, config={name: part for name, part in reading.config.items() if name != "ManifestType"}
    )
    for line in _content(blobs, bucket, key).decode(errors="replace").split():
        scheme, _, rest = line.strip('"').partition("://")
        held, _, name = rest.partition("/")
        if scheme.lower() != "s3" or not name:
            raise _failed(f"manifest {key} of bucket {bucket}: {line!r} is no s3://bucket/key")
        yield from _items(blobs, plain, held, name)


class _InventoryFile(Struct, frozen=True):
    key: str


class _Inventory(Struct, frozen=True, rename="camel"):
    files: list[_InventoryFile]
    file_format: str = "CSV"
    file_schema: str = "Bucket, Key"
    destination_bucket: str = ""


def items_in(found: Json, what: str) -> Iterable[Json]:
    """Return the items of a list, or the members of an object. Raises `ValueError` for anything else."""
    if isinstance(found, list):
        return found
    if isinstance(found, dict):
        return [Member(Key=name, Value=value) for name, value in found.items()]
    raise ValueError(f"{what} must be an array or an object, not {type(found).__name__}")


def _named(reading: ItemReading, name: str) -> str:
    value = reading.parameters.get(name)
    if not isinstance(value, str) or not value:
        raise _failed(f"the ItemReader must name a {name}, not {value!r}")
    return value


def _failed(cause: str) -> StateError:
    return StateError(ITEM_READER_FAILED, cause)
