"""Period grid: the latest periods of a pipeline as a strip, in a list small and on its page with durations."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct, structs

from headgate.health.model.timestamps import instant
from headgate.pipelines.enums import JobEvent, RunStatus
from headgate.pipelines.overview.status import PipelineStatus
from headgate.pipelines.runs.rows import RunLog, Slot
from headgate.serve.pages.labels import UTC, duration_ms, span, stamp

HEIGHT: Final = 24
_STEP: Final = 12
# Of the strip with durations.
DURATION_HEIGHT: Final = 72
_DURATION_STEP: Final = 18
_HEAD: Final = 16
_BAR_MIN: Final = 10
_WIDTH: Final = 9


class Mark(enum.StrEnum):
    """Visual state of a period."""

    DONE = "done"
    RUNNING = "running"
    WAITING = "waiting"
    HELD = "held"
    FAILED = "failed"
    MISSED = "missed"
    SKIPPED = "skipped"


# Distinguished by height and sign, too, for colour-blind users.
_HEIGHTS: Final[Mapping[Mark, int]] = {
    Mark.DONE: 8,
    Mark.RUNNING: 14,
    Mark.WAITING: 11,
    Mark.HELD: 18,
    Mark.FAILED: HEIGHT,
    Mark.MISSED: HEIGHT,
    Mark.SKIPPED: 4,
}
_SIGNS: Final[Mapping[Mark, str]] = {
    Mark.DONE: "\N{HEAVY CHECK MARK}",
    Mark.RUNNING: "\N{BLACK RIGHT-POINTING TRIANGLE}",
    Mark.WAITING: "\N{HORIZONTAL ELLIPSIS}",
    Mark.HELD: "\N{DOUBLE VERTICAL LINE}",
    Mark.FAILED: "\N{HEAVY MULTIPLICATION X}",
    Mark.MISSED: "!",
    Mark.SKIPPED: "\N{EN DASH}",
}


class Cell(Struct, frozen=True, kw_only=True):
    """One period, with its run if it has started."""

    slot: Slot
    mark: Mark
    title: str
    run_id: str = ""

    @property
    def sign(self) -> str:
        """Symbol of the state."""
        return _SIGNS[self.mark]

    @property
    def height(self) -> int:
        """Height in pixels."""
        return _HEIGHTS[self.mark]


class PeriodStrip(Struct, frozen=True):
    """Cells in a row, latest period last."""

    cells: tuple[Cell, ...]
    # Number of positions, so that the strips of a list align.
    room: int
    height: int = HEIGHT
    cell_width: int = _WIDTH

    @property
    def width(self) -> int:
        """Total width."""
        return self.room * _STEP

    @property
    def placed(self) -> list[tuple[int, Cell]]:
        """The cells with their x positions."""
        first = self.room - len(self.cells)
        return [((first + index) * _STEP, cell) for index, cell in enumerate(self.cells)]

    @property
    def text(self) -> str:
        """Text alternative."""
        counted = Counter(each.mark for each in self.cells)
        counts = ", ".join(f"{counted[each]} {each.value}" for each in Mark if counted[each])
        last = f"; latest: {self.cells[-1].title}" if self.cells else ""
        return f"{counts}{last}" if counts else "no period has started yet"


def period_strip(status: PipelineStatus, now_ms: int) -> PeriodStrip:
    """Return the strip of the latest periods of a pipeline."""
    drawn = cells(status.logs, status.missed, now_ms, status.pipeline.timezone)[-status.periods :]
    return PeriodStrip(tuple(drawn), status.periods)


class Bar(Struct, frozen=True, kw_only=True):
    """A period of a strip with durations: its place, and the part of the height that its duration takes."""

    cell: Cell
    x: int
    y: int
    height: int


class DurationStrip(Struct, frozen=True, kw_only=True):
    """Bars in a row, latest period last; the longest job has the full height."""

    bars: list[Bar]
    width: int
    text: str
    longest: str
    height: int = DURATION_HEIGHT
    bar_width: int = _DURATION_STEP - 4
    # Room above a bar for its sign.
    head: int = _HEAD

    @property
    def step(self) -> int:
        """Distance from one bar to the next."""
        return _DURATION_STEP


def duration_strip(status: PipelineStatus, lengths_ms: Mapping[str, int], now_ms: int) -> DurationStrip:
    """Return the strip of the latest periods, with the durations of their jobs by run."""
    strip = period_strip(status, now_ms)
    longest_ms = max((lengths_ms.get(each.run_id, 0) for each in strip.cells), default=0)
    room = DURATION_HEIGHT - _HEAD - _BAR_MIN
    bars: list[Bar] = []
    for index, cell in enumerate(strip.cells):
        length_ms = lengths_ms.get(cell.run_id)
        took = f", the job took {duration_ms(length_ms)}" if length_ms is not None else ""
        height = _BAR_MIN + (room * length_ms // longest_ms if length_ms and longest_ms else 0)
        named = structs.replace(cell, title=cell.title + took)
        bars.append(Bar(cell=named, x=index * _DURATION_STEP + 2, y=DURATION_HEIGHT - height, height=height))
    return DurationStrip(
        bars=bars,
        width=max(1, len(bars)) * _DURATION_STEP,
        text=strip.text,
        longest=duration_ms(longest_ms) if longest_ms else "",
    )


def cells(logs: Iterable[RunLog], missed: Sequence[Slot], now_ms: int, zone: str = UTC) -> list[Cell]:
    """Return a cell for each started or missed period, latest last. Times are in the time zone."""
    drawn = {log.slot: _cell(log, now_ms, zone) for log in logs}
    for slot in missed:
        drawn.setdefault(slot, Cell(slot=slot, mark=Mark.MISSED, title=f"{slot.date}: missed, not started"))
    return sorted(drawn.values(), key=lambda each: (each.slot.date, each.slot.schedule_id))


def mark_of(log: RunLog) -> Mark:
    """Return the visual state of a period."""
    if log.status.is_done:
        return Mark.DONE
    if log.status is RunStatus.CANCELLED:
        return Mark.SKIPPED
    if log.status is RunStatus.FAILED:
        return Mark.FAILED
    if log.hold is not None:
        return Mark.HELD
    return Mark.WAITING if log.status is RunStatus.PENDING else Mark.RUNNING


def _cell(log: RunLog, now_ms: int, zone: str) -> Cell:
    return Cell(slot=log.slot, mark=mark_of(log), title=f"{log.date}: {_title(log, now_ms, zone)}", run_id=log.run_id)


def _title(log: RunLog, now_ms: int, zone: str) -> str:
    attempts = f", attempt {log.attempts}" if log.attempts > 1 else ""
    if log.ended_at_ms is not None and (log.status.is_terminal or log.status.is_done):
        exhausted = " (never became ready)" if log.event is JobEvent.VALIDATION_EXHAUSTED else ""
        return f"{log.status.value}{exhausted} at {stamp(instant(log.ended_at_ms), zone)}{attempts}"
    held = f", held by {log.hold.by}" if log.hold is not None else ""
    since_ms = log.begun_at_ms or log.updated_at_ms
    return f"{log.status.value} for {span(max(0, now_ms - since_ms) / 1000)}{attempts}{held}"
