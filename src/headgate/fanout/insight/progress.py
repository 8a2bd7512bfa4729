"""Progress: completion, throughput, stragglers and stalls of a fan-out.

The cost does not depend on the number of chunks: it reads the counts, a sample of rows, and running chunks. A single
look derives the rate from times in the sampled rows; a follower from the points it has seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.fanout.core.attempts import retry_delay_seconds
from headgate.fanout.core.costs import NO_PRICES, Cost, Prices, fanout_cost
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.insight.eta import (
    COMPLETIONS_MIN,
    Estimate,
    Point,
    Ring,
    Spread,
    began_at_ms,
    durations_of,
    estimate,
    history,
    rate_memory_seconds,
    rate_per_second,
    spread_of,
)
from headgate.fanout.insight.makespans import LaneWork
from headgate.fanout.insight.samples import Sample, sampled
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import MAIN_LANE, SLOW_LANE, Chunk, Fanout, Policy, timestamp, timestamp_ms
from headgate.fanout.model.states import Disposition, FanoutStatus
from headgate.fanout.model.worker_names import short_worker_name
from headgate.store.port import Store

# A straggler runs this many times longer than the 95th percentile, and at least this long: local workers claim short
# chunks in batches, and each counts as running while it waits for its turn.
STRAGGLER_FACTOR: Final = 1.5
STRAGGLER_SECONDS_MIN: Final = 10.0
STRAGGLERS_MAX: Final = 20
STRAGGLER_COMPLETIONS_MIN: Final = 5
# Delay between the time-out of an attempt and the next one, as with queue redelivery.
REDELIVERY_SECONDS: Final = 60.0
SAMPLE_SECONDS: Final = 30.0
# Running chunks read, by end of lease; without heartbeats that is by start.
RUNNING_MAX: Final = 500
# Chunks of the slow lane read; it is short by its nature.
SLOW_MAX: Final = 500


class Straggler(Struct, frozen=True):
    """A chunk that runs much longer than others took."""

    chunk_id: str
    worker: str | None
    seconds: float
    # Its running time as a multiple of the 95th percentile.
    times_p95: float


class Stall(Struct, frozen=True):
    """No chunk has ended for longer than the retry policy can explain."""

    since: str
    silent_seconds: float
    patience_seconds: float
    reason: str


class Progress(Struct, frozen=True):
    """The progress of a fan-out. Durations and attempts are of `sampled` chunks, all else is exact."""

    run_id: str
    group: str
    status: FanoutStatus
    at: str
    counts: Counts
    # Share of ended chunks of both lanes, from 0 to 1; 1 only if all have ended.
    share: float
    completed_per_second: float | None
    items_per_second: float | None
    estimate: Estimate
    durations: Spread | None
    # Number of sampled chunks by number of attempts.
    attempts: dict[int, int]
    sampled: int
    stragglers: list[Straggler]
    stall: Stall | None
    # None without a price: local work is not priced unless the settings or the policy do.
    cost: Cost | None


class Facts(Struct, frozen=True):
    """The rows that progress is derived from, besides the fan-out and its counts."""

    sample: Sample
    running: Sequence[Chunk]
    points: Sequence[Point]
    now_ms: int
    # Chunks of the slow lane.
    slow: Sequence[Chunk] = ()


class Follower:
    """Reads the progress of one fan-out repeatedly. Not thread-safe."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        run_id: str,
        *,
        sample_seconds: float = SAMPLE_SECONDS,
        running_max: int = RUNNING_MAX,
        prices: Prices = NO_PRICES,
    ) -> None:
        self._store = store
        self._clock = clock
        self._queries = FanoutQueries(store, clock)
        self._run_id = run_id
        self._sample_seconds = sample_seconds
        self._running_max = running_max
        self._prices = prices
        self._ring: Ring | None = None
        self._sample = Sample([], is_whole=True)
        self._slow: Sequence[Chunk] = ()
        self._sampled_at = 0.0

    def look(self) -> Progress:
        """Return the current progress. Raises `NotFoundError`."""
        fanout = self._queries.fanout(self._run_id)
        counts = self._queries.counts(fanout)
        now_ms = self._queries.now_ms()
        if self._ring is None or fanout.is_finished or self._is_sample_old(counts):
            self._sample = sampled(self._store, fanout, counts)
            is_slow = counts.slow_total > 0
            self._slow = self._queries.chunks(self._run_id, slow=True, limit=SLOW_MAX).chunks if is_slow else ()
            self._sampled_at = self._clock.monotonic()
        if self._ring is None:
            self._ring = Ring(history(fanout, counts, self._sample.chunks, now_ms))
        if not fanout.is_finished:
            self._ring.add(Point(now_ms, counts.completed, counts.failed))
        running: Sequence[Chunk] = ()
        if _running(counts):
            running = self._queries.in_disposition(self._run_id, Disposition.RUNNING, limit=self._running_max).chunks
        facts = Facts(self._sample, running, self._ring.points(), now_ms, self._slow)
        return progress_of(fanout, counts, facts, prices=self._prices)

    def _is_sample_old(self, counts: Counts) -> bool:
        # A sample from before the first completions says nothing about durations, which an estimate needs.
        if len(durations_of(self._sample.chunks)) < COMPLETIONS_MIN <= counts.completed:
            return True
        return self._clock.monotonic() - self._sampled_at >= self._sample_seconds


def progress_of(fanout: Fanout, counts: Counts, facts: Facts, *, prices: Prices = NO_PRICES) -> Progress:
    """Derive the progress of a fan-out from its rows."""
    durations_ms = durations_of(facts.sample.chunks)
    spread = spread_of(durations_ms)
    memory = rate_memory_seconds(facts.points, spread)
    completed = rate_per_second(facts.points, lambda point: point.completed, memory_seconds=memory)
    ended = rate_per_second(facts.points, lambda point: point.ended, memory_seconds=memory)
    if fanout.finished_at is not None:
        # It has ended: the rate is that of the whole run.
        seconds = (timestamp_ms(fanout.finished_at) - began_at_ms(fanout, facts.sample.chunks)) / 1000
        completed = counts.completed / seconds if seconds > 0 else None
    items = counts.items_ok + counts.items_failed
    running_ms = sum(_running_ms(chunk, facts.now_ms) for chunk in facts.running)
    if facts.running:
        running_ms = running_ms * max(_running(counts), len(facts.running)) // len(facts.running)
    return Progress(
        run_id=fanout.run_id,
        group=fanout.group,
        status=fanout.status,
        at=timestamp(facts.now_ms),
        counts=counts,
        share=counts.ended_share if counts.total else float(fanout.is_finished),
        completed_per_second=completed,
        items_per_second=None if completed is None or not counts.completed else completed * items / counts.completed,
        estimate=estimate(fanout, lane_works(fanout, counts, facts, ended)),
        durations=spread,
        attempts=attempts_histogram(facts.sample.chunks),
        sampled=len(facts.sample.chunks),
        stragglers=stragglers(facts.running, spread, facts.now_ms),
        stall=stall(fanout, counts, last_sign_ms(fanout, counts, facts), facts.now_ms),
        cost=fanout_cost(fanout, counts, prices, running_ms=running_ms),
    )


def lane_works(fanout: Fanout, counts: Counts, facts: Facts, ended_per_second: float | None) -> list[LaneWork]:
    """Return the open work of each lane."""
    ended = counts.completed + counts.failed
    slow_ended = counts.slow_total - counts.slow_open
    # Attempts are counted over both lanes.
    tries = max(1.0, (counts.attempts - _running(counts)) / (ended + slow_ended)) if ended + slow_ended else 1.0
    running = [chunk for chunk in facts.running if chunk.lane == MAIN_LANE]
    slow_running = [chunk for chunk in facts.running if chunk.lane == SLOW_LANE]
    main = LaneWork(
        pending=counts.pending,
        retrying=counts.retrying,
        running=counts.running,
        ages_ms=[_running_ms(chunk, facts.now_ms) for chunk in running],
        oldest_chunk_id=_oldest(running),
        completed=counts.completed,
        durations_ms=durations_of(facts.sample.chunks),
        tries=tries,
        attempts_per_second=None if ended_per_second is None else ended_per_second * tries,
        idle_seconds=(facts.now_ms - last_sign_ms(fanout, counts, facts)) / 1000,
    )
    # Open chunks of the main lane defer items as the others did.
    deferring = counts.open * counts.slow_total / ended if ended else 0.0
    slow = LaneWork(
        lane=SLOW_LANE,
        pending=counts.slow_open - counts.slow_running,
        retrying=counts.slow_retrying,
        expected=round(deferring),
        running=counts.slow_running,
        ages_ms=[_running_ms(chunk, facts.now_ms) for chunk in slow_running],
        oldest_chunk_id=_oldest(slow_running),
        completed=counts.slow_done,
        durations_ms=durations_of(facts.slow),
        tries=tries,
        idle_seconds=_slow_idle_seconds(facts, slow_running),
    )
    return [main, slow]


def _oldest(running: Sequence[Chunk]) -> str | None:
    return min(running, key=lambda chunk: chunk.started_at or "").chunk_id if running else None


def _slow_idle_seconds(facts: Facts, running: Sequence[Chunk]) -> float:
    """Return the time since a chunk of the slow lane was made, began or ended."""
    times = [chunk.completed_at or chunk.started_at or chunk.created_at for chunk in (*facts.slow, *running)]
    return (facts.now_ms - max(map(timestamp_ms, times))) / 1000 if times else 0.0


def attempts_histogram(chunks: Iterable[Chunk]) -> dict[int, int]:
    """Return the number of started chunks by number of attempts, fewest first."""
    found: dict[int, int] = {}
    for chunk in chunks:
        if chunk.attempt:
            found[chunk.attempt] = found.get(chunk.attempt, 0) + 1
    return dict(sorted(found.items()))


def stragglers(running: Iterable[Chunk], spread: Spread | None, now_ms: int) -> list[Straggler]:
    """Return running chunks that take much longer than completed ones did, longest first."""
    if spread is None or spread.count < STRAGGLER_COMPLETIONS_MIN:
        return []
    limit_ms = max(STRAGGLER_FACTOR * spread.p95_ms, 1000 * STRAGGLER_SECONDS_MIN)
    found = []
    for chunk in running:
        spent_ms = _running_ms(chunk, now_ms)
        if spent_ms > limit_ms:
            times = spent_ms / max(1.0, spread.p95_ms)
            found.append(Straggler(chunk.chunk_id, short_worker_name(chunk.worker), spent_ms / 1000, times))
    return sorted(found, key=lambda one: (-one.seconds, one.chunk_id))[:STRAGGLERS_MAX]


def patience_seconds(policy: Policy) -> float:
    """Return the longest time a chunk can take to end: every attempt times out, with the maximum backoff.

    Only a longer silence is a stall; a shorter one may be a retry.
    """
    pauses = sum(retry_delay_seconds(policy, tries, 1.0) for tries in range(1, policy.max_attempts))
    return policy.max_attempts * (policy.timeout_seconds + REDELIVERY_SECONDS) + pauses


def stall(fanout: Fanout, counts: Counts, last_ms: int, now_ms: int) -> Stall | None:
    """Return the stall of a fan-out, or None if the time without an end can be explained."""
    is_paused = fanout.paused_at is not None and not _running(counts)
    has_work = counts.open + counts.slow_open > 0 or fanout.status is FanoutStatus.SPLITTING
    if fanout.is_finished or is_paused or not has_work:
        return None
    patience = patience_seconds(fanout.rules())
    silent = (now_ms - last_ms) / 1000
    if silent <= patience:
        return None
    return Stall(timestamp(last_ms), silent, patience, _stall_reason(fanout, counts))


def last_sign_ms(fanout: Fanout, counts: Counts, facts: Facts) -> int:
    """Return the time of the last activity: an end or a start; while no chunk runs, any change of the fan-out."""
    is_still = not _running(counts) or fanout.status is FanoutStatus.SPLITTING
    times = [fanout.progressed_at, fanout.updated_at if is_still else None]
    times += [chunk.completed_at for chunk in facts.sample.chunks]
    times += [chunk.started_at for chunk in facts.running]
    known = [began_at_ms(fanout, facts.sample.chunks), *(timestamp_ms(text) for text in times if text)]
    known += [after.at_ms for before, after in pairwise(facts.points) if after.ended != before.ended]
    return max(known)


def _stall_reason(fanout: Fanout, counts: Counts) -> str:
    if fanout.status is FanoutStatus.SPLITTING:
        return f"the split has stopped: {fanout.split_error or 'its process is gone'}; request it again to resume"
    if not _running(counts):
        return "no chunk is running: no worker takes its chunks"
    return f"{_running(counts)} chunks are running, and none of them ends"


def _running(counts: Counts) -> int:
    return counts.running + counts.slow_running


def _running_ms(chunk: Chunk, now_ms: int) -> int:
    return 0 if chunk.started_at is None else max(0, now_ms - timestamp_ms(chunk.started_at))
