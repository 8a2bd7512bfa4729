"""Reload of apps in development: a worker process for their code, replaced when a file changes.

The server itself loads no app. A change starts a new worker; once that is ready, the old one finishes its running
activities and ends. Code that cannot be loaded leaves the old worker in place, and its error is printed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from headgate.errors import SettingsError
from headgate.settings import Address, Settings

POLL_SECONDS: Final = 0.5
# Not imported: it imports every command.
_PROGRAM: Final = "headgate.cli.child_main"
# The longest drain that the settings allow: a worker that is replaced finishes activities for most of it.
_DRAIN_SECONDS: Final = "600"
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
_log = structlog.get_logger(__name__)

Snapshot = dict[Path, tuple[int, int]]


def check_reload(settings: Settings) -> None:
    """Raise `SettingsError` where code must not be replaced by a changed file: --reload is for development."""
    if settings.auth.required:
        raise SettingsError("--reload is for development: not with auth.required; restart workers to deploy code")
    for address in (settings.http, settings.grpc):
        if not _is_loopback(address):
            raise SettingsError(f"--reload is for development: {address} is not a loopback address")


def _is_loopback(address: Address) -> bool:
    return address.host in _LOOPBACK


class AppReload:
    """The worker process of some apps, and the thread that replaces it."""

    def __init__(self, apps: Sequence[str], options: Sequence[str], folder: Path, environ: Mapping[str, str]) -> None:
        """Watch the Python files below `folder`. `options` are those of 'headgate worker run' beside the apps."""
        named = [part for app in apps for part in ("--app", app)]
        self._command = [sys.executable, "-m", _PROGRAM, "worker", "run", *named, *options]
        self._folder = folder
        self._environ = {**environ, "HEADGATE_DRAIN_SECONDS": _DRAIN_SECONDS}
        self._current: subprocess.Popen[bytes] | None = None
        self._replaced: list[subprocess.Popen[bytes]] = []
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, on_started: Callable[[], None]) -> None:
        """Start the worker, and watch its files. `on_started` is called once it is ready or could not be loaded."""
        _log.info("apps run in a worker that is reloaded; their HTTP routes are not served", action="app.reload")
        self._thread = threading.Thread(target=self._run, args=(on_started,), name="headgate-reload", daemon=True)
        self._thread.start()

    def stop(self, grace_seconds: float) -> None:
        """Let the workers finish their activities in the grace period, and end them."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        workers = [each for each in (*self._replaced, self._current) if each is not None and each.poll() is None]
        for each in workers:
            each.send_signal(signal.SIGTERM)
        for each in workers:
            with suppress(subprocess.TimeoutExpired):
                each.wait(grace_seconds)
            if each.poll() is None:
                # The second signal ends it at once: its activities run again elsewhere.
                each.send_signal(signal.SIGTERM)
                each.wait()

    def _run(self, on_started: Callable[[], None]) -> None:
        loaded: Snapshot | None = None
        seen = snapshot(self._folder)
        while True:
            # Two equal looks in a row: an editor may still be writing.
            now = snapshot(self._folder)
            if now == seen and now != loaded:
                self._replace(changed(loaded, now))
                if loaded is None:
                    on_started()
                loaded = now
            seen = now
            if self._stopping.wait(POLL_SECONDS):
                return

    def _replace(self, files: Sequence[Path]) -> None:
        """Start a worker with the code as it is now, and let the old one drain once the new one is ready."""
        names = ", ".join(str(each.relative_to(self._folder)) for each in files[:3])
        # Standard input is held open: the worker ends with this process, however it ends.
        started = subprocess.Popen(
            self._command, env=self._environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert started.stdout is not None
        is_ready = bool(started.stdout.readline())
        if not is_ready:
            started.wait()
            kept = "nothing runs" if self._current is None else "the code loaded before stays in use"
            _log.error(f"app not loaded; {kept}", action="app.reload", files=names)
            return
        if self._current is not None:
            self._current.send_signal(signal.SIGTERM)
            self._replaced = [each for each in (*self._replaced, self._current) if each.poll() is None]
            _log.info("app reloaded", action="app.reload", files=names)
        self._current = started


def snapshot(folder: Path) -> Snapshot:
    """Return modification time and size of the Python files below a folder, hidden folders and libraries left out."""
    found = {}
    for path in _python_files(folder):
        # A file may be replaced meanwhile.
        with suppress(FileNotFoundError):
            stat = path.stat()
            found[path] = (stat.st_mtime_ns, stat.st_size)
    return found


def _python_files(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        is_environment = "pyvenv.cfg" in files
        folders[:] = [each for each in folders if not each.startswith(".") and each not in _SKIPPED]
        if is_environment:
            folders[:] = []
        yield from (Path(place) / each for each in files if each.endswith(".py"))


def changed(before: Snapshot | None, now: Snapshot) -> list[Path]:
    """Return the files that differ between two snapshots; none for the first one."""
    if before is None:
        return []
    return sorted(path for path in {*before, *now} if before.get(path) != now.get(path))
