"""Check poller: claims the checks that are due, runs each once, and records its outcome.

The due index has one entry for each check. A new or changed check is planned at its own phase of the interval, so that
many checks with the same interval spread over it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

import structlog
from msgspec.structs import replace

from headgate.checks.catalog import CheckCatalog, KnownCheck
from headgate.checks.config_checks import PREFIX
from headgate.checks.metrics import CheckMetrics
from headgate.checks.model import Outcome
from headgate.checks.promised import PromisedChecks
from headgate.checks.recorder import CheckRecorder
from headgate.checks.runner import CheckRunner
from headgate.checks.state import NEVER_MS, CheckKey, CheckPlan, CheckState, CheckStates
from headgate.clock import Clock, epoch_ms
from headgate.errors import HeadgateError
from headgate.outage_log import OutageLog

THREADS: Final = 4
BATCH: Final = 64
# A new or changed check runs within this time, before it takes its place in the interval.
_FIRST_SECONDS: Final = 2.0
# Many new ones, as of a large registry, are spread: their leases would end before their turn.
_FIRST_SECONDS_EACH: Final = 0.05
_PAUSE_SECONDS: Final = 1.0
_TICK_SECONDS: Final = 1.0
# A changed config of a dataset changes its checks within this time.
_REFRESH_SECONDS: Final = 30.0
_REASON_MAX: Final = 1_000
_log = structlog.get_logger(__name__)

Submit = Callable[[Callable[[], None]], object]


class CheckPoller:
    """Runs checks that are due. `tick` belongs to one thread."""

    def __init__(  # noqa: PLR0913 - every part of a check's run is joined here
        self,
        clock: Clock,
        catalog: CheckCatalog,
        runner: CheckRunner,
        recorder: CheckRecorder,
        states: CheckStates,
        promised: PromisedChecks,
        metrics: CheckMetrics,
        *,
        name: str,
        covered: Callable[[str], Mapping[str, str]],
        on_measured: Callable[[str], None],
        is_writer: Callable[[], bool] = lambda: True,
    ) -> None:
        """`name` is this process in claims. While `is_writer` is false, another region runs the checks.

        `covered` returns the last completed run of each writer of a dataset. `on_measured` is called with the dataset
        after a check has a result for a run that it had not measured.
        """
        self._clock = clock
        self._catalog = catalog
        self._runner = runner
        self._recorder = recorder
        self._states = states
        self._promised = promised
        self._metrics = metrics
        self._name = name
        self._covered = covered
        self._on_measured = on_measured
        self._is_writer = is_writer
        self._generation = -1
        self._planned: frozenset[CheckKey] = frozenset()
        self._refresh_at = 0.0

    def tick(self, submit: Submit = lambda work: work()) -> int:
        """Claim the checks that are due, and pass each to `submit`. Returns how many were claimed."""
        if not self._is_writer():
            return 0
        if self._clock.monotonic() >= self._refresh_at:
            self._refresh_at = self._clock.monotonic() + _REFRESH_SECONDS
            self._catalog.refresh()
            self._plan_promised()
        elif self._generation != self._catalog.generation:
            # A dataset may have got a check file, or lost it.
            self._plan_promised()
        self._plan_changed()
        due = self._states.due(limit=BATCH)
        earliest_ms = min((each.indexed_at_ms for each in due), default=epoch_ms(self._clock))
        self._metrics.observe_lag(max(0, epoch_ms(self._clock) - earliest_ms) / 1000)
        return sum(self._start(state, submit) for state in due)

    def _plan_changed(self) -> None:
        generation = self._catalog.generation
        if self._generation == generation:
            return
        known = self._catalog.all()
        self._plan(known)
        present = frozenset(each.key for each in known)
        for key in sorted(self._planned - present):
            self._recorder.forget(key)
        self._planned, self._generation = present, generation

    def _plan_promised(self) -> None:
        changed = self._promised.refresh()
        self._plan(changed.present)
        for key in changed.removed:
            self._recorder.forget(key)

    def _plan(self, known: Sequence[KnownCheck]) -> None:
        states = self._states.of([each.key for each in known])
        new = [
            (each, state)
            for each in known
            if (state := states.get(each.key)) is None or state.definition != each.digest
        ]
        now_ms, span_seconds = epoch_ms(self._clock), max(_FIRST_SECONDS, _FIRST_SECONDS_EACH * len(new))
        self._states.plan(
            [
                CheckPlan(
                    key=each.key,
                    state=state,
                    definition=each.digest,
                    due_at_ms=_first_at_ms(each, now_ms, span_seconds),
                    covered=self._covered(each.file.dataset) if state is None and each.file.after_runs else {},
                )
                for each, state in new
            ]
        )

    def _find(self, key: CheckKey) -> KnownCheck | None:
        found = self._catalog.find(key) or self._promised.find(key)
        if found is None and key.check_id.startswith(PREFIX):
            # Another process may have read a change of the config first.
            self._plan_promised()
            found = self._promised.find(key)
        return found

    def _start(self, state: CheckState, submit: Submit) -> int:
        known = self._find(state.key)
        if known is None:
            self._states.forget(state)
            self._recorder.forget(state.key)
            return 0
        claimed = self._states.claim(state, self._name, float(known.file.timeout))
        if claimed is None:
            return 0
        submit(lambda: self.run(known, claimed))
        return 1

    def run(self, known: KnownCheck, claimed: CheckState) -> None:
        """Run a claimed check, record its outcome, and end the claim."""
        try:
            urn = self._recorder.registered(known.file.dataset)
            # Read first: a run that completes during the measurement is not covered by it.
            covered = dict(self._covered(urn)) if known.file.after_runs else {}
            if not self._runner.is_judged(known, urn):
                self._finish(known, claimed, replace(claimed, measured=covered), urn)
                return
            outcome = self._runner.run(known, urn)
            if not self._states.is_claimed(claimed):
                _log.warning("check result dropped: its claim was taken over", check=str(known.key))
                return
            self._recorder.record(known, urn, outcome, cause=claimed.cause)
            self._metrics.observe(known.check.kind, outcome)
            self._finish(known, claimed, replace(_with_outcome(claimed, outcome), measured=covered), urn)
        except HeadgateError as exc:
            # The lease ends, and the check runs again.
            _log.error("check result not stored", check=str(known.key), error=exc.message)

    def _finish(self, known: KnownCheck, claimed: CheckState, result: CheckState, urn: str) -> None:
        if not self._states.finish(claimed, result, next_run_ms(known, epoch_ms(self._clock))):
            _log.warning("check finished after its lease had ended", check=str(known.key))
        elif result.measured != claimed.measured:
            try:
                self._on_measured(urn)
            except HeadgateError as exc:
                # They evaluate at their interval.
                _log.warning("waiting pipelines not woken", check=str(known.key), error=exc.message)


class CheckThread:
    """Runs the poller in a thread, and its checks in a small pool. `stop` waits for checks in progress."""

    def __init__(self, poller: CheckPoller) -> None:
        self._poller = poller
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="headgate-check")
        self._running: set[Future[None]] = set()
        self._thread = threading.Thread(target=self._run, name="headgate-checks", daemon=True)

    def start(self) -> None:
        """Start polling."""
        self._thread.start()

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Stop polling, and wait for the checks in progress. What is left runs again when its lease ends."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(grace_seconds)
        self._pool.shutdown(wait=False, cancel_futures=True)
        wait(self._running, timeout=grace_seconds)

    def _submit(self, work: Callable[[], None]) -> None:
        self._running = {each for each in self._running if not each.done()}
        self._running.add(self._pool.submit(work))

    def _run(self) -> None:
        outage = OutageLog(_log, "check poller failed", pause_seconds=_PAUSE_SECONDS)
        while not self._stopping.is_set():
            try:
                claimed = self._poller.tick(self._submit)
                outage.succeeded()
            except HeadgateError as exc:
                self._stopping.wait(outage.failed(exc, action="checks.poll", code=exc.code))
                continue
            if claimed < BATCH:
                self._stopping.wait(_TICK_SECONDS)


def next_run_ms(known: KnownCheck, now_ms: int) -> int:
    """Return the first time after now at the check's own phase of its interval; `NEVER_MS` without an interval."""
    every = known.file.every
    if every is None:
        return NEVER_MS
    every_ms = round(float(every) * 1000)
    phase_ms = _phase(known, every_ms)
    return ((now_ms - phase_ms) // every_ms + 1) * every_ms + phase_ms


def _first_at_ms(known: KnownCheck, now_ms: int, span_seconds: float) -> int:
    every = known.file.every
    if every is None:
        return NEVER_MS
    return now_ms + _phase(known, round(min(span_seconds, float(every)) * 1000))


def _phase(known: KnownCheck, span_ms: int) -> int:
    return int.from_bytes(hashlib.blake2b(str(known.key).encode(), digest_size=8).digest(), "big") % span_ms


def _with_outcome(claimed: CheckState, outcome: Outcome) -> CheckState:
    return replace(
        claimed,
        last_state=outcome.state,
        last_reason=outcome.reason[:_REASON_MAX],
        last_at_ms=outcome.at_ms,
        last_value=outcome.value,
        duration_ms=outcome.duration_ms,
    )
