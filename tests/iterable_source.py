"""A source whose items are made while they are split, for splits that are slow, endless or break off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from headgate.errors import DefinitionError, HeadgateError, InvalidPayloadError
from headgate.fanout.model.sources import Piece, inline_piece


class IterableSource:
    """Items of an iterator, with only one chunk in memory at a time.

    `make` is called again to resume, and must yield the same items in the same order; `name` and `version` identify
    them in the digest.
    """

    def __init__(
        self, make: Callable[[], Iterable[Any]], *, name: str, version: str = "", total: int | None = None
    ) -> None:
        self._make = make
        self._name = name
        self._version = version
        self._total = total

    def describe(self) -> dict[str, Any]:
        return {"kind": "iterable", "name": self._name, "version": self._version}

    def total(self) -> int | None:
        return self._total

    def pieces(self, size: int, start: int) -> Iterator[Piece]:
        items = self._items()
        skipped = sum(1 for _ in islice(items, start))
        if skipped < start:
            raise DefinitionError(
                f"items of {self._name}: {start} were split before, and now there are only {skipped}; "
                "a resumed split needs the same items"
            )
        first = start
        while batch := list(islice(items, size)):
            yield inline_piece(batch, first)
            first += len(batch)

    def _items(self) -> Iterator[Any]:
        try:
            yield from self._make()
        except HeadgateError:
            raise
        except Exception as exc:
            raise InvalidPayloadError(f"items of {self._name}: {type(exc).__name__}: {exc}") from exc
