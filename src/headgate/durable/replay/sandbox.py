"""What keeps real I/O and threads out of workflow code while it runs.

It is an audit hook of the interpreter, so it sees files, sockets, processes and threads whoever opens them. It does not
see clocks, random numbers and the environment, which `source_check` finds where they are written plainly. Neither is
a sandbox against malice: both are there to catch a mistake early and by name.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any, Final, TypeVar

from headgate.errors import WorkflowViolationError

IN_ACTIVITY: Final = "call it in an activity and await that"
THREADS: Final = "workflow code is a single thread: use asyncio.gather() over activities"

# By event, else by the part of its name before the first dot.
_REFUSED: Final = {
    "_thread.start_new_thread": THREADS,
    "builtins.input": "use hg.wait_signal()",
    "os.putenv": "pass settings as input",
    "os.unsetenv": "pass settings as input",
    "time.sleep": "use `await hg.sleep()`",
} | dict.fromkeys(
    (
        *("open", "os", "shutil", "tempfile", "glob", "pathlib", "fcntl", "mmap", "sqlite3"),
        *("subprocess", "pty", "socket", "urllib", "http", "webbrowser"),
        *("ftplib", "imaplib", "nntplib", "poplib", "smtplib", "telnetlib"),
    ),
    IN_ACTIVITY,
)
# Events whose first argument is a path. Others may hold a command line, an address or a password.
_SHOWN: Final = frozenset({"open", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir"})

# What runs below these modules is not the workflow's doing: imports, what shows an error, what logs, what
# debugs, what cleans up after something that was collected just now, and the rules of a time zone.
_TOLERATED: Final = frozenset(
    {
        *("_frozen_importlib", "_frozen_importlib_external", "importlib", "zipimport"),
        *("linecache", "logging", "pdb", "traceback", "warnings", "weakref", "zoneinfo"),
    }
)

T = TypeVar("T")

_installing: Final = threading.Lock()
_installed = False
# By thread: the labels of the workflow code it is in, the outermost first, and the first thing that code did wrong.
_running: Final[dict[int, tuple[str, ...]]] = {}
_violations: Final[dict[int, WorkflowViolationError]] = {}


def install() -> None:
    """Start to watch this process; from the second call on nothing happens. An audit hook cannot be taken out."""
    global _installed
    with _installing:
        if not _installed:
            sys.addaudithook(_on_event)
            if sys.version_info < (3, 12):
                _announce_threads()
            _installed = True


def enter(label: str) -> None:
    """Mark this thread as running workflow code, which `label` names in errors; forget an earlier violation.

    May be nested; each call needs its `leave`.
    """
    thread = get_ident()
    outer = _running.get(thread)
    if outer is None:
        _violations.pop(thread, None)
        _running[thread] = (label,)
    else:
        _running[thread] = (*outer, label)


def leave() -> None:
    """Take back the last `enter` of this thread."""
    thread = get_ident()
    outer = _running.pop(thread)[:-1]
    if outer:
        _running[thread] = outer


def lifted(work: Callable[[], T]) -> T:
    """Return what `work` returns, letting it do what workflow code must not. For values that are recorded."""
    thread = get_ident()
    labels = _running.pop(thread, None)
    try:
        return work()
    finally:
        if labels is not None:
            _running[thread] = labels


def violation() -> WorkflowViolationError | None:
    """Return the first thing that was refused in this thread since the outermost `enter`, even if it was caught."""
    return _violations.get(get_ident())


def _announce_threads() -> None:
    """Have `threading` raise the event that the interpreter itself raises from Python 3.12 on."""
    start: Callable[..., int] = vars(threading)["_start_new_thread"]

    def announced(function: Callable[..., object], args: tuple[object, ...]) -> int:
        sys.audit("_thread.start_new_thread", function, args, None)
        return start(function, args)

    vars(threading)["_start_new_thread"] = announced


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    # Most events come while no workflow code runs, and most others are of kinds that nobody minds.
    labels = _running.get(get_ident()) if _running else None
    if labels is None:
        return
    remedy = _REFUSED.get(event) or _REFUSED.get(event.partition(".")[0])
    if remedy is None or _is_tolerated(sys._getframe(1), event, arguments):
        return
    shown = f"({arguments[0]!r})" if event in _SHOWN and isinstance(arguments[0], str | bytes) else ""
    refused = WorkflowViolationError(f"{labels[-1]}: {event}{shown} is refused in workflow code; {remedy}")
    _violations.setdefault(get_ident(), refused)
    raise refused


def _is_tolerated(frame: FrameType | None, event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether something is done on behalf of what the workflow cannot help, as far up as it was called from us."""
    if event == "open" and _is_time_zone(arguments):
        return True
    while frame is not None:
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if root in _TOLERATED or frame.f_code.co_name == "__del__":
            return True
        if root == "headgate" and frame.f_globals is not globals():
            return False
        frame = frame.f_back
    return False


def _is_time_zone(arguments: tuple[Any, ...]) -> bool:
    """Whether the rules of a time zone are read: the native `ZoneInfo` does that with no frame of its own."""
    path, mode = arguments[:2]
    zones = sys.modules.get("zoneinfo")
    if zones is None or mode not in ("r", "rb") or not isinstance(path, str):
        return False
    return any(path.startswith(f"{folder}/") for folder in zones.TZPATH)
