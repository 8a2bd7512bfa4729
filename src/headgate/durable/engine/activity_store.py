"""Activity store: claims activities and records how their attempts end, each in one transaction.

An activity has a row until it has ended. Its token changes with every claim and fences the earlier holders: a write
with an old token is refused.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.durable.bus.dead_letters import RETENTION_DAYS, dead_letter
from headgate.durable.engine.concurrency_limits import ConcurrencyLimits
from headgate.durable.engine.turn_commit import Source, queue_partition
from headgate.durable.model.failures import CANCELLED, ErrorInfo, is_cancellation
from headgate.durable.model.history import NULL, ActivityEnded, ActivityOptions, Cancellation, FailedAttempt, Note
from headgate.durable.model.records import NEVER_MS, WATCH, Activity, activity_of, message
from headgate.errors import ConflictError, NotFoundError, OutcomeUnknownError, StaleClaimError
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import ACTIVITIES
from headgate.store.model.conditions import Compare, Comparison, all_of, lacks
from headgate.store.model.requests import Page, Poll, Put, Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

T = TypeVar("T")
_options_decoder: Final = msgspec.json.Decoder(ActivityOptions)
_encoder: Final = msgspec.json.Encoder()
_notes_decoder: Final = msgspec.json.Decoder(tuple[Note, ...])
_attempts_decoder: Final = msgspec.json.Decoder(tuple[FailedAttempt, ...])
NOTES_KEPT_MAX: Final = 400
# Failed attempts that are kept besides the last one.
ATTEMPTS_KEPT_MAX: Final = 4
_ATTEMPT_CHARACTERS_MAX: Final = 1_000
# The error of an attempt that its worker did not let finish.
WORKER_STOPPED: Final = "WorkerStopped"
_PAGE: Final = 200
_PAGES_MAX: Final = 20


class Timeout(enum.StrEnum):
    """The four limits of an activity."""

    SCHEDULE_TO_START = "schedule_to_start"
    START_TO_CLOSE = "start_to_close"
    HEARTBEAT = "heartbeat"
    SCHEDULE_TO_CLOSE = "schedule_to_close"


# Limits after which there is no further attempt.
_FINAL: Final = (Timeout.SCHEDULE_TO_START, Timeout.SCHEDULE_TO_CLOSE)


class AttemptResult(Struct, frozen=True):
    """How an attempt ended: with an error, or with `result`."""

    result: Raw = NULL
    error: ErrorInfo | None = None
    timeout: Timeout | None = None
    notes: tuple[Note, ...] = ()


class HeldClaim(NamedTuple):
    """A claim of a worker."""

    activity_id: str
    token: str


def options_of(activity: Activity) -> ActivityOptions:
    """Return the options that an activity was started with."""
    return _options(activity.options)


def failed_attempts_of(activity: Activity) -> tuple[FailedAttempt, ...]:
    """Return the last failed attempts of an activity, the oldest first."""
    return () if activity.failed_attempts is None else _attempts_decoder.decode(activity.failed_attempts)


def notes_so_far(activity: Activity) -> tuple[Note, ...]:
    """Return the log lines of the failed attempts of an activity."""
    return () if activity.notes is None else _notes_decoder.decode(activity.notes)


@lru_cache(maxsize=1024)
def _options(text: str) -> ActivityOptions:
    # Cached: the activities of an app share a few options, which every step decodes several times.
    return _options_decoder.decode(text)


def deadline(activity: Activity, options: ActivityOptions) -> tuple[int, Timeout | None]:
    """Return the deadline of the current attempt, or of the wait for it, and the limit that sets it."""
    limits: list[tuple[int, Timeout]] = []
    if options.schedule_to_close is not None:
        at_ms = activity.scheduled_at_ms + round(1000 * options.schedule_to_close)
        limits.append((at_ms, Timeout.SCHEDULE_TO_CLOSE))
    if activity.queue_pk is not None:
        # Only the wait for the first attempt counts against `schedule_to_start`.
        if options.schedule_to_start is not None and activity.attempt == 0:
            at_ms = activity.scheduled_at_ms + round(1000 * options.schedule_to_start)
            limits.append((at_ms, Timeout.SCHEDULE_TO_START))
        return min(limits) if limits else (NEVER_MS, None)
    if options.start_to_close is not None:
        limits.append((activity.started_at_ms + round(1000 * options.start_to_close), Timeout.START_TO_CLOSE))
    if options.heartbeat is not None:
        since_ms = max(activity.started_at_ms, activity.heartbeat_at_ms)
        limits.append((since_ms + round(1000 * options.heartbeat), Timeout.HEARTBEAT))
    return min(limits) if limits else (NEVER_MS, None)


def cancelled_end(activity: Activity, now_ms: int) -> ActivityEnded:
    """Return the end of an activity that was cancelled before an attempt, or whose attempt did not end itself."""
    return ActivityEnded(
        seq=activity.seq,
        error=CANCELLED,
        attempts=activity.attempt,
        worker=activity.worker,
        started_at_ms=activity.started_at_ms,
        ended_at_ms=now_ms,
        notes=notes_so_far(activity),
        earlier=failed_attempts_of(activity),
        cancelled=True,
    )


def unbegun(activity: Activity) -> Activity:
    """Return a claim that waits for a thread as if it were still queued: its attempt has not started."""
    return replace(activity, attempt=activity.attempt - 1, queue_pk=queue_partition(options_of(activity).queue))


def wait_deadline(activity: Activity) -> tuple[int, Timeout | None]:
    """Return the deadline of a claim that waits for a thread, and the limit that sets it."""
    options = options_of(activity)
    if options.schedule_to_start is None and options.schedule_to_close is None:
        return NEVER_MS, None
    return deadline(unbegun(activity), options)


class Activities:
    """The activities of a store, as one worker claims and ends them."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        *,
        worker_id: Callable[[], str],
        draw: Callable[[], float],
        membership: Callable[[], Write] | None = None,
        dead_letters_days: int = RETENTION_DAYS,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        # Tokens need only be unique; a counter is the cheapest, and every step makes one.
        self._token_prefix = f"{ids.ulid()}."
        self._token_numbers = itertools.count(1)
        self._worker_id = worker_id
        self._draw = draw
        self._membership = membership
        self._dead_letters_days = dead_letters_days
        self._limits = ConcurrencyLimits(store)

    def _new_token(self) -> str:
        return f"{self._token_prefix}{next(self._token_numbers)}"

    # Claims.

    def claimed(self, activity: Activity) -> Activity:
        """Return the row as this worker would claim it."""
        worker = self._worker_id()
        return replace(
            activity,
            token=self._new_token(),
            attempt=activity.attempt + 1,
            worker=worker,
            started_at_ms=self.now_ms(),
            heartbeat_at_ms=0,
            queue_pk=None,
            available_at_ms=None,
            lease_pk=worker,
            lease_expires_ms=NEVER_MS,
        )

    def claim(self, queues: Sequence[str], accepts: Callable[[Activity], bool], limit: int) -> list[Activity]:
        """Claim up to `limit` available activities of these queues that `accepts` approves."""
        claims: list[Activity] = []
        transactions: list[list[Write]] = []
        assigned: dict[str, set[str]] = {}
        for activity in chain.from_iterable(self._available(queue) for queue in queues):
            if len(claims) >= limit:
                break
            if not accepts(activity):
                continue
            admitted = self._limits.admit(options_of(activity), self.claimed(activity), assigned)
            if admitted is not None:
                claimed, writes = admitted
                claims.append(claimed)
                member = [] if self._membership is None else [self._membership()]
                transactions.append([claimed.put(activity.token), *writes, *member])
        if not transactions:
            return []
        outcomes = self._store.transact_many(transactions)
        return [activity for activity, refusal in zip(claims, outcomes, strict=True) if refusal is None]

    def claim_one(self, activity: Activity) -> Activity | None:
        """Claim a queued activity. None if its limit is reached, or another worker has claimed it.

        Raises `OutcomeUnknownError` if it may have been claimed.
        """
        admitted = self._limits.admit(options_of(activity), self.claimed(activity), {})
        if admitted is None:
            return None
        claimed, writes = admitted
        member = [] if self._membership is None else [self._membership()]
        try:
            self._store.transact([claimed.put(activity.token), *writes, *member])
        except OutcomeUnknownError:
            raise
        except ConflictError:
            return None
        return claimed

    def next_available_ms(self, queues: Sequence[str]) -> int:
        """Return when the next activity of these queues becomes available."""
        soonest = NEVER_MS
        for queue in queues:
            page = self._store.query(
                Query(
                    table=ACTIVITIES, index="queue-index", partition=queue_partition(queue), limit=1, poll=Poll.PROMPT
                )
            )
            for item in page.items:
                soonest = min(soonest, item["available_at_ms"])
        return soonest

    def may_start(self, activity: Activity) -> bool:
        """Whether the rate of a claim allows that it starts now: it may have waited for a thread since then."""
        options = options_of(activity)
        if options.rate is None or options.limit_key is None:
            return True
        while (now_ms := self.now_ms()) != activity.started_at_ms:
            start = self._limits.moved_start(options, activity, now_ms)
            if start is None:
                return False
            try:
                self._store.transact([start])
            except OutcomeUnknownError:
                raise
            except ConflictError:
                continue  # Another start of the key was recorded meanwhile.
            return True
        return True

    def release(self, activity: Activity) -> None:
        """Queue a claim again whose attempt has not started."""
        self._settled(activity, self._release)

    def _release(self, activity: Activity) -> None:
        unstarted = replace(activity, attempt=activity.attempt - 1)
        if activity.is_cancel_requested:
            self._transact(activity, self._cancelled_writes(unstarted))
        else:
            self._put(self._queued(unstarted, self.now_ms()), activity.token)

    def interrupt(self, activity: Activity) -> None:
        """End an attempt that started and did not finish before its worker stopped.

        The attempt counts. The activity is queued again if its retry policy allows another attempt, and fails with
        `WorkerStopped` if not. Raises `StaleClaimError` if the claim is lost.
        """
        fact = f"activity {activity.activity_id} attempt {activity.attempt}: its worker stopped while it ran"
        error = ErrorInfo(type=WORKER_STOPPED, message=fact)
        self._settled(activity, lambda claim: self._transact(claim, self._unfinished(claim, error)))

    # Results.

    def end_attempt(self, activity: Activity, outcome: AttemptResult) -> Source | None:
        """Return the event for the execution, or None if the activity was queued for another attempt.

        Raises `StaleClaimError` if the claim is lost.
        """
        if outcome.error is not None:
            return self._settled(activity, lambda claim: self._end_attempt(claim, outcome))
        return self._end_attempt(activity, outcome)

    def _end_attempt(self, activity: Activity, outcome: AttemptResult) -> Source | None:
        notes = self._notes(activity, outcome)
        if outcome.error is not None:
            again_at_ms = self._again_at_ms(activity, options_of(activity), outcome)
            if again_at_ms is not None:
                self._retry(activity, outcome.error, notes, again_at_ms)
                return None
        event = ActivityEnded(
            seq=activity.seq,
            result=outcome.result,
            error=outcome.error,
            timeout=None if outcome.timeout is None else outcome.timeout.value,
            attempts=activity.attempt,
            worker=activity.worker,
            started_at_ms=activity.started_at_ms,
            ended_at_ms=self.now_ms(),
            notes=notes,
            earlier=failed_attempts_of(activity),
            cancelled=activity.is_cancel_requested and outcome.error is not None and is_cancellation(outcome.error),
        )
        return Source(event, activity.ended(), activity.run)

    def fail_unstarted(self, activity: Activity, error: ErrorInfo) -> None:
        """Count an attempt that no worker could start, and queue the activity again or end it.

        Raises `StaleClaimError` if a worker has claimed it meanwhile.
        """
        attempted = replace(activity, attempt=activity.attempt + 1, started_at_ms=self.now_ms())
        source = self.end_attempt(attempted, AttemptResult(error=error))
        if source is not None:
            self.send_end(attempted, source)

    def send_end(self, activity: Activity, source: Source) -> None:
        """Put the end of an activity into the execution's inbox, for the worker that advances it.

        Raises `StaleClaimError` if the claim is lost.
        """
        assert source.removal is not None
        notice = message(activity.execution_id, source.event, self.now_ms(), self._ids.ulid(), run=activity.run)
        self._transact(activity, [source.removal, notice.put(), *self.slot_freed(activity)])

    def end_delivery(self, activity: Activity, outcome: AttemptResult) -> bool:
        """Record an attempt at the delivery of an event: delivered, queued for another attempt, or a dead letter.

        Returns whether there is another attempt.
        """
        if outcome.error is None:
            self._transact(activity, [activity.ended()])
            return False
        again_at_ms = self._again_at_ms(activity, options_of(activity), outcome)
        if again_at_ms is not None:
            self._retry(activity, outcome.error, (), again_at_ms)
            return True
        self._transact(activity, [activity.ended(), *self._dead_letter(activity, outcome.error)])
        return False

    def _dead_letter(self, activity: Activity, error: ErrorInfo) -> list[Write]:
        return dead_letter(activity, error, self.now_ms(), retention_days=self._dead_letters_days)

    def slot_freed(self, activity: Activity) -> list[Write]:
        """Return the writes that free the limit slot of an activity."""
        return self._limits.freed(activity)

    def _again_at_ms(self, activity: Activity, options: ActivityOptions, outcome: AttemptResult) -> int | None:
        assert outcome.error is not None
        if activity.is_cancel_requested:
            return None
        if outcome.timeout in _FINAL or not options.retry.again(activity.attempt, outcome.error):
            return None
        at_ms = self.now_ms() + round(1000 * options.retry.delay_seconds(activity.attempt, self._draw()))
        last_ms = NEVER_MS
        if options.schedule_to_close is not None:
            last_ms = activity.scheduled_at_ms + round(1000 * options.schedule_to_close)
        return at_ms if at_ms < last_ms else None

    def _retry(self, activity: Activity, error: ErrorInfo, notes: tuple[Note, ...], again_at_ms: int) -> None:
        waiting = replace(
            self._queued(activity, again_at_ms),
            last_error=_encoder.encode(error).decode(),
            failed_attempts=self._with_failed(activity, error),
            notes=_encoder.encode(notes[-NOTES_KEPT_MAX:]).decode() if notes else None,
        )
        self._put(waiting, activity.token, *self.slot_freed(activity))

    def _with_failed(self, activity: Activity, error: ErrorInfo) -> str:
        """Return the failed attempts of an activity as JSON, with the one that has just ended."""
        ended = FailedAttempt(
            attempt=activity.attempt,
            type=error.type,
            message=error.message[:_ATTEMPT_CHARACTERS_MAX],
            trace=error.trace,
            worker=activity.worker,
            started_at_ms=activity.started_at_ms,
            ended_at_ms=self.now_ms(),
        )
        kept = (*failed_attempts_of(activity), ended)[-ATTEMPTS_KEPT_MAX:]
        return _encoder.encode(kept).decode()

    def _queued(self, activity: Activity, available_at_ms: int) -> Activity:
        options = options_of(activity)
        queued = replace(
            activity,
            token=self._new_token(),
            worker="",
            queue_pk=queue_partition(options.queue),
            available_at_ms=available_at_ms,
            lease_pk=None,
            lease_expires_ms=None,
            is_external=False,
            limit_slot=None,
        )
        at_ms, kind = deadline(queued, options)
        return queued if kind is None else replace(queued, lease_pk=WATCH, lease_expires_ms=at_ms)

    # Cancellation that the code waits for.

    def _as_requested(self, activity: Activity) -> Activity:
        """Return a claim with the request to cancel it, if another process has stored one."""
        if activity.is_cancel_requested or options_of(activity).cancellation is not Cancellation.WAIT:
            return activity
        current = self.find(activity.activity_id)
        if current is None or current.token != activity.token:
            return activity  # The write that follows finds that the claim is lost.
        return replace(activity, is_cancel_requested=current.is_cancel_requested)

    def _settled(self, activity: Activity, write: Callable[[Activity], T]) -> T:
        """Write a claim, and once more if its cancellation was requested meanwhile. Raises `StaleClaimError`."""
        claim = self._as_requested(activity)
        try:
            return write(claim)
        except StaleClaimError:
            requested = self._as_requested(claim)
            if requested.is_cancel_requested == claim.is_cancel_requested:
                raise
            return write(requested)

    def _cancelled_writes(self, activity: Activity) -> list[Write]:
        """Return the writes that end a cancelled activity without another attempt."""
        now_ms = self.now_ms()
        notice = message(
            activity.execution_id, cancelled_end(activity, now_ms), now_ms, self._ids.ulid(), run=activity.run
        )
        return [activity.ended(), notice.put(), *self.slot_freed(activity)]

    # Completion from outside.

    def hand_over(self, activity: Activity) -> Activity:
        """Leave an activity to be completed from outside; only its deadlines still apply."""
        return self._settled(activity, self._hand_over)

    def _hand_over(self, activity: Activity) -> Activity:
        external = replace(activity, is_external=True, lease_pk=None, lease_expires_ms=None)
        at_ms, kind = deadline(external, options_of(external))
        if kind is not None:
            external = replace(external, lease_pk=WATCH, lease_expires_ms=at_ms)
        self._put(external, activity.token)
        return external

    def find(self, activity_id: str) -> Activity | None:
        """Return an activity's current row, or None if it has ended."""
        item = self._store.get(ACTIVITIES, Key(activity_id), consistent=True)
        return None if item is None else activity_of(item)

    def get(self, activity_id: str, token: str) -> Activity:
        """Return an activity if this is its current token. Raises `StaleClaimError`, `NotFoundError`."""
        activity = self.find(activity_id)
        if activity is None:
            raise NotFoundError(f"activity {activity_id}: it has ended, or its execution has; nothing is left to do")
        if activity.token != token:
            raise _stale(activity)
        return activity

    def is_held(self, activity: Activity) -> bool:
        """Whether the store still has this very claim."""
        try:
            self.get(activity.activity_id, activity.token)
        except (StaleClaimError, NotFoundError):
            return False
        return True

    def held_rows(self, activities: Sequence[Activity | HeldClaim]) -> list[Activity | None]:
        """Return for each claim its current row; None if the store no longer has the claim."""
        items = self._store.get_many(ACTIVITIES, [Key(each.activity_id) for each in activities], consistent=True)
        return [
            None if item is None or item["token"] != each.token else activity_of(item)
            for each, item in zip(activities, items, strict=True)
        ]

    def record_heartbeat(self, activity: Activity, details: Raw | None) -> Activity:
        """Record a heartbeat, and return the new row. Raises `StaleClaimError` if the activity was cancelled.

        If the code waits for the end of the activity, the row has the request to cancel it.
        """
        return self._settled(activity, lambda claim: self._record_heartbeat(claim, details))

    def _record_heartbeat(self, activity: Activity, details: Raw | None) -> Activity:
        renewed = replace(
            activity,
            heartbeat_at_ms=self.now_ms(),
            details=activity.details if details is None else bytes(details).decode(),
        )
        if activity.is_external:
            at_ms, kind = deadline(renewed, options_of(renewed))
            if kind is not None:
                renewed = replace(renewed, lease_expires_ms=at_ms)
        self._put(renewed, activity.token)
        return renewed

    # Deadlines, and claims of dead workers.

    def overdue(self, limit: int = 100) -> list[tuple[Activity, Timeout]]:
        """Return activities that no worker holds and whose deadline has passed."""
        page = self._store.query(
            Query(
                table=ACTIVITIES,
                index="lease-index",
                partition=WATCH,
                sort=Sort(Range.AT_MOST, self.now_ms()),
                limit=limit,
                poll=Poll.RELAXED,
            )
        )
        overdue = []
        for activity in self._leased(page, WATCH):
            at_ms, kind = deadline(activity, options_of(activity))
            if kind is not None and at_ms <= self.now_ms():
                overdue.append((activity, kind))
        return overdue

    def next_deadline_ms(self) -> int:
        """Return the next deadline of the activities that no worker holds."""
        page = self._store.query(
            Query(table=ACTIVITIES, index="lease-index", partition=WATCH, limit=1, poll=Poll.RELAXED)
        )
        return min((item["lease_expires_ms"] for item in page.items), default=NEVER_MS)

    def held(self, limit: int = 500) -> list[HeldClaim]:
        """Return the claims stored under this worker's id. Eventually consistent (index)."""
        worker_id = self._worker_id()
        page = self._store.query(
            Query(table=ACTIVITIES, index="lease-index", partition=worker_id, limit=limit, poll=Poll.RELAXED)
        )
        return [HeldClaim(item["activity_id"], item["token"]) for item in page.items]

    def reclaim(self, worker_id: str, reason: str = "", limit: int = 100) -> int:
        """Queue again, or end, the claims of a dead worker, and return how many the index has.

        `reason` is what is known of its death.
        """
        page = self._store.query(Query(table=ACTIVITIES, index="lease-index", partition=worker_id, limit=limit))
        rows = self._leased(page, worker_id)
        outcomes = self._store.transact_many([self._reclaim_writes(row, reason) for row in rows]) if rows else []
        for refusal in outcomes:
            if refusal is not None and not isinstance(refusal, ConflictError):
                raise refusal
        return len(page.items)

    def _leased(self, page: Page, lease: str) -> list[Activity]:
        """Return the rows of a page of the lease index that still have this lease: the index has keys, and may lag."""
        keys = [Key(item["activity_id"]) for item in page.items]
        items = self._store.get_many(ACTIVITIES, keys, consistent=True) if keys else []
        rows = [activity_of(item) for item in items if item is not None]
        return [row for row in rows if row.lease_pk == lease]

    def _reclaim_writes(self, row: Activity, reason: str) -> list[Write]:
        """Return the writes that queue the claim of a dead worker again, or end it if no attempt is left."""
        fact = f"activity {row.activity_id} attempt {row.attempt}: its worker {row.worker} died"
        return self._unfinished(row, ErrorInfo(type="WorkerDied", message=f"{fact}: {reason}" if reason else fact))

    def _unfinished(self, row: Activity, error: ErrorInfo) -> list[Write]:
        """Return the writes that count an attempt whose worker is gone, and queue or end the activity."""
        if row.is_cancel_requested:
            return self._cancelled_writes(row)
        now_ms = self.now_ms()
        retry = options_of(row).retry
        if row.attempt <= retry.deaths or retry.again(row.attempt, error):
            # Without a delay: backoff is for failures of the activity itself.
            queued = replace(self._queued(row, now_ms), failed_attempts=self._with_failed(row, error))
            return [self._claim_put(queued, row.token), *self.slot_freed(row)]
        if row.subscription is not None:
            return [row.ended(), *self._dead_letter(row, error), *self.slot_freed(row)]
        event = ActivityEnded(
            seq=row.seq,
            error=error,
            attempts=row.attempt,
            worker=row.worker,
            started_at_ms=row.started_at_ms,
            ended_at_ms=now_ms,
            earlier=failed_attempts_of(row),
        )
        notice = message(row.execution_id, event, now_ms, self._ids.ulid(), run=row.run)
        return [row.ended(), notice.put(), *self.slot_freed(row)]

    def now_ms(self) -> int:
        """Return the time in milliseconds."""
        return int(self._clock.seconds() * 1000)

    def _available(self, queue: str) -> Iterator[Activity]:
        """Give the available activities of a queue, page by page: one that cannot be claimed does not hide others."""
        cursor = None
        # Computed once: a cursor is valid for one query only.
        by_now = Sort(Range.AT_MOST, self.now_ms())
        for _ in range(_PAGES_MAX):
            page = self._store.query(
                Query(
                    table=ACTIVITIES,
                    index="queue-index",
                    partition=queue_partition(queue),
                    sort=by_now,
                    limit=_PAGE,
                    cursor=cursor,
                    poll=Poll.PROMPT,
                )
            )
            yield from (activity_of(item) for item in page.items)
            cursor = page.cursor
            if cursor is None:
                return

    def _notes(self, activity: Activity, outcome: AttemptResult) -> tuple[Note, ...]:
        return outcome.notes if activity.notes is None else (*notes_so_far(activity), *outcome.notes)

    def _put(self, activity: Activity, token: str, *more: Write) -> None:
        self._transact(activity, [self._claim_put(activity, token), *more])

    def _claim_put(self, activity: Activity, token: str) -> Put:
        """Return the write that replaces a claim. It is refused rather than overwrite a request to cancel it."""
        put = activity.put(token)
        if activity.is_cancel_requested or options_of(activity).cancellation is not Cancellation.WAIT:
            return put
        unrequested = all_of(Compare("token", Comparison.EQUALS, token), lacks("is_cancel_requested"))
        return replace(put, condition=unrequested)

    def _transact(self, activity: Activity, writes: list[Write]) -> None:
        try:
            self._store.transact(writes)
        except OutcomeUnknownError:
            raise
        except ConflictError as exc:
            raise _stale(activity) from exc


def _stale(activity: Activity) -> StaleClaimError:
    return StaleClaimError(
        f"activity {activity.activity_id} attempt {activity.attempt}: it is no longer yours; its lease ran out, it was "
        "cancelled, or its execution has ended"
    )
