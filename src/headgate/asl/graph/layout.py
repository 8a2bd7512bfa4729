"""Layout: coordinates of the states and arrows of a machine, in layers from top to bottom.

Downward arrows pass states by bends; labels take up space like states, so that nothing overlaps. Back edges run in
lanes to the right.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Final, TypeAlias

from msgspec import Struct

from headgate.asl.expressions.scope import Json
from headgate.asl.graph.labels import END, START, Arrow, arrows_of, caption, shortened
from headgate.asl.graph.layers import Place, across, directed, layers, ranks, untangle
from headgate.asl.model.transitions import machines_in, reachable, states_of

CHARACTER_WIDTH: Final = 7.3
LABEL_CHARACTER_WIDTH: Final = 6.1
LINE_HEIGHT: Final = 14.0
NODE_HEIGHT: Final = 46.0
END_SIZE: Final = 22.0
HEADER_HEIGHT: Final = 44.0
PADDING: Final = 16.0
LABEL_LINES_MAX: Final = 3
_NODE_WIDTH_MIN: Final = 120.0
_LAYER_GAP: Final = 15.0
_LANE_GAP: Final = 20.0
_PORT_GAP_MAX: Final = 24.0

Point: TypeAlias = tuple[float, float]


class Node(Struct):
    """A state by its centre, with the layouts of the machines inside it."""

    name: str
    state: Mapping[str, Json]
    width: float
    height: float
    inner: list[Layout]
    x: float = 0.0
    y: float = 0.0


class Line(Struct):
    """An arrow: the corners of a polyline if `is_lane`, otherwise the points of a curve."""

    arrow: Arrow
    points: list[Point]
    is_lane: bool = False
    # The centre of its label.
    label_at: Point | None = None


class _Band(Struct, frozen=True):
    """The vertical extent of a layer."""

    top: float
    bottom: float

    @property
    def middle(self) -> float:
        return (self.top + self.bottom) / 2


class Layout(Struct):
    """The coordinates of a machine, from (0, 0)."""

    width: float
    height: float
    nodes: list[Node]
    lines: list[Line]


def arrange(machine: Mapping[str, Json], *, has_ends: bool = True) -> Layout:
    """Compute the layout of a machine; with `has_ends` including start and end."""
    arrows = arrows_of(machine, has_ends=has_ends)
    nodes = _nodes(machine, arrows)
    order = _order(machine, nodes)
    down, up = directed(order, arrows)
    rank_of = ranks(order, down)
    rows, chains = layers(order, rank_of, down)
    untangle(rows, chains)
    widths = _widths(nodes, down, chains)
    xs = across(rows, chains, widths)
    left = min((xs[place] - widths[place] / 2 for row in rows for place in row), default=0.0)
    xs = {place: x - left for place, x in xs.items()}
    width = max((xs[place] + widths[place] / 2 for row in rows for place in row), default=0.0)
    bands = _bands(rows, nodes, down)
    for name, node in nodes.items():
        node.x, node.y = xs[name], bands[rank_of[name]].middle
    lines = _curves(down, chains, nodes, xs, bands)
    lanes, width = _lanes(up, nodes, rank_of, bands, width)
    _spread_ports(nodes, [*lines, *lanes])
    return Layout(width, bands[-1].bottom if bands else 0.0, list(nodes.values()), [*lines, *lanes])


def text_width(text: str, character_width: float) -> float:
    """Return the approximate width of a text; East Asian characters count twice."""
    return character_width * sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


def label_lines(arrow: Arrow) -> list[str]:
    """Return the lines of an arrow's label."""
    lines = [shortened(label) for label in arrow.labels]
    if len(lines) > LABEL_LINES_MAX:
        return [*lines[: LABEL_LINES_MAX - 1], f"and {len(lines) - LABEL_LINES_MAX + 1} more"]
    return lines


def _label_width(arrow: Arrow) -> float:
    return max((text_width(line, LABEL_CHARACTER_WIDTH) for line in label_lines(arrow)), default=0.0)


def _nodes(machine: Mapping[str, Json], arrows: list[Arrow]) -> dict[str, Node]:
    used = {name for arrow in arrows for name in (arrow.source, arrow.target)}
    nodes: dict[str, Node] = {}
    for name in (START, END):
        if name in used:
            nodes[name] = Node(name, {}, END_SIZE, END_SIZE, [])
    for name, state in states_of(machine).items():
        inner = [arrange(nested.machine, has_ends=False) for nested in machines_in(state)]
        title = text_width(shortened(name), CHARACTER_WIDTH) + 46
        note = text_width(shortened(caption(state)), LABEL_CHARACTER_WIDTH) + 32
        width, height = max(title, note, _NODE_WIDTH_MIN), NODE_HEIGHT
        if inner:
            inside = sum(layout.width + 2 * PADDING for layout in inner) + PADDING * (len(inner) + 1)
            width = max(width, inside)
            height = HEADER_HEIGHT + max(layout.height for layout in inner) + 3 * PADDING
        nodes[name] = Node(name, state, width, height, inner)
    return nodes


def _order(machine: Mapping[str, Json], nodes: Mapping[str, Node]) -> list[str]:
    """Return the states by reachability, unreachable ones last."""
    found = [START, *reachable(machine)]
    rest = [name for name in nodes if name not in set(found) and name != END]
    return [name for name in [*found, *rest, END] if name in nodes]


def _widths(nodes: Mapping[str, Node], down: list[Arrow], chains: list[list[Place]]) -> dict[Place, float]:
    widths: dict[Place, float] = {name: node.width for name, node in nodes.items()}
    for arrow, chain in zip(down, chains, strict=True):
        for index, bend in enumerate(chain[1:-1]):
            # The first bend, just below the source, carries the label.
            widths[bend] = _label_width(arrow) + 8 if index == 0 and arrow.labels else 4.0
    return widths


def _bands(rows: list[list[Place]], nodes: Mapping[str, Node], down: list[Arrow]) -> list[_Band]:
    bands: list[_Band] = []
    top = 0.0
    for row in rows:
        height = max((_height(place, nodes, down) for place in row), default=0.0)
        bands.append(_Band(top, top + height))
        top += height + _LAYER_GAP
    return bands


def _height(place: Place, nodes: Mapping[str, Node], down: list[Arrow]) -> float:
    if isinstance(place, str):
        return nodes[place].height
    return LINE_HEIGHT * len(label_lines(down[place[0]]))


def _curves(
    down: list[Arrow],
    chains: list[list[Place]],
    nodes: Mapping[str, Node],
    xs: Mapping[Place, float],
    bands: list[_Band],
) -> list[Line]:
    lines = []
    for arrow, chain in zip(down, chains, strict=True):
        source, target = nodes[arrow.source], nodes[arrow.target]
        line = Line(arrow, [(source.x, source.y + source.height / 2)])
        for place in chain[1:-1]:
            rank, x = place[1], xs[place]
            assert isinstance(rank, int), "an arrow has only bends between its ends"
            if arrow.labels and line.label_at is None:
                line.label_at = (x, bands[rank].middle)
                line.points.append(line.label_at)
            elif rank % 2 == 0:
                # Straight past the states of this layer.
                line.points += [(x, bands[rank].top), (x, bands[rank].bottom)]
        line.points.append((target.x, target.y - target.height / 2))
        lines.append(line)
    return lines


def _lanes(
    up: list[Arrow], nodes: Mapping[str, Node], rank_of: Mapping[str, int], bands: list[_Band], width: float
) -> tuple[list[Line], float]:
    """Return the back edges in lanes, short ones nearest to the states, and the resulting width."""
    lanes: list[list[Arrow]] = []
    for arrow in sorted(up, key=lambda arrow: rank_of[arrow.source] - rank_of[arrow.target]):
        free = next((lane for lane in lanes if all(_is_apart(arrow, other, rank_of) for other in lane)), None)
        if free is None:
            lanes.append([arrow])
        else:
            free.append(arrow)
    lines: list[Line] = []
    for lane in lanes:
        x = width + _LANE_GAP
        for number, arrow in enumerate(lane):
            lines.append(_lane(arrow, nodes, x, bands, rank_of, 3.0 * ((len(lines) + number) % 3)))
        width = x + max(_label_width(arrow) + 10 for arrow in lane)
    return lines, width


def _is_apart(arrow: Arrow, other: Arrow, rank_of: Mapping[str, int]) -> bool:
    return rank_of[arrow.source] < rank_of[other.target] or rank_of[other.source] < rank_of[arrow.target]


def _lane(
    arrow: Arrow, nodes: Mapping[str, Node], x: float, bands: list[_Band], rank_of: Mapping[str, int], shift: float
) -> Line:
    source, target = nodes[arrow.source], nodes[arrow.target]
    low = bands[rank_of[arrow.source]].bottom + 5 + shift
    high = bands[rank_of[arrow.target]].top - 8 - shift
    below, above = source.y + source.height / 2, target.y - target.height / 2
    points = [(source.x, below), (source.x, low), (x, low), (x, high), (target.x, high), (target.x, above)]
    label_at = (x + 6 + _label_width(arrow) / 2, (low + high) / 2) if arrow.labels else None
    return Line(arrow, points, is_lane=True, label_at=label_at)


def _spread_ports(nodes: Mapping[str, Node], lines: list[Line]) -> None:
    """Spread the ends of the arrows along the edge of each state, in an order without crossings."""
    for name, node in nodes.items():
        leaving = sorted((line for line in lines if line.arrow.source == name), key=lambda line: _toward(line, 1))
        coming = sorted((line for line in lines if line.arrow.target == name), key=lambda line: _toward(line, -2))
        for place, x in zip(leaving, _ports(node, len(leaving)), strict=True):
            _shift(place, 0, x)
        for place, x in zip(coming, _ports(node, len(coming)), strict=True):
            _shift(place, -1, x)


def _toward(line: Line, index: int) -> float:
    return line.points[3][0] if line.is_lane else line.points[index][0]


def _ports(node: Node, count: int) -> list[float]:
    gap = min(_PORT_GAP_MAX, node.width / 2 / max(count - 1, 1))
    return [node.x + (index - (count - 1) / 2) * gap for index in range(count)]


def _shift(line: Line, end: int, x: float) -> None:
    line.points[end] = (x, line.points[end][1])
    if line.is_lane:
        beside = 1 if end == 0 else -2
        line.points[beside] = (x, line.points[beside][1])
