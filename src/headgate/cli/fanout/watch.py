"""`headgate fanout watch`: follows fan-outs until they end, with progress bars on a terminal."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.fanout.views import chunks_text, seconds_between, share_text, show_notes, start_remedy
from headgate.cli.screen import Screen, State, Step, open_screen
from headgate.cli.times import duration_text
from headgate.errors import HeadgateError
from headgate.exit_codes import ExitCode

if TYPE_CHECKING:
    from headgate.clock import Clock

_RECONNECT_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.5
# Time without a running chunk after which a hint is printed.
_HINT_SECONDS: Final = 10.0


def follow(api: Api, run_ids: Sequence[str], *, stall_seconds: float | None, as_json: bool, clock: Clock) -> int:
    """Follow fan-outs until all have ended or one stalls, and return the exit code.

    `stall_seconds` is the allowed time without progress; None applies the policy of each fan-out, 0 means no limit.
    """
    watch_state = _WatchState(run_ids, stall_seconds, clock)
    with open_screen(run_ids, as_json=as_json, is_counted=True) as screen:
        stall = _follow_until_end(api, watch_state, screen, clock)
    if not as_json:
        for state in watch_state.states.values():
            _show_outcome(state)
    if stall is not None:
        typer.echo(f"stalled: {stall}", err=True)
        return ExitCode.STALLED
    return ExitCode.OK if all(map(has_succeeded, watch_state.states.values())) else ExitCode.FAILED


def has_succeeded(state: State) -> bool:
    """Whether a fan-out that has ended did all of its work."""
    return bool(state["status"] == "SUCCEEDED")


def _follow_until_end(api: Api, watch_state: _WatchState, screen: Screen, clock: Clock) -> str | None:
    """Show states until all fan-outs end, and return the reason of a stall, if any."""
    feed: queue.Queue[State | HeadgateError] = queue.Queue()
    for run_id in watch_state.run_ids:
        # Daemon threads do not delay the exit.
        threading.Thread(target=_feed, args=(api, run_id, feed, clock), daemon=True).start()
    while not watch_state.all_ended():
        try:
            update = feed.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            update = None
        if isinstance(update, HeadgateError):
            raise update
        if update is not None and watch_state.apply(update):
            screen.show(step_of(update))
        hint, stall = watch_state.hint(), watch_state.stall()
        if stall is not None:
            return stall
        if hint is not None:
            screen.message(hint)
    return None


def _feed(api: Api, run_id: str, feed: queue.Queue[State | HeadgateError], clock: Clock) -> None:
    """Queue the states of one fan-out; reconnect if the stream ends before the fan-out does."""
    try:
        while True:
            for name, _, data in api.follow(at("fanouts", run_id, "watch")):
                if name == "state":
                    feed.put(data)
                if name == "end":
                    return
            clock.sleep(_RECONNECT_SECONDS)
    except HeadgateError as exc:
        feed.put(exc)


class _WatchState:
    """Last state of each followed fan-out, with stall detection."""

    def __init__(self, run_ids: Sequence[str], stall_seconds: float | None, clock: Clock) -> None:
        self.run_ids = run_ids
        self.states: dict[str, State] = {}
        self._stall_seconds = stall_seconds
        self._clock = clock
        self._changed_at = dict.fromkeys(run_ids, clock.monotonic())
        self._hinted: set[str] = set()

    def apply(self, state: State) -> bool:
        """Store a state, and return whether it differs: a reconnected stream repeats the last state."""
        run_id = state["run_id"]
        before = self.states.get(run_id)
        self.states[run_id] = state
        if before is None or _progress_fields(before) != _progress_fields(state):
            self._changed_at[run_id] = self._clock.monotonic()
            return True
        # A band changes by itself, without progress; that it becomes known or unknown is shown.
        return bool((before["estimate"]["unknown"] is None) != (state["estimate"]["unknown"] is None))

    def all_ended(self) -> bool:
        return len(self.states) == len(self.run_ids) and all(each["is_finished"] for each in self.states.values())

    def stall(self) -> str | None:
        """Return the stalled fan-out and the reason, if there is one."""
        if self._stall_seconds == 0:
            return None
        for run_id, state in self.states.items():
            if state["is_finished"] or state["paused_at"] is not None:
                continue
            if self._stall_seconds is None and state["stall"] is not None:
                return f"{run_id}: no progress since {state['stall']['since']}; {state['stall']['reason']}"
            idle_seconds = self._idle_seconds(run_id)
            if self._stall_seconds is not None and idle_seconds >= self._stall_seconds:
                return f"{run_id}: no progress for {duration_text(idle_seconds)}; {_idle_reason(state)}"
        return None

    def hint(self) -> str | None:
        """Return a hint for a fan-out without a worker, once per fan-out."""
        for run_id, state in self.states.items():
            is_waiting = (
                state["chunks"]["pending"] and not state["chunks"]["in_progress"] and state["paused_at"] is None
            )
            is_due = _refusal(state) is not None or self._idle_seconds(run_id) >= _HINT_SECONDS
            if is_waiting and is_due and run_id not in self._hinted:
                self._hinted.add(run_id)
                return f"{run_id}: {_idle_reason(state)}"
        return None

    def _idle_seconds(self, run_id: str) -> float:
        return self._clock.monotonic() - self._changed_at[run_id]


def _progress_fields(state: State) -> list[Any]:
    return [state[name] for name in ("status", "is_finished", "paused_at", "counts", "notes")]


def _refusal(state: State) -> str | None:
    """Return the server's note on why it does not run the chunks, if any."""
    return next((note for note in state["notes"] if note.startswith("this server cannot run it")), None)


def _idle_reason(state: State) -> str:
    running = state["chunks"]["in_progress"]
    if running:
        return f"{running} chunks are running and none completes"
    remedy = start_remedy(state, " in the folder of its handler")
    return f"{_refusal(state) or 'no worker runs its chunks'}; {remedy}"


def _show_outcome(state: State) -> None:
    total = ""
    if state["is_finished"]:
        total = f" in {duration_text(seconds_between(state['created_at'], state['finished_at']))}"
    typer.echo(f"{state['run_id']}  {state['status']}  {chunks_text(state)}{total}")
    show_notes(state)


def step_of(state: State) -> Step:
    """Return the step that a state of a fan-out is."""
    chunks = state["chunks"]
    return Step(
        id=state["run_id"],
        moment=state["at"][11:19],
        status=state["status"],
        text=_counts_text(state),
        share=share_text(state),
        done=chunks["total"] - chunks["pending"] - chunks["in_progress"],
        total=chunks["total"],
        is_ended=state["is_finished"],
        state=state,
    )


def _counts_text(state: State) -> str:
    chunks = state["chunks"]
    names = {"failed": "failed", "in_progress": "running", "pending": "pending"}
    parts = [f"{chunks['completed']}/{chunks['total']} completed"]
    parts += [f"{chunks[name]} {label}" for name, label in names.items() if chunks[name]]
    slow = sum(state["counts"][f"slow_{name}"] for name in ("waiting", "queued", "retrying", "running"))
    parts += [f"{slow} open in the slow lane"] if slow else []
    if state["paused_at"] is not None and not state["is_finished"]:
        return ", ".join([*parts, "paused"])
    remaining = "" if state["is_finished"] else f"; remaining {state['estimate']['text']}"
    return ", ".join(parts) + remaining
