"""Wake-ups: tells every thread and process that waits on a store that something was committed.

Within a process a counter and a condition do it. Between processes, whoever waits listens on a Unix
datagram socket in a folder beside the database, and whoever commits pokes every socket there. A lost
poke is made up for within a second by looking at SQLite's own change counter.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import select
import socket
import sqlite3
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic, time_ns
from typing import Final

from headgate.store.topics import ANYTHING, Topics

# The kernel keeps socket addresses in 108 bytes, the final NUL included.
_ADDRESS_BYTES_MAX: Final = 107
_POLL_SECONDS: Final = 1.0
# The kernel keeps ten for who does not listen at once, unless it was told otherwise, and drops the rest.
_POKES_SURELY_FIT: Final = 5
_SETTLED_NS: Final = 100_000_000
# For how long the sockets of others are taken to be the same ones, and how soon a newcomer looks for what was
# committed without a poke at it.
_PEERS_SECONDS: Final = 0.01
_FIRST_LOOK_SECONDS: Final = 5 * _PEERS_SECONDS


class _Line:
    """Those who wait for the same, and how often it has come.

    The number moves before the waiters are counted, and a waiter counts itself before it compares: whichever comes
    first, no commit goes unnoticed, and a commit that nobody awaits takes no lock.
    """

    def __init__(self, topics: Topics, lock: threading.RLock, *, is_of_others: bool) -> None:
        self.topics = topics
        self.is_of_others = is_of_others
        self.generation = 0
        self._waiters = 0
        self._moved = threading.Condition(lock)

    def move(self) -> None:
        self.generation += 1
        if self._waiters:
            self.wake()

    def wake(self) -> None:
        with self._moved:
            self._moved.notify_all()

    def wait(self, is_over: Callable[[], bool], timeout_seconds: float) -> None:
        with self._moved:
            self._waiters += 1
            try:
                self._moved.wait_for(is_over, timeout_seconds)
            finally:
                self._waiters -= 1


class Wakeups:
    """Numbers that grow with what is committed, here or in another process: one for each who waits for something else.

    At most once a second all of them grow with what was committed elsewhere without a poke.
    """

    def __init__(self, database: Path, connect: Callable[[], sqlite3.Connection]) -> None:
        self._folder = _folder(database)
        self._connect = connect
        self._lock = threading.RLock()
        # Never changed, but replaced: a commit goes through it without a lock.
        self._lines: tuple[_Line, ...] = ()
        self._closed = False
        self._listener: threading.Thread | None = None
        self._address = ""
        self._peers: list[str] = []
        self._peers_as_of = -1
        self._peers_until = 0.0
        self._outbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)

    def generation(self, topics: Topics = ANYTHING, *, others: bool = False) -> int:
        """Return the present generation of what is about any of `topics`, and listen for it from now on.

        With `others`, what this process commits does not count.
        """
        return self._line(topics, others=others).generation

    def committed(self, topics: Topics = ANYTHING) -> None:
        """Wake everyone who waits for this, here and elsewhere. Called after a commit, by one thread at a time."""
        for line in self._lines:
            if not line.is_of_others and line.topics & topics:
                line.move()
        poke = bytes((topics,))
        try:
            now = monotonic()
            if now >= self._peers_until:
                self._peers = self._current_peers()
                self._peers_until = now + _PEERS_SECONDS
            for peer in self._peers:
                self._poke(peer, poke)
        except OSError:
            # The write is durable, and its caller must hear that. Who was not poked finds out by looking.
            self._peers_as_of = -1
            self._peers_until = 0.0

    def wait(self, generation: int, timeout_seconds: float, topics: Topics = ANYTHING, *, others: bool = False) -> int:
        """Return the generation once it is past `generation`, or at the time-out."""
        line = self._line(topics, others=others)
        line.wait(lambda: line.generation != generation or self._closed, timeout_seconds)
        return line.generation

    def wake(self) -> None:
        """Have everyone who waits in this process return."""
        self._move_all(ANYTHING)

    def close(self) -> None:
        """Wake everyone for the last time and stop listening."""
        with self._lock:
            self._closed = True
            for line in self._lines:
                line.wake()
        if self._listener is not None:
            if self._address:
                self._poke(self._address, bytes((ANYTHING,)))
            self._listener.join()
        self._outbox.close()

    def _line(self, topics: Topics, *, others: bool) -> _Line:
        line = self._found(topics, others=others)
        if line is not None:
            return line
        with self._lock:
            # Another thread may have been quicker.
            line = self._found(topics, others=others)
            if line is None:
                line = _Line(topics, self._lock, is_of_others=others)
                self._lines += (line,)
                self._start_listening()
        return line

    def _found(self, topics: Topics, *, others: bool) -> _Line | None:
        return next((each for each in self._lines if each.topics == topics and each.is_of_others == others), None)

    def _move_all(self, topics: Topics) -> None:
        with self._lock:
            for line in self._lines:
                if line.topics & topics:
                    line.move()

    def _poke(self, address: str, poke: bytes) -> None:
        try:
            self._outbox.sendto(poke, address)
        except BlockingIOError:
            return  # Its queue is full, so it is about to wake anyway.
        except (ConnectionRefusedError, FileNotFoundError):
            # The process behind it is gone and could not clean up.
            Path(address).unlink(missing_ok=True)
        except PermissionError:
            return  # Another user's process; it looks for itself.

    def _current_peers(self) -> list[str]:
        try:
            as_of = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - on the path of every commit
        except FileNotFoundError:
            return []
        if as_of != self._peers_as_of:
            addresses = (str(self._folder / name) for name in os.listdir(self._folder))  # noqa: PTH208
            self._peers = [address for address in addresses if address != self._address]
            # The kernel's clock ticks in milliseconds: another socket may appear under the very same time.
            is_settled = time_ns() - as_of > _SETTLED_NS
            self._peers_as_of = as_of if is_settled else -1
        return self._peers

    def _start_listening(self) -> None:
        if self._listener is not None or self._closed:
            return
        # The counter is read here and now: what is committed before the thread runs is then seen as a change.
        connection = self._connect()
        seen = _data_version(connection)
        inbox = self._open_inbox()
        self._peers_as_of = -1
        listener = threading.Thread(
            target=self._listen, args=(inbox, connection, seen), name="headgate-wakeups", daemon=True
        )
        listener.start()
        self._listener = listener

    def _open_inbox(self) -> socket.socket | None:
        """Return a socket that others can poke, or None if none can be had here: then looking must do."""
        inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        address = str(self._folder / f"{os.getpid()}-{secrets.token_hex(4)}")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            inbox.bind(address)
        except OSError:
            inbox.close()
            return None
        self._address = address
        return inbox

    def _listen(self, inbox: socket.socket | None, connection: sqlite3.Connection, seen: int | None) -> None:
        poll = select.poll()
        if inbox is not None:
            poll.register(inbox, select.POLLIN)
        wait_seconds = _FIRST_LOOK_SECONDS
        try:
            while not self._closed:
                is_poked = bool(poll.poll(wait_seconds * 1000))
                wait_seconds = _POLL_SECONDS
                topics = _drained(inbox) if is_poked and inbox is not None else ANYTHING
                version = _data_version(connection)
                if is_poked or version is None or version != seen:
                    self._move_all(topics)
                seen = version
        finally:
            connection.close()
            if inbox is not None:
                inbox.close()
                Path(self._address).unlink(missing_ok=True)


def _folder(database: Path) -> Path:
    beside = database.absolute().with_name(f"{database.name}.wake")
    longest_name = f"{2**22}-{'f' * 8}"
    if len(os.fsencode(beside / longest_name)) <= _ADDRESS_BYTES_MAX:
        return beside
    digest = hashlib.sha256(os.fsencode(beside)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"headgate-{os.getuid()}-{digest}"


def _drained(inbox: socket.socket) -> Topics:
    """Return what the pokes that have come are about. If there may have been more of them than fit, of anything."""
    pokes: list[bytes] = []
    with contextlib.suppress(BlockingIOError):
        while poke := inbox.recv(16):
            pokes.append(poke)
    if len(pokes) >= _POKES_SURELY_FIT:
        return ANYTHING
    topics = 0
    for poke in pokes:
        # A process of an older build says 0 for whatever there may be work in.
        topics |= poke[0] or ANYTHING
    return topics


def _data_version(connection: sqlite3.Connection) -> int | None:
    """Return SQLite's own counter of other connections' commits, or None if it cannot be read now."""
    try:
        version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    except sqlite3.Error:
        return None
    return version
