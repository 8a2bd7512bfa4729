"""Layer assignment (Sugiyama): places states in rows so that arrows lead down with few crossings."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping
from typing import Final, TypeAlias

from headgate.asl.graph.labels import END, Arrow

# The gap between two places of a layer.
_GAP: Final = 28.0
_SWEEPS: Final = 12

# A place in a layer: a state, or a bend as (index of the arrow, layer).
Place: TypeAlias = str | tuple[int, int]


def directed(order: list[str], arrows: list[Arrow]) -> tuple[list[Arrow], list[Arrow]]:
    """Return the acyclic arrows, which lead down, and the back edges, which lead up."""
    leaving: dict[str, list[Arrow]] = {name: [] for name in order}
    for arrow in arrows:
        leaving[arrow.source].append(arrow)
    down: list[Arrow] = []
    up: list[Arrow] = []
    seen: set[str] = set()
    for root in order:
        if root in seen:
            continue
        seen.add(root)
        on_path = {root}
        work = [(root, iter(leaving[root]))]
        while work:
            name, rest = work[-1]
            following = next(rest, None)
            if following is None:
                work.pop()
                on_path.discard(name)
            elif following.target in on_path:
                up.append(following)
            else:
                down.append(following)
                if following.target not in seen:
                    seen.add(following.target)
                    on_path.add(following.target)
                    work.append((following.target, iter(leaving[following.target])))
    return down, up


def ranks(order: list[str], down: list[Arrow]) -> dict[str, int]:
    """Return the layer of each state: below all its predecessors. Odd layers hold labels."""
    waiting = dict.fromkeys(order, 0)
    leaving: dict[str, list[str]] = {name: [] for name in order}
    for arrow in down:
        waiting[arrow.target] += 1
        leaving[arrow.source].append(arrow.target)
    ranks = dict.fromkeys(order, 0)
    ready = [name for name in order if waiting[name] == 0]
    for name in ready:
        for target in leaving[name]:
            ranks[target] = max(ranks[target], ranks[name] + 2)
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    if END in ranks:
        ranks[END] = max(ranks.values())
    return ranks


def layers(
    order: list[str], ranks: Mapping[str, int], down: list[Arrow]
) -> tuple[list[list[Place]], list[list[Place]]]:
    """Return the places of each layer, and the chain of places of each arrow from source to target."""
    layers: list[list[Place]] = [[] for _ in range(max(ranks.values(), default=-1) + 1)]
    for name in order:
        layers[ranks[name]].append(name)
    chains: list[list[Place]] = []
    for number, arrow in enumerate(down):
        bends: list[Place] = []
        for rank in range(ranks[arrow.source] + 1, ranks[arrow.target]):
            bends.append((number, rank))
            layers[rank].append((number, rank))
        chains.append([arrow.source, *bends, arrow.target])
    return layers, chains


def _links(chains: list[list[Place]]) -> tuple[dict[Place, list[Place]], dict[Place, list[Place]]]:
    above: dict[Place, list[Place]] = {}
    below: dict[Place, list[Place]] = {}
    for chain in chains:
        for upper, lower in itertools.pairwise(chain):
            above.setdefault(lower, []).append(upper)
            below.setdefault(upper, []).append(lower)
    return above, below


def untangle(layers: list[list[Place]], chains: list[list[Place]]) -> None:
    """Sort each layer by the barycentre of its neighbours, down and up in turn; keep the order with least crossings."""
    above, below = _links(chains)
    best = [list(layer) for layer in layers]
    fewest = _crossings(layers, below)
    for sweep in range(_SWEEPS):
        if fewest == 0:
            break
        if sweep % 2 == 0:
            for upper, layer in itertools.pairwise(layers):
                _sort_layer(layer, upper, above)
        else:
            for layer, lower in reversed(list(itertools.pairwise(layers))):
                _sort_layer(layer, lower, below)
        crossings = _crossings(layers, below)
        if crossings < fewest:
            fewest, best = crossings, [list(layer) for layer in layers]
    for layer, ordered in zip(layers, best, strict=True):
        layer[:] = ordered


def _sort_layer(layer: list[Place], beside: list[Place], near: Mapping[Place, list[Place]]) -> None:
    where = {place: index for index, place in enumerate(beside)}
    own = {place: float(index) for index, place in enumerate(layer)}
    for place in layer:
        neighbours = near.get(place)
        if neighbours:
            own[place] = sum(where[neighbour] for neighbour in neighbours) / len(neighbours)
    layer.sort(key=own.__getitem__)


def _crossings(layers: list[list[Place]], below: Mapping[Place, list[Place]]) -> int:
    total = 0
    for upper, lower in itertools.pairwise(layers):
        where = {place: index for index, place in enumerate(lower)}
        passed: list[int] = []
        for place in upper:
            ends = sorted(where[end] for end in below.get(place, ()))
            total += sum(len(passed) - bisect.bisect_right(passed, end) for end in ends)
            for end in ends:
                bisect.insort(passed, end)
    return total


def across(layers: list[list[Place]], chains: list[list[Place]], widths: Mapping[Place, float]) -> dict[Place, float]:
    """Return the x coordinate of each place, as close to the average of its neighbours as its layer allows."""
    above, below = _links(chains)
    xs: dict[Place, float] = {}
    for layer in layers:
        at = 0.0
        for place in layer:
            xs[place] = at + widths[place] / 2
            at += widths[place] + _GAP
    for sweep in range(_SWEEPS * 2):
        going_down = sweep % 2 == 0
        near = above if going_down else below
        for layer in layers if going_down else reversed(layers):
            wanted = [
                sum(xs[other] for other in near[place]) / len(near[place]) if near.get(place) else xs[place]
                for place in layer
            ]
            xs.update(zip(layer, _spaced(wanted, [widths[place] for place in layer]), strict=True))
    return xs


def _spaced(wanted: list[float], widths: list[float]) -> list[float]:
    """Return the positions closest to `wanted`, in the same order and without overlap (pool adjacent violators)."""
    offsets = [0.0]
    for left, right in itertools.pairwise(widths):
        offsets.append(offsets[-1] + (left + right) / 2 + _GAP)
    blocks: list[tuple[float, int]] = []
    for want, offset in zip(wanted, offsets, strict=False):
        total, count = want - offset, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            before, size = blocks.pop()
            total, count = total + before, count + size
        blocks.append((total, count))
    shifts = [total / count for total, count in blocks for _ in range(count)]
    return [shift + offset for shift, offset in zip(shifts, offsets, strict=False)]
