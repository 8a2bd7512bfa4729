"""Plot axes: the SVG document, scales, ticks, legends and escaping shared by all plots.

Plots carry no style sheet, so that pages with a strict content security policy show them. Text and lines use the
current colour; the colours of marks suit light and dark backgrounds.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

from msgspec import Struct

WIDTH: Final = 720.0
HEIGHT: Final = 320.0
LEFT: Final = 72.0
RIGHT: Final = 20.0
TOP: Final = 56.0
MARGIN: Final = 20.0
HEAD: Final = 42.0
BOTTOM: Final = 48.0
# Approximate width of a character at label size.
CHARACTER: Final = 6.2
LEGEND_LINE: Final = 16.0
BLUE: Final = "#2f81c7"
GREEN: Final = "#2a9d6b"
RED: Final = "#d1495b"
AMBER: Final = "#d9a21b"
PURPLE: Final = "#8e6bbf"
MAGENTA: Final = "#b83a8f"
GREY: Final = "#8b95a1"
BROWN: Final = "#a4785a"
# Characters that XML 1.0 cannot represent, not even escaped.
_FORBIDDEN: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_END: Final = "</svg>\n"


class Tick(Struct, frozen=True):
    """A position on an axis, from 0 to 1, and its label."""

    share: float
    label: str


class Entry(Struct, frozen=True):
    """An entry of a legend."""

    colour: str
    label: str


class Frame(Struct, frozen=True):
    """The plot rectangle and its position in the picture."""

    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    top: float = TOP
    right: float = RIGHT
    bottom: float = BOTTOM

    @property
    def inner_width(self) -> float:
        """The width of the plot itself."""
        return self.width - self.left - self.right

    @property
    def inner_height(self) -> float:
        """The height of the plot itself."""
        return self.height - self.top - self.bottom

    def x(self, share: float) -> float:
        """Return the x coordinate of a share of the width, clamped to the frame."""
        return self.left + min(1.0, max(0.0, share)) * self.inner_width

    def y(self, share: float) -> float:
        """Return the y coordinate of a share of the height, clamped to the frame."""
        return self.top + (1 - min(1.0, max(0.0, share))) * self.inner_height


def safe(text: str) -> str:
    """Return text escaped for XML content and attributes."""
    return escape(_FORBIDDEN.sub("\ufffd", text), {'"': "&quot;"})


def shortened(text: str, length: int) -> str:
    """Return text of at most that many characters, with its middle elided."""
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"


def number(value: float) -> str:
    """Return a coordinate, to a tenth of a pixel."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def label(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 11, weight: str = "", turned: bool = False
) -> str:
    """Return a line of text."""
    turn = f' transform="rotate(-90 {number(x)} {number(y)})"' if turned else ""
    bold = f' font-weight="{weight}"' if weight else ""
    at = f'x="{number(x)}" y="{number(y)}"'
    return f'<text {at} font-size="{size}" text-anchor="{anchor}"{bold}{turn}>{safe(text)}</text>'


def rectangle(x: float, y: float, width: float, height: float, colour: str, *, mark: str, tip: str = "") -> str:
    """Return a filled rectangle; `tip` is its tooltip."""
    place = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
    inside = f"><title>{safe(tip)}</title></rect>" if tip else "/>"
    return f'<rect class="{mark}" {place} fill="{colour}"{inside}'


def dashed(x: float, y: float, width: float, height: float, colour: str, *, mark: str, tip: str) -> str:
    """Return a rectangle of dashes without a filling."""
    place = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
    dashes = f'fill="none" pointer-events="all" stroke="{colour}" stroke-dasharray="3 2"'
    return f'<rect class="{mark}" {place} {dashes}><title>{safe(tip)}</title></rect>'


def document(kind: str, title: str, description: str, body: Sequence[str], *, frame: Frame) -> str:
    """Return the complete picture, with title and description for screen readers."""
    # Several plots may share a page, so that their ids must differ.
    unique = f"{kind}-{zlib.crc32(f'{title}{description}'.encode(errors='replace')):08x}"
    width, height = number(frame.width), number(frame.height)
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot {kind}" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-labelledby="{unique}-title {unique}-desc" '
        'font-family="system-ui, sans-serif" fill="currentColor">'
    )
    named = f'<title id="{unique}-title">{safe(title)}</title><desc id="{unique}-desc">{safe(description)}</desc>'
    room = int((frame.width - 2 * MARGIN) / (CHARACTER * 14 / 11))
    heading = label(MARGIN, 22, shortened(title, room), size=14, weight="600")
    return "\n".join([opening, named, heading, *body, _END])


def empty(kind: str, title: str, reason: str) -> str:
    """Return a picture that says why there is no data."""
    frame = Frame(height=120)
    return document(kind, title, reason, [label(frame.width / 2, 70, reason, anchor="middle", size=13)], frame=frame)


def x_axis(frame: Frame, ticks: Sequence[Tick], name: str) -> list[str]:
    """Return the axis below a plot."""
    bottom = frame.y(0)
    drawn = [_line(frame.left, bottom, frame.x(1), bottom, 0.5)]
    for tick in ticks:
        at = frame.x(tick.share)
        half = CHARACTER * len(tick.label) / 2
        inside = min(at, frame.width - 4 - half)
        drawn += [_line(at, bottom, at, bottom + 4, 0.5), label(inside, bottom + 16, tick.label, anchor="middle")]
    return [*drawn, label(frame.x(0.5), frame.height - 10, name, anchor="middle")]


def y_axis(frame: Frame, ticks: Sequence[Tick], name: str) -> list[str]:
    """Return the axis on the left, with faint lines across the plot."""
    drawn: list[str] = []
    for tick in ticks:
        at = frame.y(tick.share)
        drawn += [_line(frame.left, at, frame.x(1), at, 0.15), label(frame.left - 6, at + 4, tick.label, anchor="end")]
    return [*drawn, label(16, frame.y(0.5), name, anchor="middle", turned=True)]


def head(entries: Sequence[Entry], note: str, *, width: float) -> tuple[list[str], float]:
    """Return the legend and the note below the title, and how far down they reach."""
    drawn = legend(MARGIN, HEAD, entries, width=width - 2 * MARGIN)
    bottom = HEAD + legend_height(entries, width=width - 2 * MARGIN) - LEGEND_LINE
    if note:
        bottom += LEGEND_LINE
        drawn.append(label(MARGIN, bottom, shortened(note, int((width - 2 * MARGIN) / CHARACTER))))
    return drawn, bottom + 14


def legend(x: float, y: float, entries: Sequence[Entry], *, width: float) -> list[str]:
    """Return the legend, on as many lines as needed."""
    drawn: list[str] = []
    for entry, line, at in _laid_out(entries, width):
        down = y + LEGEND_LINE * line
        drawn += [rectangle(x + at, down - 9, 10, 10, entry.colour, mark="key"), label(x + at + 14, down, entry.label)]
    return drawn


def legend_height(entries: Sequence[Entry], *, width: float) -> float:
    """Return the height of a legend."""
    return LEGEND_LINE * (1 + max((line for _, line, _ in _laid_out(entries, width)), default=0))


def _laid_out(entries: Sequence[Entry], width: float) -> list[tuple[Entry, int, float]]:
    """Return the line and offset of each legend entry."""
    places: list[tuple[Entry, int, float]] = []
    line, at = 0, 0.0
    for entry in entries:
        length = 28 + CHARACTER * len(entry.label)
        if at > 0 and at + length > width:
            line, at = line + 1, 0.0
        places.append((entry, line, at))
        at += length
    return places


def count_ticks(highest: int, *, about: int = 5) -> tuple[int, list[Tick]]:
    """Return the end of an axis that covers `highest`, with ticks at round integers."""
    step = max(1, math.ceil(_round_step(max(1, highest) / about)))
    end = step * max(1, math.ceil(highest / step))
    return end, [Tick(value / end, count_text(value)) for value in range(0, end + 1, step)]


def time_ticks(seconds: float, *, about: int = 6) -> list[Tick]:
    """Return ticks at round times from 0 on."""
    step = next((step for step in _TIME_STEPS if step >= seconds / about), 0.0)
    step = step or 86_400 * math.ceil(seconds / about / 86_400)
    count = math.floor(seconds / step + 1e-9)
    return [Tick(place * step / seconds if place else 0.0, time_text(place * step)) for place in range(count + 1)]


def log_time_ticks(low: float, high: float, *, most: int = 8) -> list[Tick]:
    """Return ticks at round times for a logarithmic axis."""
    values = [step for step in _ROUND_TIMES if low <= step <= high]
    if len(values) < 2:
        values = [low, high]
    every = math.ceil(len(values) / most)
    return [Tick(math.log(value / low) / math.log(high / low), time_text(value)) for value in values[::every]]


_TIME_STEPS: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30,
    60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400,
)  # fmt: skip
# Each about twice the previous one.
_ROUND_TIMES: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30,
    60, 120, 300, 600, 1800, 3600, 7200, 18_000, 43_200, 86_400, 172_800, 604_800,
)  # fmt: skip


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step - 1e-12)


def count_text(value: int) -> str:
    """Return a count with thousands separators, abbreviated from a hundred thousand on."""
    if value >= 1_000_000:
        return f"{value / 1_000_000:g}M" if value % 10_000 == 0 else f"{value / 1_000_000:.2f}M"
    return f"{value / 1000:g}k" if value >= 100_000 else f"{value:,}"


def time_text(seconds: float) -> str:
    """Return a duration in one or two units."""
    if seconds == 0:
        return "0"
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    for size, name, smaller, small_name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {name}" + (f" {rest} {small_name}" if rest else "")
    return f"{whole} s"


def _line(x1: float, y1: float, x2: float, y2: float, opacity: float) -> str:
    ends = f'x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}"'
    return f'<line {ends} stroke="currentColor" stroke-opacity="{opacity}"/>'
