"""Sandbox: refuses real I/O and threads in workflow code while it runs.

It is an audit hook of the Python interpreter, which sees files, sockets, processes and threads, wherever they are
opened. It does not see clocks, random numbers and the environment, which the determinism lint finds in the source. It
is no protection against malicious code: it reports a mistake early and by name.
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

# By audit event, or by the part of its name before the first dot.
_REFUSED: Final = {
    "_thread.start_new_thread": THREADS,
    # From Python 3.13 on.
    "_thread.start_joinable_thread": THREADS,
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
# Events whose first argument is a path. Others may contain a command line, an address or a password.
_SHOWN: Final = frozenset({"open", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir"})

# Events below these modules are not the workflow's own: imports, error display, logging, debugging, clean-up of
# collected objects, and time zone rules.
_TOLERATED: Final = frozenset(
    {
        *("_frozen_importlib", "_frozen_importlib_external", "importlib", "zipimport"),
        *("linecache", "logging", "pdb", "traceback", "warnings", "weakref", "zoneinfo"),
    }
)

T = TypeVar("T")

_installing: Final = threading.Lock()
_installed = False
# By thread: the labels of its running workflow code, the outermost first, and the first violation.
_running: Final[dict[int, tuple[str, ...]]] = {}
_violations: Final[dict[int, WorkflowViolationError]] = {}


def install() -> None:
    """Install the audit hook in this process, once. It cannot be removed."""
    global _installed
    with _installing:
        if not _installed:
            sys.addaudithook(_on_event)
            if sys.version_info < (3, 12):
                _announce_threads()
            _installed = True


def enter(label: str) -> None:
    """Mark this thread as running workflow code, named `label` in errors, and clear an earlier violation.

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
    """Undo the last `enter` of this thread."""
    thread = get_ident()
    outer = _running.pop(thread)[:-1]
    if outer:
        _running[thread] = outer


def lifted(work: Callable[[], T]) -> T:
    """Run `work` outside of the sandbox. For values that are recorded."""
    thread = get_ident()
    labels = _running.pop(thread, None)
    try:
        return work()
    finally:
        if labels is not None:
            _running[thread] = labels


def violation() -> WorkflowViolationError | None:
    """Return the first violation in this thread since the outermost `enter`, even if the code caught it."""
    return _violations.get(get_ident())


def _announce_threads() -> None:
    """Raise the audit event of thread starts, which Python itself raises from 3.12 on."""
    start: Callable[..., int] = vars(threading)["_start_new_thread"]

    def announced(function: Callable[..., object], args: tuple[object, ...]) -> int:
        sys.audit("_thread.start_new_thread", function, args, None)
        return start(function, args)

    vars(threading)["_start_new_thread"] = announced


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    # Most events come while no workflow code runs, and most others are allowed.
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
    """Whether a tolerated module caused the event, anywhere in the stack up to the workflow code."""
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
    """Whether time zone rules are read: the native `ZoneInfo` has no Python frame."""
    path, mode = arguments[:2]
    zones = sys.modules.get("zoneinfo")
    if zones is None or mode not in ("r", "rb") or not isinstance(path, str):
        return False
    return any(path.startswith(f"{folder}/") for folder in zones.TZPATH)
