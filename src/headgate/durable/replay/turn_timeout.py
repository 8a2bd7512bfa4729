"""Turn timeout: interrupts workflow code that runs for too long without waiting, so that other executions go on.

One watchdog thread watches all turns of the process. It raises an exception in the thread of a turn whose time is up.
Code that does not return to the interpreter, or that catches everything, can only be reported. Nothing is raised
outside of `run`:

- A turn removes itself from the list, and then checks whether it was marked. The watchdog marks it, and then checks
  whether it is on the list. So one of them sees the other: either nothing is raised, or the turn clears what may be
  pending.
- A thread switches only where it also receives exceptions. An exception that was raised while the turn was on the list
  is therefore received before its next line, and at most one more can be pending.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from time import monotonic
from types import FrameType
from typing import Final, ParamSpec, TypeVar

import structlog
from msgspec import Struct

from headgate.errors import WorkflowViolationError

TURN_SECONDS: Final = 2.0
# For tests, where the machine may be slow and no other execution waits.
PATIENT_SECONDS: Final = 30.0
_CHECK_SECONDS_MAX: Final = 0.5
_CHECKS_PER_TURN: Final = 8
# A turn that must not be interrupted where it is gets checked this often, for so long.
_RECHECK_SECONDS: Final = 0.005
_RECHECKS_SECONDS_MAX: Final = 10.0
# A turn that still runs after so many checks cannot be stopped.
_CHECKS_UNTIL_REPORT: Final = 4
_FRAMES_MAX: Final = 30
# Code of these modules must not be interrupted: it would leave a half-imported module, or a lock that is never
# released. A debugger may take any time.
_WHOLE: Final = frozenset(
    {
        *("_frozen_importlib", "_frozen_importlib_external", "importlib", "zipimport"),
        *("logging", "structlog", "threading", "weakref"),
        *("bdb", "pdb", "pydevd", "_pydevd_bundle", "debugpy"),
    }
)
_log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class TurnInterrupted(BaseException):
    """Ends workflow code at its time limit. Not an `Exception`, so that `except Exception` does not catch it."""


class WatchedTurn(Struct, eq=False):
    """A turn, and what the watchdog knows of it."""

    execution_id: str
    since: float
    ends_at: float
    # Its time limit; None if it shares a limit with other turns.
    seconds: float | None
    # When the watchdog first found it over its limit.
    late_at: float | None = None
    is_noticed: bool = False
    is_raised: bool = False
    is_reported: bool = False
    # Its last known position: the line of user code, and all frames, the innermost first.
    place: str = ""
    frames: Sequence[str] = ()

    def violation(self) -> WorkflowViolationError:
        """Return the error of an interrupted turn."""
        fact = f"execution {self.execution_id}: interrupted after {monotonic() - self.since:.1f} s at {self.place}"
        if self.seconds is None:
            return WorkflowViolationError(fact)
        return WorkflowViolationError(
            f"{fact}; workflow code may go on for {self.seconds:g} s without waiting for anything: "
            "do long work in an activity, or set worker.turn_seconds"
        )


class Overdue(Struct, frozen=True):
    """A turn over its time limit that still runs: for how long, and its last known position."""

    execution_id: str
    seconds: float
    place: str


class _TimeLimit(threading.local):
    """The time limit of turns in a thread: of each turn, or of all of them until a time."""

    seconds = PATIENT_SECONDS
    ends_at: float | None = None


_time_limit: Final = _TimeLimit()
_running: Final[dict[int, WatchedTurn]] = {}
# Held while the watchdog marks a turn and acts on it.
_deciding: Final = threading.Lock()
_starting: Final = threading.Lock()
_is_watching = False
# The current limits of all threads: the shortest sets the interval of the watchdog.
_limits: Final[list[float]] = []


@contextmanager
def each_turn(seconds: float) -> Iterator[None]:
    """Limit every turn of this thread to so many seconds, within the block."""
    before, _time_limit.seconds = _time_limit.seconds, seconds
    _limits.append(seconds)
    try:
        yield
    finally:
        _limits.remove(seconds)
        _time_limit.seconds = before


@contextmanager
def all_turns(seconds: float) -> Iterator[None]:
    """Limit all turns of this thread together to so many seconds, within the block."""
    before, _time_limit.ends_at = _time_limit.ends_at, monotonic() + seconds
    try:
        yield
    finally:
        _time_limit.ends_at = before


def begin(execution_id: str) -> WatchedTurn:
    """Return a new turn of this thread, for `run`. Not for workflow code: it may start the watchdog thread."""
    if not _is_watching:
        _start()
    now = monotonic()
    ends_at = _time_limit.ends_at
    if ends_at is not None:
        return WatchedTurn(execution_id, now, ends_at, None)
    seconds = _time_limit.seconds
    return WatchedTurn(execution_id, now, now + seconds, seconds)


def run(watched: WatchedTurn, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of `work`. Raises `WorkflowViolationError` if it was interrupted, even if it caught that."""
    thread = get_ident()
    try:
        try:
            _running[thread] = watched
            result = work(*args, **kwargs)
        finally:
            # No call and no backward jump before the turn is off the list, so that nothing is raised here.
            del _running[thread]
            if watched.is_noticed:
                try:
                    _clear(thread)
                except TurnInterrupted:
                    # The one exception that may have been pending.
                    _clear(thread)
    except (TurnInterrupted, Exception):
        if watched.is_raised:
            raise watched.violation() from None
        raise
    if watched.is_raised:
        raise watched.violation()
    return result


def overdue() -> list[Overdue]:
    """Return the turns over their time limit that still run."""
    now = monotonic()
    late = [each for each in _running.copy().values() if each.place]
    return [Overdue(each.execution_id, now - each.since, each.place) for each in late]


# The watchdog.


def _start() -> None:
    global _is_watching
    with _starting:
        if not _is_watching:
            threading.Thread(target=_watch, name="headgate-turn-watch", daemon=True).start()
            _is_watching = True


def _forget() -> None:
    global _is_watching
    _is_watching = False


# A fork has none of the threads.
os.register_at_fork(after_in_child=_forget)


def _watch() -> None:
    pause = threading.Event()
    try:
        while True:
            now = monotonic()
            wait_seconds = _check_seconds()
            for thread, watched in _running.copy().items():
                if now >= watched.ends_at and not _check(thread, watched, now):
                    is_rechecked = now < watched.ends_at + _RECHECKS_SECONDS_MAX
                    wait_seconds = min(wait_seconds, _RECHECK_SECONDS) if is_rechecked else wait_seconds
            pause.wait(wait_seconds)
    finally:
        # For example, the log cannot be written. The next turn starts a new watchdog.
        _forget()


def _check_seconds() -> float:
    return min(_CHECK_SECONDS_MAX, min(_limits.copy(), default=PATIENT_SECONDS) / _CHECKS_PER_TURN)


def _check(thread: int, watched: WatchedTurn, now: float) -> bool:
    """Act on a turn over its limit. False if it must not be interrupted where it is."""
    if watched.late_at is None:
        # Not at once: the whole process may have been suspended, and the turn may be about to end.
        watched.late_at = now
        return True
    was_raised = watched.is_raised
    with _deciding:
        watched.is_noticed = True
        if _running.get(thread) is not watched:
            return True
        may_raise = _examine(thread, watched)
        if may_raise:
            watched.is_raised = True
            _raise_in(thread, ctypes.py_object(TurnInterrupted))
    facts = {"execution_id": watched.execution_id, "seconds": round(now - watched.since, 1), "place": watched.place}
    if may_raise and not was_raised:
        _log.warning("turn interrupted", **facts)
    if now - watched.late_at > _CHECKS_UNTIL_REPORT * _check_seconds() and not watched.is_reported:
        watched.is_reported = True
        _log.error("turn cannot be interrupted", **facts, frames=watched.frames)
    return may_raise


def _examine(thread: int, watched: WatchedTurn) -> bool:
    """Record the position of a turn, and return whether it may be interrupted there."""
    frame: FrameType | None = sys._current_frames().get(thread)
    frames: list[str] = []
    place = ""
    may_raise = True
    while frame is not None and frame.f_code is not run.__code__:
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        may_raise = may_raise and root not in _WHOLE and frame.f_code.co_name != "__del__"
        frames.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")
        if not place and root != "headgate" and root not in sys.stdlib_module_names:
            # The innermost line of user code, or of a package that it uses.
            place = frames[-1]
        frame = frame.f_back
    watched.frames = frames[:_FRAMES_MAX]
    watched.place = place or next(iter(frames), "an unknown place")
    # Without a frame of `run`, it is just starting or ending.
    return may_raise and frame is not None


def _clear(thread: int) -> None:
    with _deciding:
        _raise_in(thread, ctypes.py_object())


def _raise_in(thread: int, error: ctypes.py_object[type[BaseException]]) -> None:
    """Raise an exception in a thread as soon as possible; an empty one cancels a pending one."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error)
