"""Chunk map: a grid of cells in item order, coloured by the disposition of the chunks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from headgate.fanout.insight.plot_axes import (
    AMBER,
    BLUE,
    BROWN,
    GREEN,
    MAGENTA,
    MARGIN,
    PURPLE,
    RED,
    WIDTH,
    Entry,
    Frame,
    count_text,
    document,
    empty,
    head,
    label,
    number,
    rectangle,
    shortened,
)
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import Chunk
from headgate.fanout.model.states import Disposition

# With more chunks than this, a cell covers several.
CELLS_MAX: Final = 10_000
TIPS_MAX: Final = 500
CELL_MIN: Final = 4
CELL_MAX: Final = 24
MAP_HEIGHT: Final = 480.0
ROW_LABELS_MAX: Final = 12
# In ascending severity: a cell shows the most severe disposition of its chunks.
_SEVERITY: Final = (
    Disposition.DONE,
    Disposition.SKIPPED,
    Disposition.QUEUED,
    Disposition.WAITING,
    Disposition.DEFERRED,
    Disposition.RUNNING,
    Disposition.CANCELLED,
    Disposition.RETRYING,
    Disposition.QUARANTINED,
    Disposition.DEAD,
)
_RANK: Final = {disposition: rank for rank, disposition in enumerate(_SEVERITY)}
_BAD: Final = (Disposition.DEAD, Disposition.QUARANTINED)
_COLOURS: Final[Mapping[Disposition, str]] = {
    Disposition.DONE: GREEN,
    Disposition.SKIPPED: BROWN,
    Disposition.QUEUED: "#9aa3ad",
    Disposition.WAITING: "#b4bbc3",
    Disposition.DEFERRED: PURPLE,
    Disposition.RUNNING: BLUE,
    Disposition.CANCELLED: "#5f6872",
    Disposition.RETRYING: AMBER,
    Disposition.QUARANTINED: MAGENTA,
    Disposition.DEAD: RED,
}


class Cell(Struct, frozen=True):
    """The worst chunk of a cell, reduced to what is shown."""

    disposition: Disposition
    chunk_id: str
    error: str | None


def failure_map(
    run_id: str,
    chunks: Iterable[Chunk],
    *,
    chunks_total: int,
    items_total: int,
    counts: Counts | None = None,
    cells_max: int = CELLS_MAX,
    note: str = "",
) -> str:
    """Return a grid of chunks in item order, each coloured by its disposition.

    With many chunks a cell covers several and shows the worst. A cell without a given chunk stays blank. The legend
    counts the given chunks, or uses `counts`. Memory is bounded by the grid.
    """
    title = f"Chunks of {run_id} by place"
    if chunks_total == 0:
        return empty("map", title, "There are no chunks.")
    cells = min(chunks_total, cells_max)
    worst: dict[int, Cell] = {}
    counted: dict[Disposition, int] = {}
    for chunk in chunks:
        counted[chunk.disposition] = counted.get(chunk.disposition, 0) + 1
        place = min(cells - 1, chunk.start * cells // max(1, items_total))
        if place not in worst or _RANK[chunk.disposition] > _RANK[worst[place].disposition]:
            worst[place] = Cell(chunk.disposition, chunk.chunk_id, chunk.error)
    if counts is not None:
        counted = {disposition: getattr(counts, disposition.bucket) for disposition in Disposition}
    entries = [
        Entry(_COLOURS[disposition], f"{disposition.value.lower()} {count_text(counted[disposition])}")
        for disposition in reversed(_SEVERITY)
        if counted.get(disposition)
    ]
    if cells < chunks_total:
        note = f"Each cell covers about {round(chunks_total / cells)} chunks and shows the worst. {note}".strip()
    return _drawn_map(title, worst, cells, items_total, entries, note)


def _drawn_map(
    title: str, worst: Mapping[int, Cell], cells: int, items_total: int, entries: Sequence[Entry], note: str
) -> str:
    body, top = head(entries, note, width=WIDTH)
    room = Frame().inner_width
    size = min(CELL_MAX, max(CELL_MIN, math.floor(math.sqrt(room * MAP_HEIGHT / cells))))
    columns = int(room // size)
    rows = math.ceil(cells / columns)
    frame = Frame(top=top, bottom=MARGIN, height=top + rows * size + MARGIN)
    for row in range(0, rows, math.ceil(rows / ROW_LABELS_MAX)):
        item = row * columns * items_total // cells
        body.append(label(frame.left - 6, top + row * size + min(size, 11), count_text(item), anchor="end"))
    grid = _Grid(frame, size, columns)
    bad = [place for place, cell in sorted(worst.items()) if cell.disposition in _BAD][:TIPS_MAX]
    tipped = set(bad)
    body += grid.open_cells(set(range(cells)) - worst.keys())
    body += grid.by_colour({place: cell for place, cell in worst.items() if place not in tipped})
    body += [grid.tipped(place, worst[place]) for place in bad]
    detail = ", ".join(entry.label for entry in entries) or "no chunk was read"
    return document("map", title, f"{detail}. {note}", body, frame=frame)


class _Grid:
    """Cells in rows."""

    def __init__(self, frame: Frame, size: int, columns: int) -> None:
        self._frame = frame
        self._size = size
        self._columns = columns
        self._inner = size - 1

    def by_colour(self, cells: Mapping[int, Cell]) -> list[str]:
        """Return one path for all cells of a disposition, which keeps the picture small."""
        places: dict[Disposition, list[int]] = {}
        for place, cell in cells.items():
            places.setdefault(cell.disposition, []).append(place)
        return [
            f'<path class="{disposition.value}" fill="{_COLOURS[disposition]}" d="{self._squares(sorted(found))}">'
            f"<title>{disposition.value.lower()}</title></path>"
            for disposition, found in sorted(places.items(), key=lambda one: _RANK[one[0]])
        ]

    def open_cells(self, places: Iterable[int]) -> list[str]:
        drawn = self._squares(sorted(places))
        return [f'<path class="unread" fill-opacity="0.1" d="{drawn}"><title>not read</title></path>'] if drawn else []

    def tipped(self, place: int, cell: Cell) -> str:
        x, y = self._corner(place)
        error = shortened(cell.error or "no error is known", 160)
        tip = f"{cell.chunk_id} {cell.disposition.value.lower()}: {error}"
        colour, mark = _COLOURS[cell.disposition], cell.disposition.value
        return rectangle(x, y, self._inner, self._inner, colour, mark=mark, tip=tip)

    def _squares(self, places: Iterable[int]) -> str:
        shape = f"h{self._inner}v{self._inner}h-{self._inner}z"
        corners = (self._corner(place) for place in places)
        return "".join(f"M{number(x)} {number(y)}{shape}" for x, y in corners)

    def _corner(self, place: int) -> tuple[float, float]:
        row, column = divmod(place, self._columns)
        return self._frame.left + column * self._size, self._frame.top + row * self._size
