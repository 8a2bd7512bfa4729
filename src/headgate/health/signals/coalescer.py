"""Signal coalescer: group commit for signal updates.

Updates that arrive while a write is in progress are written together by the next leader. A caller of `update` waits in
its own thread and may become the leader; updates of `submit` are led by a thread of the coalescer, which calls back.
There is no timer, except that this thread starts groups a few milliseconds apart under load: three updates in one
transaction cost less than three transactions. A caller returns once its update, or a later one that supersedes it, is
durable. Only refreshes are superseded: OK after OK with an earlier window than a queued one. VOLUME updates never are.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from time import monotonic
from typing import Final, TypeAlias

from msgspec import Struct

from headgate.batch_pacer import FULL_BATCH, BatchPacer
from headgate.errors import StoreClosedError, TransientError
from headgate.health.model.enums import VOLUME, SignalState
from headgate.health.model.signals import ANY_VERSION, SignalUpdate, UpdateResult
from headgate.health.signals.writer import BATCH_MAX, Signals

# Retries hide a short outage of the store from callers.
ATTEMPTS: Final = 2
# Receives the result of an update, or the exception.
Done: TypeAlias = Callable[[UpdateResult | None, BaseException | None], None]


class _Waiting(Struct, eq=False):
    """A queued caller and its result. `others` are refreshes that this update supersedes."""

    update: SignalUpdate
    # Set when it has a result or becomes the leader; None for a submitted update.
    woken: threading.Event | None = None
    done: Done | None = None
    others: list[_Waiting] = []
    result: UpdateResult | None = None
    error: BaseException | None = None

    @property
    def is_answered(self) -> bool:
        return self.result is not None or self.error is not None

    def answer(self, result: UpdateResult | None, error: BaseException | None) -> None:
        self.result, self.error = result, error
        if self.woken is not None:
            self.woken.set()
        elif self.done is not None:
            self.done(result, error)
        for other in self.others:
            other.answer(result, error)


class Coalescer:
    """Applies signal updates of many callers in groups. Safe to use from many threads."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._lock = threading.Lock()
        self._queue: deque[_Waiting] = deque()
        self._is_led = False
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._pace = BatchPacer()
        # Ends the pause before a group: it is large enough, or the coalescer closes.
        self._hurry = threading.Event()
        # Calls for the thread; None: check whether to end.
        self._bell: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def update(self, update: SignalUpdate) -> UpdateResult:
        """Apply an update as `Signals.update` does, and return when it is durable. Raises what that raises."""
        woken = threading.Event()
        mine = _Waiting(self._signals.checked(update), woken)
        if not self._queue_up(mine):
            woken.wait()
        if not mine.is_answered:
            self._lead(mine)
        if mine.error is not None:
            raise mine.error
        assert mine.result is not None
        return mine.result

    def submit(self, update: SignalUpdate, done: Done) -> None:
        """Apply an update as `update` does, without waiting; `done` is called from another thread.

        It must neither block nor raise. Raises `InvalidPayloadError`, `InvalidIdError` and `StoreClosedError`.
        """
        if self._queue_up(_Waiting(self._signals.checked(update), done=done)):
            self._bell.put(self._lead_once)

    def close(self) -> None:
        """Reject further submits, and return once the submitted updates are done. Closing twice is allowed."""
        with self._lock:
            self._is_closed = True
        self._hurry.set()
        if self._thread is not None:
            self._bell.put(None)
            self._thread.join()

    def _queue_up(self, mine: _Waiting) -> bool:
        """Append to the queue, and return whether a new leader is needed."""
        with self._lock:
            if mine.woken is None:
                self._start()
            self._queue.append(mine)
            if len(self._queue) >= FULL_BATCH:
                self._hurry.set()
            leads = not self._is_led
            self._is_led = True
        return leads

    def _lead(self, mine: _Waiting) -> None:
        """Write groups until one's own update is done, then pass leadership on."""
        while not mine.is_answered:
            self._work()
        self._pass_on()

    def _work(self) -> int:
        with self._lock:
            batch = self._taken()
        self._apply(batch)
        return len(batch)

    def _pass_on(self) -> None:
        with self._lock:
            heir = self._queue[0] if self._queue else None
            self._is_led = heir is not None
        if heir is None:
            if self._is_closed:
                self._bell.put(None)
        elif heir.woken is not None:
            heir.woken.set()
        else:
            self._bell.put(self._lead_once)

    def _start(self) -> None:
        """Start the thread for submitted updates. `close` waits for the last of them."""
        if self._is_closed:
            raise StoreClosedError("signals: this process is stopping; retry against another process")
        if self._thread is None:
            self._thread = threading.Thread(target=self._lead_when_called, name="headgate-signals", daemon=True)
            self._thread.start()

    def _lead_when_called(self) -> None:
        """Lead groups whose first update was submitted."""
        while self._is_led or not self._is_closed:
            call = self._bell.get()
            if call is not None:
                call()

    def _lead_once(self) -> None:
        now = monotonic()
        with self._lock:
            pause_seconds = self._pace.pause_seconds(now, len(self._queue))
            if not self._is_closed:
                self._hurry.clear()
        if pause_seconds > 0:
            self._hurry.wait(pause_seconds)
            now = monotonic()
        self._pace.on_batch_started(now, self._work())
        self._pass_on()

    def _taken(self) -> list[_Waiting]:
        """Take the next group from the queue: one update per signal; further ones stay queued in order."""
        taken: dict[tuple[str, str], _Waiting] = {}
        left: deque[_Waiting] = deque()
        # Signals with an update left in the queue, which later ones must not overtake.
        queued: set[tuple[str, str]] = set()
        while self._queue and len(taken) < BATCH_MAX:
            each = self._queue.popleft()
            key = (each.update.dataset_urn, each.update.signal_type)
            earlier = taken.get(key)
            if earlier is None:
                taken[key] = each
            elif key not in queued and self._is_refresh(earlier.update) and self._is_refresh(each.update):
                first, later = sorted((earlier, each), key=lambda one: one.update.value.window_end)
                later.others.append(first)
                taken[key] = later
            else:
                queued.add(key)
                left.append(each)
        left.extend(self._queue)
        self._queue = left
        return list(taken.values())

    def _is_refresh(self, update: SignalUpdate) -> bool:
        """Whether an update repeats OK for an OK signal, without a version check."""
        if update.value.state is not SignalState.OK or update.expected_version != ANY_VERSION:
            return False
        if update.signal_type == VOLUME:
            return False
        known = self._signals.remembered(update.dataset_urn, update.signal_type)
        return known is not None and known.state is SignalState.OK

    def _apply(self, batch: Sequence[_Waiting]) -> None:
        for attempt in range(ATTEMPTS):
            try:
                results = self._signals.apply_updates([each.update for each in batch])
            except TransientError as exc:
                if attempt + 1 == ATTEMPTS:
                    self._fail(batch, exc)
            except BaseException as exc:  # noqa: BLE001 - the waiting callers must get it, whichever thread leads
                self._fail(batch, exc)
                return
            else:
                for each, result in zip(batch, results, strict=True):
                    each.answer(result, None)
                return

    def _fail(self, batch: Sequence[_Waiting], error: BaseException) -> None:
        for each in batch:
            each.answer(None, error)
