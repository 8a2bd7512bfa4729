"""Load shedder: refuses requests at once when the event loop is behind, so that those it accepts stay fast.

Two queues grow under overload. Requests that are answered on the event loop wait for the pass of the loop that reads
them: a pass accepts requests for a limited time and refuses the rest. The limit is in CPU time: on a machine that other
programs use too, a limit in elapsed time would refuse most requests of a pass that hardly ran. A wider limit of elapsed
time keeps the accepted ones fast. Requests that become tasks wait for each other: their number is limited. All limits
depend on the priority of a request.

A refusal costs less than an answer, but under overload most requests are refused. A refusal is therefore held back: a
client with a bounded number of connections sends fewer requests, and the event loop has more time for accepted ones.
The time that a request may have waited to be read counts towards that delay, so that a slow pass does not add to it.
"""

from __future__ import annotations

import asyncio
import enum
from collections import Counter, deque
from collections.abc import Callable, Iterator
from time import monotonic, thread_time
from typing import Final

import msgspec
import structlog
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from headgate.serve.http.fast_path import FullResponse, head_of
from headgate.serve.http.problem import MEDIA_TYPE, Problem

# CPU time and elapsed time for which a pass of the event loop accepts requests of normal priority.
PASS_CPU_SECONDS: Final = 0.035
PASS_SECONDS: Final = 0.1
RETRY_AFTER_SECONDS: Final = 1
# Delay before a refusal is sent, from the earliest time at which the request can have arrived.
HOLD_SECONDS: Final = 0.065
# Refusals that are due within this time are sent together.
_TOLERANCE_SECONDS: Final = 0.002
# Scope key of a request that is already counted.
BEGUN: Final = "headgate.begun"
_log = structlog.get_logger(__name__)
_DETAIL: Final = "the server is overloaded and did not start the request; retry after the given time"


class Priority(enum.IntEnum):
    """The order in which requests are refused under overload: LOW first."""

    # Pages and GraphQL, which people can load again.
    LOW = 0
    NORMAL = 1
    # Probes, metrics, assets, and reports about work in progress: without them work is repeated or looks lost.
    HIGH = 2


# The share of each limit that a priority may use.
_SHARES: Final = {Priority.LOW: 0.5, Priority.NORMAL: 1.0, Priority.HIGH: 2.0}
_LOW: Final = (b"/ui", b"/graphql")
# Assets of pages come from memory, once for each browser. A page whose script was refused stays broken.
_HIGH: Final = (b"/health", b"/metrics", b"/api/v1/activities/", b"/api/v1/tasks/", b"/ui/assets/")
_REPORTS: Final = (b"/heartbeat", b"/complete", b"/fail", b"/release")


def priority_of(url: bytes) -> Priority:
    """Return the priority of a request."""
    if url.startswith(_HIGH):
        return Priority.HIGH
    if url.startswith(_LOW):
        return Priority.LOW
    return Priority.HIGH if url.startswith(b"/api/v1/fanouts/") and url.endswith(_REPORTS) else Priority.NORMAL


class LoadShedder(Collector):
    """Decides which requests are accepted. Used from the event loop only."""

    def __init__(
        self,
        *,
        in_flight_max: int,
        pass_cpu_seconds: float = PASS_CPU_SECONDS,
        pass_seconds: float = PASS_SECONDS,
        now: Callable[[], float] = monotonic,
        cpu_now: Callable[[], float] = thread_time,
    ) -> None:
        self._now = now
        # CPU time of the event loop's thread.
        self._cpu_now = cpu_now
        # Refused requests since the start.
        self.shed_counts: Counter[Priority] = Counter()
        self._tasks_max = {priority: share * in_flight_max for priority, share in _SHARES.items()}
        self._seconds_max = {priority: share * pass_seconds for priority, share in _SHARES.items()}
        self._cpu_seconds_max = {priority: share * pass_cpu_seconds for priority, share in _SHARES.items()}
        self._tasks_low = self._tasks_max[Priority.LOW]
        self._cpu_seconds_low = self._cpu_seconds_max[Priority.LOW]
        self._in_flight = 0
        self._pass_since: float | None = None
        self._pass_cpu_since = 0.0
        # When the pass before began. Data that is read in this pass has arrived since then.
        self._arrived_since = float("-inf")
        self._unlogged = 0
        # Delayed refusals with the times when they are due, in order.
        self._held: deque[tuple[float, Callable[[FullResponse], None]]] = deque()

    def on_data(self, loop: asyncio.AbstractEventLoop, now: float) -> bool:
        """Note that a pass of the event loop reads data, and return whether some requests are refused now.

        Every request comes through here, so the case without overload is decided first.
        """
        since = self._pass_since
        if since is None:
            self._pass_since, self._pass_cpu_since = now, self._cpu_now()
            # Runs after all data that is ready now has been read.
            loop.call_soon(self._end_pass)
        elif now - since >= self._cpu_seconds_low:
            return self.is_shedding(now)
        return self._in_flight >= self._tasks_low

    def is_shedding(self, now: float) -> bool:
        """Whether requests of low priority, at least, are refused now."""
        return self._in_flight >= self._tasks_low or self._is_behind(Priority.LOW, now)

    def accepts(self, priority: Priority, now: float, *, is_task: bool) -> bool:
        """Whether a request is accepted; a task is one that does not end in this pass."""
        if self._is_behind(priority, now):
            return False
        return not is_task or self._in_flight < self._tasks_max[priority]

    def _is_behind(self, priority: Priority, now: float) -> bool:
        elapsed = 0.0 if self._pass_since is None else now - self._pass_since
        # A thread uses no more CPU time than has elapsed. Reading it is a system call.
        if elapsed < self._cpu_seconds_max[priority]:
            return False
        is_late = elapsed >= self._seconds_max[priority]
        return is_late or self._cpu_now() - self._pass_cpu_since >= self._cpu_seconds_max[priority]

    def count(self, priority: Priority) -> None:
        """Count a refused request."""
        self._unlogged += 1
        self.shed_counts[priority] += 1

    def refuse(
        self,
        priority: Priority,
        loop: asyncio.AbstractEventLoop,
        now: float,
        respond: Callable[[FullResponse], None],
    ) -> None:
        """Count a refused request, and pass the response to `respond` when its delay is over."""
        self.count(priority)
        due_at = self._arrived_since + HOLD_SECONDS
        if due_at <= now + _TOLERANCE_SECONDS:
            respond(OVERLOADED)
            return
        self._held.append((due_at, respond))
        if len(self._held) == 1:
            loop.call_later(due_at - now, self._send_held, loop)

    def _send_held(self, loop: asyncio.AbstractEventLoop) -> None:
        now = self._now()
        while self._held and self._held[0][0] <= now + _TOLERANCE_SECONDS:
            self._held.popleft()[1](OVERLOADED)
        if self._held:
            loop.call_later(self._held[0][0] - now, self._send_held, loop)

    def begin(self) -> None:
        """Count a task. `counted` uncounts it."""
        self._in_flight += 1

    def counted(self, app: ASGIApp) -> ASGIApp:
        """Return the application; a task that `begin` counted is counted until its response begins.

        A stream may last for hours, and then waits for its client, not for other tasks.
        """

        async def run(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != ScopeType.HTTP:
                await app(scope, receive, send)
                return
            if not scope.pop(BEGUN, False):  # type: ignore[typeddict-item]  # ours
                # A pipelined request, which is not counted while it waits.
                self.begin()
            end = self._once()

            async def send_counted(message: Message) -> None:
                end()
                await send(message)

            try:
                await app(scope, receive, send_counted)
            finally:
                end()

        return run

    def admitting(self, app: ASGIApp) -> ASGIApp:
        """Return the application for requests that a connection of another process has read.

        They are refused and counted as those of the connections here.
        """
        counted = self.counted(app)

        async def run(scope: Scope, receive: Receive, send: Send) -> None:
            priority = priority_of(scope["raw_path"])
            if self.accepts(priority, self._now(), is_task=True):
                await counted(scope, receive, send)
                return
            self.count(priority)
            await asyncio.sleep(HOLD_SECONDS)
            await send({"type": "http.response.start", "status": OVERLOADED.status, "headers": _OVERLOADED_HEADERS})
            await send({"type": "http.response.body", "body": OVERLOADED.content, "more_body": False})

        return run

    def collect(self) -> Iterator[Metric]:
        """Yield the metric of refused requests."""
        shed = CounterMetricFamily(
            "headgate_http_requests_shed", "Requests refused under overload.", labels=["priority"]
        )
        for priority in Priority:
            shed.add_metric([priority.name.lower()], self.shed_counts[priority])
        yield shed

    def log(self) -> None:
        """Log the refused requests since the last call, if there are any. Called once a second."""
        if self._unlogged:
            _log.warning("requests shed", action="http.shed", requests=self._unlogged)
            self._unlogged = 0

    def _end_pass(self) -> None:
        assert self._pass_since is not None, "a pass ends after it began"
        self._arrived_since, self._pass_since = self._pass_since, None

    def _once(self) -> Callable[[], None]:
        is_over = False

        def end() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                self._in_flight -= 1

        return end


_CONTENT: Final = msgspec.json.encode(Problem.of(503, "server_busy", _DETAIL))
_OVERLOADED_HEADERS: Final = [
    (b"content-type", MEDIA_TYPE.encode()),
    (b"content-length", str(len(_CONTENT)).encode()),
    (b"retry-after", str(RETRY_AFTER_SECONDS).encode()),
    (b"x-content-type-options", b"nosniff"),
]
OVERLOADED: Final = FullResponse(503, head_of(_OVERLOADED_HEADERS), _CONTENT)
