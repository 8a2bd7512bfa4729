"""Screen of a command that follows something until it ends: JSON lines, plain lines, or progress on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import typer

from headgate.cli.session import echo_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, ProgressColumn, TaskID

State = Mapping[str, Any]
_STYLES: Final = {
    **dict.fromkeys(("SUCCEEDED", "COMPLETED", "COMPLETED_MONITORING"), "green"),
    **dict.fromkeys(("FAILED", "CANCELLED", "PARTIAL"), "red"),
    **dict.fromkeys(("PENDING", "PAUSED", "WAITING"), "yellow"),
}


# Widths on a terminal: of the counts and the status, of a bar, and of what bar and text need to share a line.
_COUNTS_WIDTH: Final = 36
_BAR_WIDTH_MIN: Final = 8
_BAR_WIDTH_MAX: Final = 40
_ROOM_FOR_TEXT: Final = 120


class Step(NamedTuple):
    """How far one followed thing is. `total` is 0 while it is unknown."""

    id: str
    # UTC, HH:MM:SS.
    moment: str
    status: str
    text: str
    share: str = ""
    done: int = 0
    total: int = 0
    is_ended: bool = False
    # The same as JSON.
    state: State = {}

    @property
    def line(self) -> str:
        """The step as one line of text."""
        return "  ".join(part for part in (self.moment, self.id, self.status, self.share, self.text) if part)


class Screen(Protocol):
    """Output of the steps of what is followed."""

    def show(self, step: Step) -> None:
        """Show a step."""

    def message(self, text: str) -> None:
        """Print a message."""


@contextmanager
def open_screen(ids: Sequence[str], *, as_json: bool, is_counted: bool) -> Iterator[Screen]:
    """Yield the screen for what is followed. On a terminal it has bars, or, if nothing is counted, the time passed."""
    from rich.console import Console

    console = Console()
    if as_json:
        yield JsonLines()
        return
    if not console.is_terminal:
        yield Lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    name = TextColumn("{task.description}", markup=False)
    status = TextColumn("{task.fields[status]}")
    if not is_counted:
        with Progress(SpinnerColumn(), name, TimeElapsedColumn(), status, console=console, transient=True) as progress:
            yield _Spinner(progress, ids)
        return
    # What is left beside the ids, counts and statuses is shared by bar and text.
    room = console.width - max(map(len, ids)) - _COUNTS_WIDTH
    bar = BarColumn(bar_width=max(_BAR_WIDTH_MIN, min(_BAR_WIDTH_MAX, room if room < _ROOM_FOR_TEXT else room // 2)))
    columns: list[ProgressColumn] = [name, bar, MofNCompleteColumn(), status]
    if room >= _ROOM_FOR_TEXT:
        columns.append(TextColumn("{task.fields[text]}", markup=False, table_column=Column(overflow="fold")))
        with Progress(*columns, console=console, transient=True) as progress:
            yield _Bars(progress, ids)
        return
    with _two_lines(columns, console) as progress:
        yield _Bars(progress, ids)


def _two_lines(columns: Sequence[ProgressColumn], console: Console) -> Progress:
    """Return a display that has the text of each task below its bar, for narrow terminals."""
    from rich.progress import Progress
    from rich.text import Text

    class TwoLines(Progress):
        def get_renderables(self) -> Iterator[RenderableType]:
            for task in self.tasks:
                yield self.make_tasks_table([task])
                if task.fields["text"]:
                    yield Text(f"  {task.fields['text']}", overflow="fold")

    return TwoLines(*columns, console=console, transient=True)


class JsonLines:
    """One JSON document per state; messages go to standard error."""

    def show(self, step: Step) -> None:
        echo_json(step.state)

    def message(self, text: str) -> None:
        typer.echo(text, err=True)


class Lines:
    """One line per step, for files and pipes."""

    def show(self, step: Step) -> None:
        typer.echo(step.line)

    def message(self, text: str) -> None:
        typer.echo(text)


class _Bars:
    def __init__(self, progress: Progress, ids: Sequence[str]) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {each: _add_task(progress, each) for each in ids}
        self._steps: dict[str, Step] = {}
        self._sum = _add_task(progress, "all") if len(ids) > 1 else None

    def show(self, step: Step) -> None:
        self._steps[step.id] = step
        self._update(self._tasks[step.id], [step], _coloured(step.status), step.text)
        if self._sum is not None:
            ended = sum(1 for each in self._steps.values() if each.is_ended)
            self._update(self._sum, list(self._steps.values()), "", f"{ended} of {len(self._tasks)} ended")

    def message(self, text: str) -> None:
        self._progress.console.print(text, markup=False)

    def _update(self, task: TaskID, steps: Sequence[Step], status: str, text: str) -> None:
        total, done = sum(each.total for each in steps), sum(each.done for each in steps)
        self._progress.update(task, total=total or 1, completed=done if total else 1, status=status, text=text)


class _Spinner:
    """The steps as lines, and below them the status and the time since the command started."""

    def __init__(self, progress: Progress, ids: Sequence[str]) -> None:
        self._progress = progress
        self._tasks = {each: _add_task(progress, each) for each in ids}

    def show(self, step: Step) -> None:
        from rich.text import Text

        line = Text(step.line, overflow="fold")
        line.highlight_words([step.status], _style(step.status))
        self._progress.console.print(line)
        for task in self._tasks.values():
            self._progress.update(task, status=_coloured(step.status))

    def message(self, text: str) -> None:
        self._progress.console.print(text, markup=False)


def _add_task(progress: Progress, name: str) -> TaskID:
    return progress.add_task(name, total=None, status="", text="")


def _coloured(status: str) -> str:
    return f"[{_style(status)}]{status}[/]"


def _style(status: str) -> str:
    return _STYLES.get(status, "cyan")
