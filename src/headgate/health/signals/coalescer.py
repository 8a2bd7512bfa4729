"""Coalescing: values that come in at the same time are taken over together, and refreshes of one signal once.

Whoever finds nobody at work takes over all that has queued up meanwhile, and each caller is answered once its value, or
a later one that says the same, is durable. A caller either waits in a thread of its own, which may then be the one at
work, or leaves its value and is told: a thread of ours works for those. Nothing waits for a timer, but where hundreds
come in each second that thread begins groups a few milliseconds apart: three together cost less than one by one.
Only what changes nothing is ever left out: a value that is OK after one that was, of an earlier window than another
that is queued. Of a VOLUME each window counts.
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

# A store that is away for a moment need not be noticed by those who wait.
ATTEMPTS: Final = 2
# Told what was made of a value, or what was raised.
Done: TypeAlias = Callable[[UpdateResult | None, BaseException | None], None]


class _Waiting(Struct, eq=False):
    """A caller, and what it is told in the end. `others` are refreshes that its value stands for as well."""

    update: SignalUpdate
    # Set when it is answered, or when it is its turn to lead; None for one that does not wait but is told.
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
    """Takes over values of signals, many callers' at a time. Safe to use from many threads."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._lock = threading.Lock()
        self._queue: deque[_Waiting] = deque()
        self._is_led = False
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._pace = BatchPacer()
        # Ends the wait for more: there is enough, or no more will come.
        self._hurry = threading.Event()
        # What the thread is to do; None: see whether it is to end.
        self._bell: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def update(self, update: SignalUpdate) -> UpdateResult:
        """Take over a value as `Signals.update` does, and return when it is durable. Raises what that raises."""
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
        """Have a value taken over as `update` does, without waiting; `done` is told, from another thread.

        It must neither block nor raise. Raises `InvalidPayloadError`, `InvalidIdError` and `StoreClosedError`.
        """
        if self._queue_up(_Waiting(self._signals.checked(update), done=done)):
            self._bell.put(self._lead_once)

    def close(self) -> None:
        """Take no more that is not waited for, and return once what was taken is done. Closing twice is allowed."""
        with self._lock:
            self._is_closed = True
        self._hurry.set()
        if self._thread is not None:
            self._bell.put(None)
            self._thread.join()

    def _queue_up(self, mine: _Waiting) -> bool:
        """Stand in line, and return whether nobody leads and one is to do it."""
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
        """Work off the queue until one's own value is done, and then let whoever is next lead."""
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
        """Have a thread for those who do not wait in their own, of which `close` waits for the last."""
        if self._is_closed:
            raise StoreClosedError("signals: this process is stopping; send it to another, or again in a moment")
        if self._thread is None:
            self._thread = threading.Thread(target=self._lead_when_called, name="headgate-signals", daemon=True)
            self._thread.start()

    def _lead_when_called(self) -> None:
        """Lead whenever whoever is next does not wait in a thread of its own."""
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
        """Take what can be done at once from the queue: one value for each signal; further ones stay in line."""
        taken: dict[tuple[str, str], _Waiting] = {}
        left: deque[_Waiting] = deque()
        # Of these there is one in line already, which must not be overtaken.
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
        """Whether a value says of a signal that is OK that it is OK, whatever version it is at."""
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
            except BaseException as exc:  # noqa: BLE001 - of the thread that happens to lead; those who wait must be told
                self._fail(batch, exc)
                return
            else:
                for each, result in zip(batch, results, strict=True):
                    each.answer(result, None)
                return

    def _fail(self, batch: Sequence[_Waiting], error: BaseException) -> None:
        for each in batch:
            each.answer(None, error)
