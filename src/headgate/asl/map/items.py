"""Items of a distributed Map: applies the ItemSelector and groups the items into chunks of a fan-out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from headgate.asl.errors import DATA_LIMIT_EXCEEDED, StateError
from headgate.asl.expressions.scope import Json, Member, Scope
from headgate.asl.map.messages import ItemSelection
from headgate.asl.model.definition import Machine, MapSpec, ParallelSpec, StateType
from headgate.asl.runtime.execution_request import compiled
from headgate.durable.model import payload
from headgate.errors import InvalidPayloadError
from headgate.fanout.model.sources import Piece

_encode: Final = msgspec.json.Encoder().encode


class MapSource:
    """Fan-out source that groups items into chunks by number and by size."""

    def __init__(
        self,
        read: Callable[[], Iterable[Json]],
        select: Callable[[int, Json], Json],
        *,
        name: str,
        item_bytes_max: int,
        bytes_max: int = 0,
    ) -> None:
        self._read = read
        self._select = select
        self._name = name
        self._item_bytes_max = item_bytes_max
        # The total size of a chunk's items; 0 is unlimited.
        self._bytes_max = bytes_max

    def describe(self) -> dict[str, Any]:
        # A map run's id belongs to one Map, so there is nothing to distinguish.
        return {"kind": "iterable", "name": self._name, "version": ""}

    def total(self) -> int | None:
        return None

    def pieces(self, size: int, start: int) -> Iterator[Piece]:
        """Yield the pieces from item `start`. Raises `InvalidPayloadError` caused by the original `StateError`."""
        try:
            yield from self._pieces(size, start)
        except StateError as exc:
            raise InvalidPayloadError(f"items of {self._name}: {exc}") from exc

    def _pieces(self, size: int, start: int) -> Iterator[Piece]:
        batch: list[bytes] = []
        size_bytes, first = 0, start
        for index, item in enumerate(islice(iter(self._read()), start, None), start):
            text = self._text(index, item)
            is_full = len(batch) >= size or (self._bytes_max and size_bytes + len(text) + 1 > self._bytes_max)
            if batch and is_full:
                yield _piece(first, batch)
                batch, size_bytes, first = [], 0, index
            batch.append(text)
            size_bytes += len(text) + 1
        if batch:
            yield _piece(first, batch)

    def _text(self, index: int, item: Json) -> bytes:
        text = bytes(payload.encode(self._select(index, item), what=f"item {index}"))
        # An item must fit a batch of its own, and the input of an execution.
        limit = min(self._item_bytes_max, self._bytes_max or self._item_bytes_max)
        if len(text) > limit:
            raise StateError(DATA_LIMIT_EXCEEDED, f"item {index} has {len(text):,} bytes as JSON, at most {limit:,}")
        return text


def _piece(first: int, batch: Sequence[bytes]) -> Piece:
    text = b"[" + b",".join(batch) + b"]"
    return Piece(first, len(batch), f"items:{first}-{first + len(batch) - 1}", text.decode())


def selector_of(
    selection: ItemSelection | None, source: str, run_id: str, *, is_of_object: bool = False
) -> Callable[[int, Json], Json]:
    """Return the function that applies an ItemSelector to an item and its index. It raises `StateError`."""
    if selection is None:
        return lambda _, item: item
    spec = map_named(compiled(selection.definition), selection.state)
    assert spec is not None, "the execution has entered this state"
    assert spec.selector is not None, "a selection is only sent with a selector"
    selector = spec.selector

    def select(index: int, item: Json) -> Json:
        item_context: dict[str, Json] = {"Index": index, "Value": item, "Source": source}
        if type(item) is Member or is_of_object:
            item_context |= item
        scope = Scope(
            selection.data,
            {**selection.context, "Map": {"Item": item_context}},
            selection.variables,
            # Seeded, so that a resumed split draws the same numbers.
            random.Random(f"{run_id}#{index}"),
            selection.input,
        )
        return selector(scope)

    return select


def map_named(machine: Machine, name: str) -> MapSpec | None:
    """Return the Map state of this name, at any depth; names are unique in a definition."""
    for state in machine.states.values():
        spec = state.spec
        if state.name == name and state.kind is StateType.MAP and isinstance(spec, MapSpec):
            return spec
        inner = spec.branches if isinstance(spec, ParallelSpec) else ()
        if isinstance(spec, MapSpec):
            inner = (spec.processor,)
        for each in inner:
            found = map_named(each, name)
            if found is not None:
                return found
    return None


def batch_overhead(batch_input: Json) -> int:
    """Return the size of a batch without items."""
    return len(_encode(batched(batch_input, [])))


def batched(batch_input: Json, items: list[Json]) -> Json:
    """Return the input of the iteration of a batch."""
    return {"Items": items} if batch_input is None else {"BatchInput": batch_input, "Items": items}
