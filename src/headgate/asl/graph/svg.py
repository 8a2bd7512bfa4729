"""SVG drawing of a machine: self-contained, for light and dark backgrounds."""

from __future__ import annotations

import html
import itertools
from collections.abc import Mapping
from typing import Final

from headgate.asl.expressions.scope import Json
from headgate.asl.graph.labels import END, MARKS, START, StateMark, caption, shortened
from headgate.asl.graph.layout import (
    HEADER_HEIGHT,
    LINE_HEIGHT,
    PADDING,
    Layout,
    Line,
    Node,
    Point,
    arrange,
    label_lines,
)
from headgate.asl.model.transitions import TransitionKind

_MARGIN: Final = 20.0
_CORNER: Final = 6.0
_STYLE: Final = """
.asl { --paper: #ffffff; --ink: #1f2937; --soft: #5b6472; --line: #6b7280; --node: #f8fafc; --edge: #94a3b8;
  --inside: #f1f5f9; --catch: #b45309; --visited: #dcfce7; --visited-edge: #15803d; --current: #dbeafe;
  --current-edge: #1d4ed8; --failed: #fee2e2; --failed-edge: #b91c1c; --caught: #fef3c7; --caught-edge: #b45309;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
@media (prefers-color-scheme: dark) {
  .asl { --paper: #0f172a; --ink: #e5e7eb; --soft: #a3adbb; --line: #94a3b8; --node: #1e293b; --edge: #64748b;
    --inside: #172033; --catch: #fbbf24; --visited: #14352a; --visited-edge: #4ade80; --current: #172f5c;
    --current-edge: #60a5fa; --failed: #451a1f; --failed-edge: #f87171; --caught: #3f2d0d; --caught-edge: #fbbf24; }
}
.asl .paper { fill: var(--paper); }
.asl .node { fill: var(--node); stroke: var(--edge); stroke-width: 1.2; }
.asl .inside { fill: var(--inside); stroke: var(--edge); stroke-dasharray: 4 3; }
.asl .visited { fill: var(--visited); stroke: var(--visited-edge); }
.asl .current { fill: var(--current); stroke: var(--current-edge); stroke-width: 2.4; }
.asl .failed { fill: var(--failed); stroke: var(--failed-edge); stroke-width: 2; }
.asl .caught { fill: var(--caught); stroke: var(--caught-edge); }
.asl .name { fill: var(--ink); font-size: 13px; font-weight: 600; text-anchor: middle; }
.asl .note { fill: var(--soft); font-size: 11px; text-anchor: middle; }
.asl .mark { fill: var(--ink); font-size: 13px; text-anchor: end; }
.asl .line { fill: none; stroke: var(--line); stroke-width: 1.3; }
.asl .line.catch { stroke: var(--catch); stroke-dasharray: 5 3; }
.asl .label { fill: var(--soft); font-size: 11px; text-anchor: middle; stroke: var(--paper); stroke-width: 4px;
  stroke-linejoin: round; paint-order: stroke; }
.asl .label.catch { fill: var(--catch); }
.asl .within .label { stroke: var(--inside); }
.asl .tip { fill: var(--line); }
.asl .tip.catch { fill: var(--catch); }
.asl .end { fill: var(--ink); }
.asl .ring { fill: none; stroke: var(--ink); stroke-width: 1.5; }
"""


def svg(definition: Mapping[str, Json], statuses: Mapping[str, StateMark]) -> str:
    """Return the drawing of a machine; a state with a status gets its colour."""
    layout = arrange(definition)
    width, height = layout.width + 2 * _MARGIN, layout.height + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="asl" role="img" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<title>{html.escape(str(definition.get('Comment') or 'State machine'))}</title>",
        f"<style>{_STYLE}</style>",
        "<defs>",
        _tip("tip", ""),
        _tip("tip-catch", " catch"),
        "</defs>",
        f'<rect class="paper" width="{width:.0f}" height="{height:.0f}"/>',
        f'<g transform="translate({_MARGIN:.1f} {_MARGIN:.1f})">',
        *_machine(layout, statuses),
        "</g>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _tip(name: str, classes: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path class="tip{classes}" d="M0 0L8 4L0 8z"/></marker>'
    )


def _machine(layout: Layout, statuses: Mapping[str, StateMark]) -> list[str]:
    parts = [_line(line) for line in layout.lines]
    for node in layout.nodes:
        parts.extend(_node(node, statuses))
    parts.extend(label for line in layout.lines for label in _labels(line))
    return parts


def _node(node: Node, statuses: Mapping[str, StateMark]) -> list[str]:
    if node.name == START:
        return [f'<circle class="end" cx="{node.x:.1f}" cy="{node.y:.1f}" r="7"><title>Start</title></circle>']
    if node.name == END:
        return [
            f'<circle class="ring" cx="{node.x:.1f}" cy="{node.y:.1f}" r="9"><title>End</title></circle>',
            f'<circle class="end" cx="{node.x:.1f}" cy="{node.y:.1f}" r="5"/>',
        ]
    left, top = node.x - node.width / 2, node.y - node.height / 2
    status = statuses.get(node.name)
    classes = f"node {status}" if status is not None else "node"
    tooltip = f"{node.name} ({caption(node.state)})" + (f": {status}" if status is not None else "")
    parts = [
        "<g>",
        f"<title>{html.escape(tooltip)}</title>",
        f'<rect class="{classes}" x="{left:.1f}" y="{top:.1f}" width="{node.width:.1f}" height="{node.height:.1f}" '
        'rx="8"/>',
        f'<text class="name" x="{node.x:.1f}" y="{top + 20:.1f}">{html.escape(shortened(node.name))}</text>',
        f'<text class="note" x="{node.x:.1f}" y="{top + 36:.1f}">{html.escape(shortened(caption(node.state)))}</text>',
    ]
    if status is not None:
        parts.append(f'<text class="mark" x="{left + node.width - 8:.1f}" y="{top + 19:.1f}">{MARKS[status]}</text>')
    return [*parts, *_inner(node, statuses), "</g>"]


def _inner(node: Node, statuses: Mapping[str, StateMark]) -> list[str]:
    """Draw the machines inside a state side by side, centred."""
    inside = sum(layout.width + 2 * PADDING for layout in node.inner) + PADDING * (len(node.inner) - 1)
    x, y = node.x - inside / 2, node.y - node.height / 2 + HEADER_HEIGHT
    height = node.height - HEADER_HEIGHT - PADDING
    parts: list[str] = []
    for layout in node.inner:
        width = layout.width + 2 * PADDING
        box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        parts.append(f'<rect class="inside" {box} rx="6"/>')
        parts.append(f'<g class="within" transform="translate({x + PADDING:.1f} {y + PADDING:.1f})">')
        parts.extend(_machine(layout, statuses))
        parts.append("</g>")
        x += width + PADDING
    return parts


def _line(line: Line) -> str:
    is_catch = line.arrow.cause is TransitionKind.CATCH
    classes, tip = ("line catch", "tip-catch") if is_catch else ("line", "tip")
    path = _corners(line.points) if line.is_lane else _curve(line.points)
    return f'<path class="{classes}" d="{path}" marker-end="url(#{tip})"/>'


def _curve(points: list[Point]) -> str:
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x, y), (to_x, to_y) in itertools.pairwise(points):
        middle = (y + to_y) / 2
        if abs(x - to_x) < 0.5:
            parts.append(f"L{to_x:.1f} {to_y:.1f}")
        else:
            parts.append(f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}")
    return "".join(parts)


def _corners(points: list[Point]) -> str:
    """Return a polyline with rounded corners."""
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        near, far = _toward(corner, before), _toward(corner, after)
        parts.append(f"L{near[0]:.1f} {near[1]:.1f}Q{corner[0]:.1f} {corner[1]:.1f} {far[0]:.1f} {far[1]:.1f}")
    parts.append(f"L{points[-1][0]:.1f} {points[-1][1]:.1f}")
    return "".join(parts)


def _toward(corner: Point, other: Point) -> Point:
    """Return the point one corner radius from a corner towards another, or half-way if that is nearer."""
    across, down = other[0] - corner[0], other[1] - corner[1]
    length = max(abs(across), abs(down), 0.001)
    share = min(_CORNER, length / 2) / length
    return corner[0] + across * share, corner[1] + down * share


def _labels(line: Line) -> list[str]:
    if line.label_at is None:
        return []
    lines = label_lines(line.arrow)
    classes = "label catch" if line.arrow.cause is TransitionKind.CATCH else "label"
    x, y = line.label_at
    first = y - LINE_HEIGHT * (len(lines) - 1) / 2 + 4
    tooltip = html.escape("; ".join(line.arrow.labels))
    return [
        f'<text class="{classes}" x="{x:.1f}" y="{first + LINE_HEIGHT * index:.1f}">{html.escape(words)}'
        f"<title>{tooltip}</title></text>"
        for index, words in enumerate(lines)
    ]
