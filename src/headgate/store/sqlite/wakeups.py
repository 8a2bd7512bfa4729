"""Wake-ups: notify every thread and process that waits on a store of a commit.

Within a process, waiters share a generation counter and a condition variable. Between processes, a waiting process
binds a Unix datagram socket in a folder beside the database, and a committing process sends a datagram to every socket
there. A poll of SQLite's data_version once a second covers lost datagrams.
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

# The kernel's limit on Unix socket paths is 108 bytes including the final NUL.
_ADDRESS_BYTES_MAX: Final = 107
_POLL_SECONDS: Final = 1.0
# Linux queues ten datagrams per socket by default and drops the rest. Below this number, none was dropped.
_NONE_DROPPED_BELOW: Final = 5
_SETTLED_NS: Final = 100_000_000
# How long the list of peer sockets is cached, and when a new listener first polls for commits that did not notify it
# because of that cache.
_PEERS_SECONDS: Final = 0.01
_FIRST_POLL_SECONDS: Final = 5 * _PEERS_SECONDS


class _WaitGroup:
    """The waiters with the same filter, and their generation.

    A commit increments the generation before it checks for waiters, and a waiter registers before it compares the
    generation: no commit is missed, and a commit without waiters takes no lock.
    """

    def __init__(self, topics: Topics, lock: threading.RLock, *, only_others: bool) -> None:
        self.topics = topics
        self.only_others = only_others
        self.generation = 0
        self._waiters = 0
        self._advanced = threading.Condition(lock)

    def advance(self) -> None:
        self.generation += 1
        if self._waiters:
            self.wake()

    def wake(self) -> None:
        with self._advanced:
            self._advanced.notify_all()

    def wait(self, is_over: Callable[[], bool], timeout_seconds: float) -> None:
        with self._advanced:
            self._waiters += 1
            try:
                self._advanced.wait_for(is_over, timeout_seconds)
            finally:
                self._waiters -= 1


class Wakeups:
    """Generations that grow with every commit in any process, one for each filter of waiters.

    The once-a-second poll advances all of them for a commit whose datagram was lost.
    """

    def __init__(self, database: Path, connect: Callable[[], sqlite3.Connection]) -> None:
        self._folder = _folder(database)
        self._connect = connect
        self._lock = threading.RLock()
        # Replaced, never mutated: a commit iterates over it without a lock.
        self._groups: tuple[_WaitGroup, ...] = ()
        self._closed = False
        self._listener: threading.Thread | None = None
        self._address = ""
        self._peers: list[str] = []
        self._peers_as_of = -1
        self._peers_until = 0.0
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)

    def generation(self, topics: Topics = ANYTHING, *, others: bool = False) -> int:
        """Return the current generation of `topics` and start listening for them.

        With `others`, commits of this process do not count.
        """
        return self._group(topics, others=others).generation

    def on_committed(self, topics: Topics = ANYTHING) -> None:
        """Wake all waiters of `topics` in every process. Called after a commit, by one thread at a time."""
        for group in self._groups:
            if not group.only_others and group.topics & topics:
                group.advance()
        try:
            now = monotonic()
            if now >= self._peers_until:
                self._peers = self._current_peers()
                self._peers_until = now + _PEERS_SECONDS
            for peer in self._peers:
                self._send(peer, bytes((topics,)))
        except OSError:
            # The commit is durable, so it must not fail here. Peers without a datagram notice it by polling.
            self._peers_as_of = -1
            self._peers_until = 0.0

    def wait(self, generation: int, timeout_seconds: float, topics: Topics = ANYTHING, *, others: bool = False) -> int:
        """Block until the generation differs from `generation` or until the timeout; return the current one."""
        group = self._group(topics, others=others)
        group.wait(lambda: group.generation != generation or self._closed, timeout_seconds)
        return group.generation

    def wake(self) -> None:
        """Wake all waiters in this process."""
        self._advance_all(ANYTHING)

    def close(self) -> None:
        """Wake all waiters and stop listening."""
        with self._lock:
            self._closed = True
            for group in self._groups:
                group.wake()
        if self._listener is not None:
            if self._address:
                self._send(self._address, bytes((ANYTHING,)))
            self._listener.join()
        self._sender.close()

    def _group(self, topics: Topics, *, others: bool) -> _WaitGroup:
        group = self._existing_group(topics, others=others)
        if group is not None:
            return group
        with self._lock:
            # Another thread may have created it meanwhile.
            group = self._existing_group(topics, others=others)
            if group is None:
                group = _WaitGroup(topics, self._lock, only_others=others)
                self._groups += (group,)
                self._start_listening()
        return group

    def _existing_group(self, topics: Topics, *, others: bool) -> _WaitGroup | None:
        return next((each for each in self._groups if each.topics == topics and each.only_others == others), None)

    def _advance_all(self, topics: Topics) -> None:
        with self._lock:
            for group in self._groups:
                if group.topics & topics:
                    group.advance()

    def _send(self, address: str, datagram: bytes) -> None:
        try:
            self._sender.sendto(datagram, address)
        except BlockingIOError:
            return  # The peer's queue is full, so it wakes anyway.
        except (ConnectionRefusedError, FileNotFoundError):
            # The peer process died without removing its socket.
            Path(address).unlink(missing_ok=True)
        except PermissionError:
            return  # A process of another user, which polls.

    def _current_peers(self) -> list[str]:
        try:
            as_of = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - on the path of every commit
        except FileNotFoundError:
            return []
        if as_of != self._peers_as_of:
            addresses = (str(self._folder / name) for name in os.listdir(self._folder))  # noqa: PTH208
            self._peers = [address for address in addresses if address != self._address]
            # File times have a resolution of milliseconds: another socket may appear with the same mtime.
            is_settled = time_ns() - as_of > _SETTLED_NS
            self._peers_as_of = as_of if is_settled else -1
        return self._peers

    def _start_listening(self) -> None:
        if self._listener is not None or self._closed:
            return
        # data_version is read before the thread starts, so that a commit in between counts as a change.
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
        """Bind the socket that receives notifications, or return None if that fails; then only polling is left."""
        inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        address = str(self._folder / f"{os.getpid()}-{secrets.token_hex(4)}")
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
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
        wait_seconds = _FIRST_POLL_SECONDS
        try:
            while not self._closed:
                is_notified = bool(poll.poll(wait_seconds * 1000))
                wait_seconds = _POLL_SECONDS
                topics = _receive_topics(inbox) if is_notified and inbox is not None else ANYTHING
                version = _data_version(connection)
                if is_notified or version is None or version != seen:
                    self._advance_all(topics)
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


def _receive_topics(inbox: socket.socket) -> Topics:
    """Return the topics of all queued datagrams, or `ANYTHING` if some may have been dropped."""
    datagrams: list[bytes] = []
    with contextlib.suppress(BlockingIOError):
        while datagram := inbox.recv(16):
            datagrams.append(datagram)
    if len(datagrams) >= _NONE_DROPPED_BELOW:
        return ANYTHING
    topics = 0
    for datagram in datagrams:
        # Older builds send 0 for any topic.
        topics |= datagram[0] or ANYTHING
    return topics


def _data_version(connection: sqlite3.Connection) -> int | None:
    """Return SQLite's counter of other connections' commits, or None if it cannot be read now."""
    try:
        version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    except sqlite3.Error:
        return None
    return version
