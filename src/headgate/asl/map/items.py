"""Map items: the items of a distributed Map as a fan-out is split into them, each as its iteration is given it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from headgate.asl.errors import DATA_LIMIT_EXCEEDED, StateError
from headgate.asl.expressions.scope import Json, Member, Scope
from headgate.asl.map.messages import Selection
from headgate.asl.model.definition import Kind, Machine, MapSpec, ParallelSpec
from headgate.asl.requests import compiled
from headgate.durable.model import payload
from headgate.errors import InvalidPayloadError
from headgate.fanout.model.sources import Piece

_encode: Final = msgspec.json.Encoder().encode


class MapSource:
    """Items that are put together into chunks by number and by size. A source of a fan-out."""

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
        # Of the items of a chunk together; 0 is without limit.
        self._bytes_max = bytes_max

    def describe(self) -> dict[str, Any]:
        # The id of a map run is used for one Map alone: there is nothing to tell it from.
        return {"kind": "iterable", "name": self._name, "version": ""}

    def total(self) -> int | None:
        return None

    def pieces(self, size: int, start: int) -> Iterator[Piece]:
        """Give the pieces from item `start` on. Raises `InvalidPayloadError`, from the `StateError` that it was."""
        try:
            yield from self._pieces(size, start)
        except StateError as exc:
            raise InvalidPayloadError(f"items of {self._name}: {exc}") from exc

    def _pieces(self, size: int, start: int) -> Iterator[Piece]:
        batch: list[bytes] = []
        weight, first = 0, start
        for place, item in enumerate(islice(iter(self._read()), start, None), start):
            text = self._text(place, item)
            is_full = len(batch) >= size or (self._bytes_max and weight + len(text) + 1 > self._bytes_max)
            if batch and is_full:
                yield _piece(first, batch)
                batch, weight, first = [], 0, place
            batch.append(text)
            weight += len(text) + 1
        if batch:
            yield _piece(first, batch)

    def _text(self, place: int, item: Json) -> bytes:
        text = bytes(payload.encode(self._select(place, item), what=f"item {place}"))
        # One item that is larger than a batch may be makes a batch that cannot be, as one beyond the limit of an input.
        limit = min(self._item_bytes_max, self._bytes_max or self._item_bytes_max)
        if len(text) > limit:
            raise StateError(DATA_LIMIT_EXCEEDED, f"item {place} has {len(text):,} bytes as JSON, at most {limit:,}")
        return text


def _piece(first: int, batch: Sequence[bytes]) -> Piece:
    text = b"[" + b",".join(batch) + b"]"
    return Piece(first, len(batch), f"items:{first}-{first + len(batch) - 1}", text.decode())


def selector_of(
    selection: Selection | None, source: str, run_id: str, *, is_of_object: bool = False
) -> Callable[[int, Json], Json]:
    """Return what makes of an item, by its place, that which the iteration is given. Raises `StateError`."""
    if selection is None:
        return lambda _, item: item
    spec = map_named(compiled(selection.definition), selection.state)
    assert spec is not None, "the state was found when its execution came to it"
    assert spec.selector is not None, "only a selector looks at more than the item"
    selector = spec.selector

    def select(place: int, item: Json) -> Json:
        described: dict[str, Json] = {"Index": place, "Value": item, "Source": source}
        if type(item) is Member or is_of_object:
            described |= item
        scope = Scope(
            selection.data,
            {**selection.context, "Map": {"Item": described}},
            selection.variables,
            # Drawn alike when a split is gone on with.
            random.Random(f"{run_id}#{place}"),
            selection.input,
        )
        return selector(scope)

    return select


def map_named(machine: Machine, name: str) -> MapSpec | None:
    """Return the Map of this name, wherever in the machine it is: no two states of a machine have the same name."""
    for state in machine.states.values():
        spec = state.spec
        if state.name == name and state.kind is Kind.MAP and isinstance(spec, MapSpec):
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
    """Return how many bytes of a batch are not items."""
    return len(_encode(batched(batch_input, [])))


def batched(batch_input: Json, items: list[Json]) -> Json:
    """Return what the iteration of a batch is given."""
    return {"Items": items} if batch_input is None else {"BatchInput": batch_input, "Items": items}
