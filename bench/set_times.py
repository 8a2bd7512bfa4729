"""Load at set times: requests are due whether the server keeps up or not, and one counts from when it was due.

Once a millisecond what is due is sent, and what has been answered is looked at; so each is due at the beginning of one.
In between this process sleeps, and an answer does not wake it: clients are on other machines, and waking one must not
cost the server what it would not there.
The kernel notes when an answer came in, so that it does not take longer for being looked at later.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from time import perf_counter, process_time, sleep, time, time_ns
from typing import Final, NamedTuple

from msgspec import Struct

from bench.health_client import CONNECTIONS, Incoming, read
from headgate.settings import Address

_TICK_SECONDS: Final = 0.001
# Have the kernel say when it received the last of what is read, as seconds and nanoseconds of the wall clock.
_SO_TIMESTAMPNS: Final = 35
_STAMP: Final = struct.Struct("@qq")
_STAMP_BYTES: Final = socket.CMSG_SPACE(_STAMP.size)
# How long what is still under way at the end may take to be answered.
_PATIENCE_SECONDS: Final = 10.0
# A batch of evidence goes in one call.
_BUFFER_BYTES: Final = 1024 * 1024
# How much of the machine the host may take in a second that counts as quiet.
_TAKEN_SHARE_MAX: Final = 0.01
_QUIET_SHARE_MIN: Final = 1 / 3
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Row(Struct):
    """What is asked at a set rate: `make` returns the next request, `took` is given the body of each good answer."""

    name: str
    rate: float
    goal_ms: float
    make: Callable[[], bytes]
    connections: int = CONNECTIONS
    took: Callable[[bytes], None] = lambda _body: None
    # How many operations a request is.
    each: int = 1
    # Whether requests are made before the first is sent: making one takes so long that others would be sent late.
    is_ahead: bool = False
    # Where it is asked, if not at the server of all rows.
    address: Address | None = None


class RowResult(NamedTuple):
    """The result of a row."""

    row: Row
    asked: float
    held: float
    p50_ms: float
    p99_ms: float
    failed: int
    # Of what was due in seconds in which the host left this machine its cores.
    quiet_p99_ms: float

    @property
    def is_held(self) -> bool:
        """Whether nothing failed, all was answered, and soon enough, in whichever second it was due."""
        return self.failed == 0 and self.held >= 0.99 * self.asked and self.p99_ms <= self.row.goal_ms


class Loaded(NamedTuple):
    """The results of all rows, and the CPU that the load generator used."""

    rows: list[RowResult]
    seconds: float
    own_cpu: float
    # In how many seconds the host took next to nothing.
    quiet_seconds: int


def at_set_times(address: Address, rows: Sequence[Row], seconds: float, warm_seconds: float = 1.0) -> Loaded:
    """Ask at set times, whether the server keeps up or not, and measure from when each was to be sent.

    What is to be sent in the first seconds only warms up, and is not counted.
    """
    gc.collect()
    gc.disable()
    try:
        return _Load(address, rows, warm_seconds + seconds).run(seconds, warm_seconds)
    finally:
        gc.enable()


class _Connection:
    """A connection on which one request is under way at a time."""

    __slots__ = ("_incoming", "_unsent", "answered_at", "intended_at", "sender", "socket")

    def __init__(self, address: Address, sender: _Sender) -> None:
        self.socket = socket.create_connection((address.host, address.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self.socket.settimeout(0.0)
        self.sender = sender
        self.intended_at = 0.0
        # By the wall clock.
        self.answered_at = 0.0
        self._unsent = memoryview(b"")
        self._incoming = Incoming()

    def send(self, content: bytes) -> None:
        sent = self.socket.send(content)
        self._unsent = memoryview(content)[sent:]

    def go_on(self) -> bool:
        """Send what there was no room for, and return whether all of it is sent now."""
        if self._unsent:
            try:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
            except BlockingIOError:
                return False
        return not self._unsent

    @property
    def is_sending(self) -> bool:
        return bool(self._unsent)

    def read(self) -> bytes | None:
        """Return a whole answer, or None if it has not all come. Raises `ConnectionError` if the server has left."""
        data, notes, _, _ = self.socket.recvmsg(_BUFFER_BYTES, _STAMP_BYTES)
        if not data:
            raise ConnectionResetError("the connection was closed")
        # Under load the kernel hands some data over without a stamp. It then counts from now, which is never too early.
        seconds, nanoseconds = _STAMP.unpack(notes[0][2]) if notes else divmod(time_ns(), 1_000_000_000)
        self.answered_at = seconds + nanoseconds / 1e9
        return self._incoming.take(data)


class _Taken:
    """Notes for each second how much of the machine its host has given to others.

    A virtual machine cannot see when it is paused. A request that was on its way then has waited for no fault of the
    server, and the next ones behind it.
    """

    def __init__(self) -> None:
        self._second = -1
        self._before = 0
        self._by_second: dict[int, int] = {}

    def note(self, at_seconds: float) -> None:
        second = int(at_seconds // 1)
        if second != self._second:
            taken = _stolen_ticks()
            self._by_second[self._second] = taken - self._before
            self._second, self._before = second, taken

    def quiet(self, seconds: int) -> set[int]:
        """Return the seconds in which little was taken, and in the one before. None, if they are too few to tell."""
        most = _TAKEN_SHARE_MAX * _TICKS * (os.cpu_count() or 1)
        little = {second for second in range(-1, seconds) if self._by_second.get(second, 0) <= most}
        quiet = {second for second in little if second >= 0 and second - 1 in little}
        return quiet if len(quiet) >= _QUIET_SHARE_MIN * seconds else set()


def _stolen_ticks() -> int:
    """Return for how long the host let others run while this machine had work, since it started."""
    try:
        with Path("/proc/stat").open() as file:
            return int(file.readline().split()[8])
    except (FileNotFoundError, IndexError):
        return 0


def _tick_from(at: float) -> float:
    """Return the first time at which something may be sent: between them, who sends would be late by its own fault."""
    return _TICK_SECONDS * ceil(at / _TICK_SECONDS)


class _Load:
    """The rows, and the sockets of all their connections."""

    def __init__(self, address: Address, rows: Sequence[Row], seconds: float) -> None:
        self._address = address
        self._poll = select.epoll()
        self._connections: dict[int, _Connection] = {}
        self._sending: set[_Connection] = set()
        self._senders = [_Sender(row, self) for row in rows]
        self._taken = _Taken()
        for sender in self._senders:
            sender.prepare(seconds)
            for _ in range(sender.row.connections):
                sender.idle.append(self._open(sender))

    def run(self, seconds: float, warm_seconds: float) -> Loaded:
        started_at = perf_counter()
        counted_from, ends_at = started_at + warm_seconds, started_at + warm_seconds + seconds
        # Not all at the same moments: clients of different kinds do not wait for one another.
        for place, sender in enumerate(self._senders):
            sender.begin(started_at + sender.step_seconds * place / len(self._senders), counted_from)
        cpu = process_time()
        while (now := perf_counter()) < ends_at:
            if now < counted_from:
                cpu = process_time()
            self._taken.note(now - counted_from)
            for sender in self._senders:
                sender.send_due(now)
            self._look()
            now = perf_counter()
            sleep(max(0.0, _tick_from(now) - now))
        own_cpu = (process_time() - cpu) / seconds
        while any(sender.is_waiting for sender in self._senders) and perf_counter() < ends_at + _PATIENCE_SECONDS:
            self._look()
            sleep(_TICK_SECONDS)
        for connection in self._connections.values():
            connection.socket.close()
        self._poll.close()
        quiet = self._taken.quiet(int(seconds))
        return Loaded([sender.result(seconds, quiet) for sender in self._senders], seconds, own_cpu, len(quiet))

    def send(self, connection: _Connection, content: bytes) -> None:
        connection.send(content)
        if connection.is_sending:
            self._sending.add(connection)

    def _look(self) -> None:
        """Go on with what is half sent, and take what was answered."""
        if self._sending:
            self._sending -= {each for each in self._sending if each.go_on()}
        ahead_seconds = time() - perf_counter()
        for number, _ in self._poll.poll(0):
            connection = self._connections[number]
            try:
                answer = connection.read()
            except ConnectionError as exc:
                self._lose(connection, str(exc))
                continue
            if answer is not None:
                connection.sender.answered(connection, answer, connection.answered_at - ahead_seconds)

    def _open(self, sender: _Sender) -> _Connection:
        connection = _Connection(sender.row.address or self._address, sender)
        self._connections[connection.socket.fileno()] = connection
        self._poll.register(connection.socket, select.EPOLLIN)
        return connection

    def _lose(self, connection: _Connection, why: str) -> None:
        """Open another: a server lets go of connections that were idle for some seconds."""
        self._poll.unregister(connection.socket)
        del self._connections[connection.socket.fileno()]
        self._sending.discard(connection)
        connection.socket.close()
        connection.sender.lost(connection, why.encode())
        connection.sender.idle.append(self._open(connection.sender))


class _Sender:
    """Sends the requests of one row."""

    def __init__(self, row: Row, load: _Load) -> None:
        self.row = row
        self.step_seconds = row.each / row.rate
        self.idle: deque[_Connection] = deque()
        self._load = load
        self._late: deque[float] = deque()
        self._made: deque[bytes] = deque()
        self._under_way = 0
        # When each was due, and how long it took.
        self._latencies: list[tuple[float, float]] = []
        self._failed = 0
        self._asked = 0
        self._next_at = self._counted_from = 0.0
        self._first_failure = b""
        self._last_at = 0.0

    @property
    def is_waiting(self) -> bool:
        return bool(self._under_way or self._late)

    def prepare(self, seconds: float) -> None:
        """Make what will be sent, if it is to be made ahead."""
        if self.row.is_ahead:
            self._made.extend(self.row.make() for _ in range(int(seconds * self.row.rate / self.row.each) + 1))

    def begin(self, first_at: float, counted_from: float) -> None:
        self._next_at, self._counted_from = first_at, counted_from

    def send_due(self, now: float) -> None:
        """Send what is due, or let it wait for a connection: since when it was to be sent is remembered."""
        while (due_at := _tick_from(self._next_at)) <= now:
            self._late.append(due_at)
            if due_at >= self._counted_from:
                self._asked += 1
            self._next_at += self.step_seconds
        while self._late and self.idle:
            self._send(self.idle.popleft(), self._late.popleft())

    def answered(self, connection: _Connection, answer: bytes, at: float) -> None:
        """Take an answer that came in then, and send on its connection what waits for one."""
        self._under_way -= 1
        is_good, body = read(answer)
        if is_good:
            self.row.took(body)
        if connection.intended_at >= self._counted_from:
            self._last_at = at
            if is_good:
                due_at = connection.intended_at
                self._latencies.append((due_at - self._counted_from, self._last_at - due_at))
            else:
                self._failed += 1
                self._first_failure = self._first_failure or body
        if self._late:
            self._send(connection, self._late.popleft())
        else:
            self.idle.append(connection)

    def lost(self, connection: _Connection, why: bytes) -> None:
        """Count what was under way on a connection that is gone."""
        if connection in self.idle:
            self.idle.remove(connection)
        else:
            self._under_way -= 1
            self._failed += 1
            self._first_failure = self._first_failure or why

    def result(self, seconds: float, quiet: set[int]) -> RowResult:
        if self._first_failure:
            print(f"{self.row.name}: refused, such as {self._first_failure[:300]!r}")
        each, done = self.row.each, [took for _, took in self._latencies]
        undisturbed = [took for due, took in self._latencies if int(due) in quiet]
        # A server that cannot keep up answers some long after the last was to be sent.
        took = max(seconds, self._last_at - self._counted_from)
        return RowResult(
            self.row,
            asked=each * self._asked / seconds,
            held=each * len(done) / took,
            p50_ms=_percentile_ms(done, 0.5),
            p99_ms=_percentile_ms(done, 0.99),
            failed=self._failed,
            quiet_p99_ms=_percentile_ms(undisturbed, 0.99),
        )

    def _send(self, connection: _Connection, intended_at: float) -> None:
        connection.intended_at = intended_at
        self._under_way += 1
        self._load.send(connection, self._made.popleft() if self._made else self.row.make())


def _percentile_ms(seconds: Sequence[float], share: float) -> float:
    return 1000 * sorted(seconds)[int(share * (len(seconds) - 1))] if seconds else float("inf")
