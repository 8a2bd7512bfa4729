"""Plot axes: what every plot is drawn on: the document, scales, ticks, legends, and text that is safe in XML.

Plots carry no style sheet, so that a page with a strict policy on contents shows them. Text and lines take the colour
of what surrounds them; the colours of marks are read on a light ground and on a dark one.
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
# About as wide as a character is, at the size of labels.
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
# What XML 1.0 has no way to say, not even escaped.
_FORBIDDEN: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_END: Final = "</svg>\n"
_STANDALONE: Final = (
    "<style>svg{color:#1f2328;background:#fff}"
    "@media (prefers-color-scheme:dark){svg{color:#e6edf3;background:#0d1117}}</style>"
)


class Tick(Struct, frozen=True):
    """A place on an axis, from 0 at its beginning to 1 at its end, and what is written there."""

    share: float
    label: str


class Entry(Struct, frozen=True):
    """A line of a legend."""

    colour: str
    label: str


class Frame(Struct, frozen=True):
    """The rectangle that a plot is drawn in, and where it is in the picture."""

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
        """Return where a share of the way from the left is; what is outside is put on the edge."""
        return self.left + min(1.0, max(0.0, share)) * self.inner_width

    def y(self, share: float) -> float:
        """Return where a share of the way from the bottom is; what is outside is put on the edge."""
        return self.top + (1 - min(1.0, max(0.0, share))) * self.inner_height


def safe(text: str) -> str:
    """Return text as it may stand in XML, in an attribute too."""
    return escape(_FORBIDDEN.sub("\ufffd", text), {'"': "&quot;"})


def shortened(text: str, length: int) -> str:
    """Return text of at most that many characters, with its middle left out if need be."""
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
    """Return a filled rectangle; `tip` is shown when someone points at it."""
    place = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
    inside = f"><title>{safe(tip)}</title></rect>" if tip else "/>"
    return f'<rect class="{mark}" {place} fill="{colour}"{inside}'


def document(kind: str, title: str, description: str, body: Sequence[str], *, frame: Frame) -> str:
    """Return the whole picture. It is named and described for those who cannot see it."""
    # Several plots may be in one page: their ids must differ.
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
    """Return a picture that says why there is nothing to see."""
    frame = Frame(height=120)
    return document(kind, title, reason, [label(frame.width / 2, 70, reason, anchor="middle", size=13)], frame=frame)


def standalone(svg: str) -> str:
    """Return a plot as a file of its own, which takes light or dark from whoever shows it."""
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{svg.removesuffix(_END)}{_STANDALONE}\n{_END}'


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
    """Return the legend, on as many lines as it takes."""
    drawn: list[str] = []
    for entry, line, at in _laid_out(entries, width):
        down = y + LEGEND_LINE * line
        drawn += [rectangle(x + at, down - 9, 10, 10, entry.colour, mark="key"), label(x + at + 14, down, entry.label)]
    return drawn


def legend_height(entries: Sequence[Entry], *, width: float) -> float:
    """Return how much room a legend takes."""
    return LEGEND_LINE * (1 + max((line for _, line, _ in _laid_out(entries, width)), default=0))


def _laid_out(entries: Sequence[Entry], width: float) -> list[tuple[Entry, int, float]]:
    """Return on which line each entry is, and how far along."""
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
    """Return the end of an axis that holds `highest`, and ticks at round whole numbers."""
    step = max(1, math.ceil(_round_step(max(1, highest) / about)))
    end = step * max(1, math.ceil(highest / step))
    return end, [Tick(value / end, count_text(value)) for value in range(0, end + 1, step)]


def time_ticks(seconds: float, *, about: int = 6) -> list[Tick]:
    """Return ticks at round times within a stretch of time that begins at 0."""
    step = next((step for step in _TIME_STEPS if step >= seconds / about), 0.0)
    step = step or 86_400 * math.ceil(seconds / about / 86_400)
    count = math.floor(seconds / step + 1e-9)
    return [Tick(place * step / seconds if place else 0.0, time_text(place * step)) for place in range(count + 1)]


def log_time_ticks(low: float, high: float, *, most: int = 8) -> list[Tick]:
    """Return ticks at round times between two, for an axis on which equal ratios are equally wide."""
    values = [step for step in _ROUND_TIMES if low <= step <= high]
    if len(values) < 2:
        values = [low, high]
    every = math.ceil(len(values) / most)
    return [Tick(math.log(value / low) / math.log(high / low), time_text(value)) for value in values[::every]]


_TIME_STEPS: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30,
    60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400,
)  # fmt: skip
# One after the other about twice as long.
_ROUND_TIMES: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30,
    60, 120, 300, 600, 1800, 3600, 7200, 18_000, 43_200, 86_400, 172_800, 604_800,
)  # fmt: skip


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step - 1e-12)


def count_text(value: int) -> str:
    """Return a count with its thousands set apart, or in short from a hundred thousand on."""
    if value >= 1_000_000:
        return f"{value / 1_000_000:g}M" if value % 10_000 == 0 else f"{value / 1_000_000:.2f}M"
    return f"{value / 1000:g}k" if value >= 100_000 else f"{value:,}"


def time_text(seconds: float) -> str:
    """Return a stretch of time in the one or two units that say it best."""
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
