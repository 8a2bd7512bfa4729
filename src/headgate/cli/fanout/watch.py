"""`headgate fanout watch`: follows fan-outs until they have ended, with a bar for each on a terminal."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.fanout.exit_codes import STALLED, exit_code
from headgate.cli.fanout.views import about, chunks_text, seconds_between, show_notes, work_command
from headgate.cli.session import echo_json
from headgate.errors import HeadgateError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from headgate.clock import Clock

_COME_BACK_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.5
# When someone who waits would like to know that nobody works.
_HINT_SECONDS: Final = 10.0
State = Mapping[str, Any]


class Screen(Protocol):
    """Where states are shown as they come."""

    def show(self, state: State) -> None:
        """Show a state."""

    def say(self, sentence: str) -> None:
        """Show a sentence."""


def follow(api: Api, run_ids: Sequence[str], *, stall_seconds: float | None, as_json: bool, clock: Clock) -> int:
    """Follow fan-outs until all have ended or one has stalled, and return the exit code.

    `stall_seconds` is for how long nothing may happen; without it, the policy of each decides, and 0 is for ever.
    """
    in_disposition = _Watched(run_ids, stall_seconds, clock)
    with _screen(run_ids, as_json=as_json) as screen:
        stall = _until_over(api, in_disposition, screen, clock)
    if not as_json:
        for state in in_disposition.states.values():
            _conclude(state)
    if stall is not None:
        typer.echo(f"stalled: {stall}", err=True)
        return STALLED
    return max((exit_code(state["status"]) for state in in_disposition.states.values()), default=0)


def _until_over(api: Api, in_disposition: _Watched, screen: Screen, clock: Clock) -> str | None:
    """Show states until there are no more, and return what has stalled, if so."""
    feed: queue.Queue[State | HeadgateError] = queue.Queue()
    for run_id in in_disposition.run_ids:
        # Daemons: whoever has seen enough does not wait for them.
        threading.Thread(target=_feed, args=(api, run_id, feed, clock), daemon=True).start()
    while not in_disposition.is_over():
        try:
            news = feed.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            news = None
        if isinstance(news, HeadgateError):
            raise news
        if news is not None and in_disposition.learn(news):
            screen.show(news)
        hint, stall = in_disposition.hint(), in_disposition.stall()
        if stall is not None:
            return stall
        if hint is not None:
            screen.say(hint)
    return None


def _feed(api: Api, run_id: str, feed: queue.Queue[State | HeadgateError], clock: Clock) -> None:
    """Pass on the states of one fan-out; a stream that ends before it has ended is begun again."""
    try:
        while True:
            for name, _, data in api.follow(at("fanouts", run_id, "watch")):
                if name == "state":
                    feed.put(data)
                if name == "end":
                    return
            clock.sleep(_COME_BACK_SECONDS)
    except HeadgateError as exc:
        feed.put(exc)


class _Watched:
    """What is known of each fan-out that is followed."""

    def __init__(self, run_ids: Sequence[str], stall_seconds: float | None, clock: Clock) -> None:
        self.run_ids = run_ids
        self.states: dict[str, State] = {}
        self._stall_seconds = stall_seconds
        self._clock = clock
        self._moved_at = dict.fromkeys(run_ids, clock.monotonic())
        self._hinted: set[str] = set()

    def learn(self, state: State) -> bool:
        """Take in a state, and return whether it is news: a stream that was begun again tells what is known."""
        run_id = state["run_id"]
        before = self.states.get(run_id)
        self.states[run_id] = state
        if before is not None and _substance(before) == _substance(state):
            return False
        self._moved_at[run_id] = self._clock.monotonic()
        return True

    def is_over(self) -> bool:
        return len(self.states) == len(self.run_ids) and all(each["is_finished"] for each in self.states.values())

    def stall(self) -> str | None:
        """Return which fan-out does not go on, and why, if one does not."""
        if self._stall_seconds == 0:
            return None
        for run_id, state in self.states.items():
            if state["is_finished"] or state["paused_at"] is not None:
                continue
            if self._stall_seconds is None and state["stall"] is not None:
                return f"{run_id}: nothing has ended since {state['stall']['since']}; {state['stall']['reason']}"
            silent = self._silent_seconds(run_id)
            if self._stall_seconds is not None and silent >= self._stall_seconds:
                return f"{run_id}: nothing has happened for {about(silent)}; {_why_silent(state)}"
        return None

    def hint(self) -> str | None:
        """Return, once for each, which fan-out nobody works on."""
        for run_id, state in self.states.items():
            waits = state["chunks"]["pending"] and not state["chunks"]["in_progress"] and state["paused_at"] is None
            is_due = _refusal(state) is not None or self._silent_seconds(run_id) >= _HINT_SECONDS
            if waits and is_due and run_id not in self._hinted:
                self._hinted.add(run_id)
                return f"{run_id}: {_why_silent(state)}"
        return None

    def _silent_seconds(self, run_id: str) -> float:
        return self._clock.monotonic() - self._moved_at[run_id]


def _substance(state: State) -> list[Any]:
    return [state[name] for name in ("status", "is_finished", "paused_at", "counts", "notes")]


def _refusal(state: State) -> str | None:
    """Return why the server does not run the chunks itself, if it has said so."""
    return next((note for note in state["notes"] if note.startswith("this server cannot run it")), None)


def _why_silent(state: State) -> str:
    running = state["chunks"]["in_progress"]
    if running:
        return f"{running} chunks are running, and none of them ends"
    said = f"start one with {work_command(state)} in the folder that has its handler"
    return f"{_refusal(state) or 'no worker takes its chunks'}; {said}"


def _conclude(state: State) -> None:
    took = ""
    if state["is_finished"]:
        took = f" in {about(seconds_between(state['created_at'], state['finished_at']))}"
    typer.echo(f"{state['run_id']}  {state['status']}  {chunks_text(state)}{took}")
    show_notes(state)


# Screens.


@contextmanager
def _screen(run_ids: Sequence[str], *, as_json: bool) -> Iterator[Screen]:
    from rich.console import Console

    console = Console()
    if as_json:
        yield _JsonLines()
    elif not console.is_terminal:
        yield _Lines()
    else:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}", markup=False),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            yield _Bars(progress, run_ids)


class _JsonLines:
    def show(self, state: State) -> None:
        echo_json(state)

    def say(self, sentence: str) -> None:
        typer.echo(sentence, err=True)


class _Lines:
    def show(self, state: State) -> None:
        moment = state["at"][11:19]
        typer.echo(f"{moment}  {state['run_id']}  {state['status']}  {state['share']:.0%}  {_said(state)}")

    def say(self, sentence: str) -> None:
        typer.echo(sentence)


class _Bars:
    def __init__(self, progress: Progress, run_ids: Sequence[str]) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {run_id: progress.add_task(run_id, total=None, said="") for run_id in run_ids}
        self._states: dict[str, State] = {}
        self._sum = progress.add_task("all", total=None, said="") if len(run_ids) > 1 else None

    def show(self, state: State) -> None:
        self._states[state["run_id"]] = state
        self._update(self._tasks[state["run_id"]], [state], f"{state['status']}  {_said(state)}")
        if self._sum is not None:
            ended = sum(1 for each in self._states.values() if each["is_finished"])
            self._update(self._sum, list(self._states.values()), f"{ended} of {len(self._tasks)} have ended")

    def say(self, sentence: str) -> None:
        self._progress.console.print(sentence, markup=False)

    def _update(self, task: TaskID, states: Sequence[State], said: str) -> None:
        total = sum(each["chunks"]["total"] for each in states)
        still = sum(each["chunks"]["pending"] + each["chunks"]["in_progress"] for each in states)
        self._progress.update(task, total=total or 1, completed=(total - still) if total else 1, said=said)


def _said(state: State) -> str:
    chunks = state["chunks"]
    names = {"failed": "failed", "in_progress": "running", "pending": "waiting"}
    parts = [f"{chunks['completed']}/{chunks['total']} completed"]
    parts += [f"{chunks[name]} {said}" for name, said in names.items() if chunks[name]]
    if state["paused_at"] is not None and not state["is_finished"]:
        return ", ".join([*parts, "paused"])
    eta = state["estimate"]["eta_seconds"]
    left = f"; {about(eta)} left" if eta is not None and not state["is_finished"] else ""
    return ", ".join(parts) + left
