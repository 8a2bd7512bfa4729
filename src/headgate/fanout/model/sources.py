"""Item sources: where the items of a fan-out come from, and how a chunk reads its items.

A source yields pieces in order from any start, so that an interrupted split can resume. A chunk's row holds enough to
read its items later, on any machine that has the input. A piece of a file records the file's size and modification
time; a file that has changed since is refused.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.durable.model import payload
from headgate.errors import (
    DefinitionError,
    InvalidPayloadError,
    NotFoundError,
    PayloadTooLargeError,
)
from headgate.file_roots import FileRoots

# The limit of a queue message; larger items belong in a file or a blob, with the item as its name.
ITEM_BYTES_MAX: Final = 256 * 1024
_READ_BYTES: Final = 1 << 20
_encode = msgspec.json.Encoder().encode


class Piece(Struct, frozen=True):
    """The items of one chunk from `start` on: inline in `input`, or a reference to them."""

    start: int
    items: int
    input_key: str
    input: str | None = None


class Source(Protocol):
    """A source of items."""

    def describe(self) -> dict[str, Any]:
        """Return the identity of this source, for the fan-out's row and digest."""

    def total(self) -> int | None:
        """Return the number of items if it is known without reading them."""

    def pieces(self, size: int, start: int) -> Iterator[Piece]:
        """Yield the pieces from item `start` on. Raises errors of the input, naming it."""


class ListSource:
    """Items in memory."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def describe(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        for place, item in enumerate(self._items):
            digest.update(_item_json(item, place) + b"\n")
        return {"kind": "list", "items": len(self._items), "sha256": digest.hexdigest()}

    def total(self) -> int | None:
        return len(self._items)

    def pieces(self, size: int, start: int) -> Iterator[Piece]:
        for first in range(start, len(self._items), size):
            yield inline_piece(self._items[first : first + size], first)


class RangeSource:
    """The integers from `low` up to but not including `high`."""

    def __init__(self, low: int, high: int) -> None:
        if high < low:
            raise DefinitionError(f"range {low} to {high}: the end must not be before the start")
        self._low = low
        self._high = high

    def describe(self) -> dict[str, Any]:
        return {"kind": "range", "low": self._low, "high": self._high}

    def total(self) -> int | None:
        return self._high - self._low

    def pieces(self, size: int, start: int) -> Iterator[Piece]:
        for first in range(self._low + start, self._high, size):
            count = min(size, self._high - first)
            yield Piece(first - self._low, count, f"range:{first}-{first + count - 1}")


class LinesSource:
    """The lines of a UTF-8 text file, without line ends. Empty lines count, except one at the end."""

    def __init__(self, path: Path, files: FileRoots | None = None) -> None:
        self._path = path.absolute()
        self._files = files
        self._mark = file_mark(self._path, files)

    def describe(self) -> dict[str, Any]:
        return {"kind": "lines", "path": str(self._path), "mark": self._mark}

    def total(self) -> int | None:
        return None

    def pieces(self, size: int, start: int) -> Iterator[Piece]:
        with open_input(self._path, self._files) as file:
            first = 0
            while True:
                offset = file.tell()
                count = sum(1 for _ in islice(file, size if first >= start else min(size, start - first)))
                if count == 0:
                    return
                if first >= start:
                    where = {"path": str(self._path), "offset": offset, "bytes": file.tell() - offset}
                    yield _in_file("lines", where, self._mark, first, count)
                first += count


class BytesSource:
    """A file in ranges of bytes: each byte is an item, and a chunk has `size` of them."""

    def __init__(self, path: Path, files: FileRoots | None = None) -> None:
        self._path = path.absolute()
        self._files = files
        self._mark = file_mark(self._path, files)

    def describe(self) -> dict[str, Any]:
        return {"kind": "bytes", "path": str(self._path), "mark": self._mark}

    def total(self) -> int | None:
        return self._size_bytes()

    def pieces(self, size: int, start: int) -> Iterator[Piece]:
        end = self._size_bytes()
        for offset in range(start, end, size):
            count = min(size, end - offset)
            where = {"path": str(self._path), "offset": offset, "bytes": count}
            yield _in_file("bytes", where, self._mark, offset, count)

    def _size_bytes(self) -> int:
        with open_input(self._path, self._files) as file:
            return os.fstat(file.fileno()).st_size


def source_of(described: dict[str, Any], files: FileRoots | None) -> Source | None:
    """Return the source of a description, or None for one that cannot be read again.

    Files must be below `files`; None: anywhere. Raises `NotFoundError` for a file that is missing or not allowed.
    """
    match described.get("kind"):
        case "range":
            return RangeSource(int(described["low"]), int(described["high"]))
        case "lines":
            return LinesSource(Path(described["path"]), files)
        case "bytes":
            return BytesSource(Path(described["path"]), files)
    return None


class _FileInput(Struct, frozen=True):
    """A chunk's reference to a range of a file."""

    kind: str
    path: str
    offset: int
    bytes: int
    mark: str


def read_items(
    source: dict[str, Any], piece: Piece, indexes: Sequence[int], files: FileRoots | None = None
) -> list[Any]:
    """Return the items of a chunk at these indexes. An input file must be below `files`; None: anywhere.

    Raises `NotFoundError` if the input is missing or has changed since the split.
    """
    if piece.input is None:
        if source.get("kind") != "range":
            raise NotFoundError(f"input {piece.input_key}: the row has no location; only its own worker can read it")
        low = int(source["low"])
        return [low + place for place in indexes]
    if piece.input.startswith("["):
        items = msgspec.json.decode(piece.input)
    else:
        items = _read_file(typed_decode.from_json(piece.input, _FileInput), files)
    if isinstance(items, bytes):
        return [items]
    return [items[place - piece.start] for place in indexes]


def check_input(input: str | None) -> None:
    """Raise `NotFoundError` if the input of a chunk is missing or has changed since the split."""
    if input is None or input.startswith("["):
        return
    file_range = typed_decode.from_json(input, _FileInput)
    _check_mark(file_range, file_mark(Path(file_range.path)))


def file_mark(path: Path, files: FileRoots | None = None) -> str:
    """Return a file's identity: size and modification time. Raises `NotFoundError` as `open_input` does."""
    with open_input(path, files) as file:
        return _mark(file)


def open_input(path: Path, files: FileRoots | None = None) -> BinaryIO:
    """Open an input file below `files` (None: anywhere). Raises `NotFoundError` if it is missing or not allowed."""
    try:
        if files is not None:
            return files.open(path)
        path.stat()
        # Checked before opening, since opening a pipe blocks.
        if not path.is_file():
            raise NotFoundError(f"input {path}: it is not a file")
        return path.open("rb")
    except OSError as exc:
        raise NotFoundError(f"input {path}: {os.strerror(exc.errno or 0)}; it must be a readable file") from exc


def _mark(file: BinaryIO) -> str:
    found = os.fstat(file.fileno())
    return f"{found.st_size}-{found.st_mtime_ns}"


def _check_mark(file_range: _FileInput, mark: str) -> None:
    if mark != file_range.mark:
        raise NotFoundError(
            f"input {file_range.path}: it has changed since it was split; split it again as a new fan-out"
        )


def _read_file(file_range: _FileInput, files: FileRoots | None) -> list[Any] | bytes:
    with open_input(Path(file_range.path), files) as file:
        _check_mark(file_range, _mark(file))
        file.seek(file_range.offset)
        content = file.read(file_range.bytes)
    if file_range.kind == "bytes":
        return content
    try:
        # Split at line feeds only, as they were counted: `splitlines` has further separators.
        lines = content.decode().split("\n")
        if lines[-1] == "":
            lines.pop()
        return [line.removesuffix("\r") for line in lines]
    except UnicodeDecodeError as exc:
        raise InvalidPayloadError(
            f"input {file_range.path}: not UTF-8 text from byte {file_range.offset} on ({exc})"
        ) from exc


def inline_piece(items: Sequence[Any], start: int) -> Piece:
    encoded = [_item_json(item, start + place) for place, item in enumerate(items)]
    text = b"[" + b",".join(encoded) + b"]"
    return Piece(start, len(items), f"items:{start}-{start + len(items) - 1}", text.decode())


def _in_file(kind: str, where: dict[str, Any], mark: str, start: int, items: int) -> Piece:
    text = _encode(_FileInput(kind=kind, mark=mark, **where)).decode()
    return Piece(start, items, f"{where['path']}#{where['offset']}+{where['bytes']}", text)


def _item_json(item: Any, place: int) -> bytes:  # noqa: ANN401 - whatever JSON can say
    # Encoded as workflow payloads are: values that JSON would change are refused.
    text = bytes(payload.encode(item, what=f"item {place}"))
    if len(text) > ITEM_BYTES_MAX:
        raise PayloadTooLargeError(
            f"item {place}: {len(text)} bytes as JSON, at most {ITEM_BYTES_MAX}; "
            "store it in a file or a bucket, and use its name as the item"
        )
    return text
