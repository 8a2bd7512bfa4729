"""Probe poller: looks at every probe once an interval, for all pipelines that read it.

Each probe has a phase of its own within its interval, so that many probes with the same interval spread over it. The
time of the next look is in the probe's row, so that several servers share the work and a restart repeats nothing. A
probe whose definition was changed since is looked at at once.
"""

from __future__ import annotations

import hashlib
import heapq
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from headgate.clock import Clock, epoch_ms
from headgate.errors import HeadgateError
from headgate.outage_log import OutageLog
from headgate.pipelines.enums import Verdict
from headgate.pipelines.probes.catalog import ProbeCatalog
from headgate.pipelines.probes.model import Probe, ProbeResult
from headgate.pipelines.probes.results import ProbeResults, ProbeState
from headgate.pipelines.probes.runner import ProbeRunner
from headgate.pipelines.schedule.periods import Periods

THREADS: Final = 8
BATCH: Final = 64
# A new or changed probe runs within this time, before it takes its place in the interval.
_FIRST_SECONDS: Final = 2.0
# A changed probe that is being looked at is tried again after this time.
_BUSY_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 1.0
_TICK_SECONDS_MAX: Final = 1.0
_log = structlog.get_logger(__name__)

Observe = Callable[[Probe, ProbeResult], None]


def _unobserved(_probe: Probe, _result: ProbeResult) -> None:
    return


class ProbePoller:
    """Polls probes. `tick` belongs to one thread."""

    def __init__(
        self,
        clock: Clock,
        catalog: ProbeCatalog,
        runner: ProbeRunner,
        results: ProbeResults,
        *,
        name: str,
        observe: Observe = _unobserved,
    ) -> None:
        """`name` is this process in claims. `observe` receives every result."""
        self._clock = clock
        self._catalog = catalog
        self._runner = runner
        self._results = results
        self._name = name
        self._observe = observe
        self._generation = -1
        # Due time and id of every probe.
        self._queue: list[tuple[int, str]] = []
        self._running: set[str] = set()
        self._lock = threading.Lock()

    def tick(self, submit: Callable[[Callable[[], None]], object] = lambda work: work()) -> int:
        """Claim the probes that are due, and pass each to `submit`. Returns how many were claimed."""
        self._reload()
        due = self._take()
        states = self._results.states([probe.id for probe in due])
        claimed = 0
        for probe in due:
            claimed += self._start(probe, states.get(probe.id), submit)
        return claimed

    def seconds_left(self) -> float:
        """Return the seconds until the next look."""
        if not self._queue:
            return _TICK_SECONDS_MAX
        return max(0.0, (self._queue[0][0] - epoch_ms(self._clock)) / 1000)

    def _reload(self) -> None:
        if self._generation == self._catalog.generation:
            return
        self._generation = self._catalog.generation
        probes = [each.probe for each in self._catalog.all()]
        states = self._results.states([probe.id for probe in probes])
        now_ms = epoch_ms(self._clock)
        self._queue = [(_first_at_ms(probe, states.get(probe.id), now_ms), probe.id) for probe in probes]
        heapq.heapify(self._queue)

    def _take(self) -> list[Probe]:
        now_ms = epoch_ms(self._clock)
        due: list[Probe] = []
        while self._queue and self._queue[0][0] <= now_ms and len(due) < BATCH:
            _, probe_id = heapq.heappop(self._queue)
            loaded = self._catalog.find(probe_id)
            if loaded is not None:
                due.append(loaded.probe)
        return due

    def _start(self, probe: Probe, state: ProbeState | None, submit: Callable[[Callable[[], None]], object]) -> int:
        now_ms = epoch_ms(self._clock)
        next_at_ms = next_look_ms(probe, now_ms)
        is_changed = state is not None and not state.is_of(probe)
        if state is not None and not is_changed and min(state.due_at_ms, next_at_ms) > now_ms:
            # Another process has looked meanwhile.
            self._plan(probe, min(state.due_at_ms, next_at_ms))
            return 0
        if state is not None and state.claimed_until_ms > now_ms:
            # The look in progress may be one of the earlier definition.
            self._plan(probe, now_ms + round(_BUSY_SECONDS * 1000) if is_changed else next_at_ms)
            return 0
        self._plan(probe, next_at_ms)
        with self._lock:
            # A look that is late by more than an interval is not doubled.
            if probe.id in self._running:
                return 0
            claimed = self._results.claim(probe, state, self._name, next_at_ms)
            if claimed is None:
                return 0
            self._running.add(probe.id)
        submit(lambda: self._look(probe, claimed))
        return 1

    def _look(self, probe: Probe, claimed: ProbeState) -> None:
        try:
            results = [self._runner.run(probe, period) for period in periods_of(probe, self._clock)]
            if not self._results.record(probe, claimed, results):
                _log.warning("probe result dropped: its claim was taken over", probe=probe.id)
                return
            for result in results:
                self._observe(probe, result)
                if result.verdict is Verdict.UNKNOWN:
                    _log.warning("probe could not look", probe=probe.id, period=result.period, error=result.reason)
        except HeadgateError as exc:
            # The claim expires, and the probe runs again at its next time.
            _log.error("probe result not stored", probe=probe.id, error=exc.message)
        finally:
            with self._lock:
                self._running.discard(probe.id)

    def _plan(self, probe: Probe, at_ms: int) -> None:
        heapq.heappush(self._queue, (at_ms, probe.id))


class ProbeThread:
    """Runs the poller in a thread, and its looks in a small pool. `stop` waits for looks in progress."""

    def __init__(self, poller: ProbePoller) -> None:
        self._poller = poller
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="headgate-probe")
        self._thread = threading.Thread(target=self._run, name="headgate-probes", daemon=True)

    def start(self) -> None:
        """Start polling."""
        self._thread.start()

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Stop polling."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(grace_seconds)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        outage = OutageLog(_log, "probe poller failed", pause_seconds=_PAUSE_SECONDS)
        while not self._stopping.is_set():
            try:
                self._poller.tick(self._pool.submit)
                outage.succeeded()
            except HeadgateError as exc:
                self._stopping.wait(outage.failed(exc, action="probes.poll", code=exc.code))
                continue
            self._stopping.wait(min(self._poller.seconds_left(), _TICK_SECONDS_MAX))


def periods_of(probe: Probe, clock: Clock) -> list[str]:
    """Return the periods that a probe looks at now, latest first; one empty text if it has none."""
    if probe.period is None:
        return [""]
    periods = Periods(probe.period, probe.timezone)
    dates = [periods.at(clock.now())]
    while len(dates) < probe.periods:
        dates.append(periods.previous(dates[-1]))
    return dates


def next_look_ms(probe: Probe, now_ms: int) -> int:
    """Return the first time after now at the probe's own phase of its interval."""
    every_ms = round(float(probe.every) * 1000)
    phase_ms = _phase(probe.id, every_ms)
    return ((now_ms - phase_ms) // every_ms + 1) * every_ms + phase_ms


def _first_at_ms(probe: Probe, state: ProbeState | None, now_ms: int) -> int:
    if state is not None and state.is_of(probe):
        return min(state.due_at_ms, next_look_ms(probe, now_ms))
    return now_ms + _phase(probe.id, round(min(_FIRST_SECONDS, float(probe.every)) * 1000))


def _phase(probe_id: str, span_ms: int) -> int:
    return int.from_bytes(hashlib.blake2b(probe_id.encode(), digest_size=8).digest(), "big") % span_ms
