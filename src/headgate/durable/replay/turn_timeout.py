"""The watch over turns: workflow code that goes on without ever waiting is interrupted, so that others get their turn.

One thread watches all turns of the process. It raises an exception in the thread of a turn whose time is up; code that
does not return to the interpreter, or lets nothing stop it, can only be reported. Nothing is raised outside of `run`:

- A turn takes itself off the list, and then looks whether it was noticed. The watch notices it, and then looks whether
  it is on the list. So one of them sees the other: either nothing is raised, or the turn clears what may be pending.
- A thread lets others run only where it also takes exceptions. What was raised while it was on the list is therefore
  taken before it gets to its next line, and at most one more can be under way.
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
# For turns that are driven by hand, as in tests: the machine may be slow, and nobody else waits.
PATIENT_SECONDS: Final = 30.0
_LOOK_SECONDS_MAX: Final = 0.5
_LOOKS_A_TURN: Final = 8
# One that was found where it must not be interrupted is looked at this often, for so long.
_HURRY_SECONDS: Final = 0.005
_HURRIES_SECONDS_MAX: Final = 10.0
# A turn that still goes on after so many looks lets nothing stop it.
_LOOKS_UNTIL_REPORT: Final = 4
_FRAMES_MAX: Final = 30
# Code of these modules must not be torn: half a module imported, or a lock taken that nobody gives back. Whoever sits
# in a debugger has time.
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
    """Ends workflow code whose time is up. Not an `Exception`, so that `except Exception` lets it pass."""


class Watched(Struct, eq=False):
    """A turn, and what the watch has seen of it."""

    execution_id: str
    since: float
    ends_at: float
    # How long it may take; None: as long as is left of what it shares with others.
    seconds: float | None
    # When the watch first saw that its time was up.
    late_at: float | None = None
    is_noticed: bool = False
    is_raised: bool = False
    is_reported: bool = False
    # Where it was seen last: the user's own line, and all of them, the innermost first.
    place: str = ""
    frames: Sequence[str] = ()

    def violation(self) -> WorkflowViolationError:
        """Return the error that says what was done to it, and why."""
        fact = f"execution {self.execution_id}: interrupted after {monotonic() - self.since:.1f} s at {self.place}"
        if self.seconds is None:
            return WorkflowViolationError(fact)
        return WorkflowViolationError(
            f"{fact}; workflow code may go on for {self.seconds:g} s without waiting for anything: "
            "do long work in an activity, or set worker.turn_seconds"
        )


class Overdue(Struct, frozen=True):
    """A turn whose time is up and that has not ended: how long it runs, and where it was seen last."""

    execution_id: str
    seconds: float
    place: str


class _Allowed(threading.local):
    """How long turns in a thread may take: each of them, or all of them until a moment."""

    seconds = PATIENT_SECONDS
    ends_at: float | None = None


_allowed: Final = _Allowed()
_running: Final[dict[int, Watched]] = {}
# Held from noticing a turn to the end of what is done about it.
_deciding: Final = threading.Lock()
_starting: Final = threading.Lock()
_is_watching = False
# What is allowed in some thread now: the shortest says how often to look.
_limits: Final[list[float]] = []


@contextmanager
def each_turn(seconds: float) -> Iterator[None]:
    """Let every turn in this thread take so long, from now on to the end of the block."""
    before, _allowed.seconds = _allowed.seconds, seconds
    _limits.append(seconds)
    try:
        yield
    finally:
        _limits.remove(seconds)
        _allowed.seconds = before


@contextmanager
def all_turns(seconds: float) -> Iterator[None]:
    """Let all turns in this thread take so long together, from now on to the end of the block."""
    before, _allowed.ends_at = _allowed.ends_at, monotonic() + seconds
    try:
        yield
    finally:
        _allowed.ends_at = before


def begin(execution_id: str) -> Watched:
    """Return a turn of this thread, for `run`. Not to be called in workflow code, which may start no threads."""
    if not _is_watching:
        _start()
    now = monotonic()
    ends_at = _allowed.ends_at
    if ends_at is not None:
        return Watched(execution_id, now, ends_at, None)
    seconds = _allowed.seconds
    return Watched(execution_id, now, now + seconds, seconds)


def run(watched: Watched, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what `work` returns. Raises `WorkflowViolationError` if it was interrupted, whatever it made of that."""
    thread = get_ident()
    try:
        try:
            _running[thread] = watched
            result = work(*args, **kwargs)
        finally:
            # Nothing is called or jumped back to before the turn is off the list, so that nothing is raised here.
            del _running[thread]
            if watched.is_noticed:
                try:
                    _clear(thread)
                except TurnInterrupted:
                    # The one that may have been under way; there is no other.
                    _clear(thread)
    except (TurnInterrupted, Exception):
        if watched.is_raised:
            raise watched.violation() from None
        raise
    if watched.is_raised:
        raise watched.violation()
    return result


def overdue() -> list[Overdue]:
    """Return the turns whose time is up and that have not ended."""
    now = monotonic()
    late = [each for each in _running.copy().values() if each.place]
    return [Overdue(each.execution_id, now - each.since, each.place) for each in late]


# The watch.


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
            wait_seconds = _look_seconds()
            for thread, watched in _running.copy().items():
                if now >= watched.ends_at and not _look(thread, watched, now):
                    is_hurried = now < watched.ends_at + _HURRIES_SECONDS_MAX
                    wait_seconds = min(wait_seconds, _HURRY_SECONDS) if is_hurried else wait_seconds
            pause.wait(wait_seconds)
    finally:
        # A log that cannot be written to, for instance. The next turn starts another.
        _forget()


def _look_seconds() -> float:
    return min(_LOOK_SECONDS_MAX, min(_limits.copy(), default=PATIENT_SECONDS) / _LOOKS_A_TURN)


def _look(thread: int, watched: Watched, now: float) -> bool:
    """Do something about a turn whose time is up. False if it is where nothing may be done."""
    if watched.late_at is None:
        # Not at once: it may be that the whole process stood still, and the turn is as good as over.
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
    if now - watched.late_at > _LOOKS_UNTIL_REPORT * _look_seconds() and not watched.is_reported:
        watched.is_reported = True
        _log.error("a turn cannot be interrupted, and holds up others", **facts, frames=watched.frames)
    return may_raise


def _examine(thread: int, watched: Watched) -> bool:
    """Note where a turn is, and return whether it may be interrupted there."""
    frame: FrameType | None = sys._current_frames().get(thread)
    frames: list[str] = []
    place = ""
    may_raise = True
    while frame is not None and frame.f_code is not run.__code__:
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        may_raise = may_raise and root not in _WHOLE and frame.f_code.co_name != "__del__"
        frames.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")
        if not place and root != "headgate" and root not in sys.stdlib_module_names:
            # The innermost line that is not the library's: the user's own, or of a package of theirs.
            place = frames[-1]
        frame = frame.f_back
    watched.frames = frames[:_FRAMES_MAX]
    watched.place = place or next(iter(frames), "an unknown place")
    # Without a frame of `run` it is on its way in or out.
    return may_raise and frame is not None


def _clear(thread: int) -> None:
    with _deciding:
        _raise_in(thread, ctypes.py_object())


def _raise_in(thread: int, error: ctypes.py_object[type[BaseException]]) -> None:
    """Have a thread raise an exception when it next can; an empty one takes back what it has not raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error)
