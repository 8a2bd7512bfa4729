"""Child pool: assigns jobs to child processes, collects messages, and fails or reassigns jobs of dead children."""

from __future__ import annotations

import selectors
import socket
from collections import deque
from collections.abc import Sequence
from typing import Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.fanout.core.attempts import ErrorClass
from headgate.fanout.local.child_process import READY_SECONDS_MAX, Child, Death
from headgate.fanout.local.source_files import SourceFiles
from headgate.fanout.model.child_protocol import Done, Failed, Imported, Job, Progress, Ready, Unusable
from headgate.fanout.model.local_access import ANY_HANDLER, LocalAccess

# Work queued on a child: enough to keep it busy, little enough to balance the load.
AHEAD_SECONDS: Final = 0.05
AHEAD_MAX: Final = 64
EARLY_DEATHS_MAX: Final = 3
# Idle children are ended after this time, since modules that a handler imported may have changed on disk.
IDLE_SECONDS_MAX: Final = 10.0
LIMIT_OUTPUT_SECONDS: Final = 0.5
# A handler that could not be loaded is tried again after this time: a missing package may have been installed.
RETRY_SECONDS: Final = 30.0
_log = structlog.get_logger(__name__)


class Assignment(Struct, frozen=True):
    """A job with the handler, memory limit and time-out of the child it needs."""

    job: Job
    handler: str
    memory_mb: int | None
    timeout_seconds: float


class Unstarted(Struct, frozen=True):
    """A job that was not started because its handler cannot be loaded."""

    key: int


ChildMessage = Progress | Done | Failed | Unstarted


class _Retry(Struct, frozen=True):
    """When a handler that could not be loaded is tried again: when one of the files changes, or at a time."""

    files: SourceFiles
    at: float


class ChildPool:
    """Runs jobs in a bounded number of processes. For one thread; `wake` for any."""

    def __init__(self, clock: Clock, processes: int, *, access: LocalAccess = ANY_HANDLER) -> None:
        # Handlers that cannot be loaded here, with the error.
        self.unusable: dict[str, str] = {}
        self._clock = clock
        self._processes = processes
        self._access = access
        self._retries: dict[str, _Retry] = {}
        self._early_deaths: dict[str, int] = {}
        # Handlers that a child has loaded.
        self._proven: set[str] = set()
        self._children: list[Child] = []
        self._waiting: deque[Assignment] = deque()
        self._assigned: dict[int, Assignment] = {}
        self._owners: dict[int, Child] = {}
        # Mean duration of jobs by handler.
        self._means: dict[str, float] = {}
        self._limit_output_at = 0.0
        self._selector = selectors.DefaultSelector()
        self._wakeup: socket.socket | None = None
        self._waker: socket.socket | None = None

    def open(self) -> None:
        """Open the wake-up socket. A pool that was never opened needs no closing."""
        self._wakeup, self._waker = socket.socketpair()
        self._wakeup.settimeout(0)
        self._selector.register(self._wakeup, selectors.EVENT_READ)

    def wake(self) -> None:
        """Make `receive` return soon."""
        waker = self._waker
        if waker is None:
            return
        try:
            waker.send(b"\0", socket.MSG_DONTWAIT)
        except OSError:
            return

    def room(self) -> int:
        """Return how many more jobs the pool can use."""
        places = self._processes * max(map(self._ahead, self._means), default=1)
        room = places - len(self._assigned)
        # Not after every single job: claims in batches need fewer transactions.
        return room if room >= max(1, places // 4) else 0

    def room_for(self, handler: str) -> int:
        """Return how many more jobs of a handler the pool can use: one per process until it is known to be fast."""
        held = sum(1 for assignment in self._assigned.values() if assignment.handler == handler)
        if handler not in self._proven:
            # Loading may hang, and must not occupy every process.
            return 1 - held
        return self._processes * self._ahead(handler) - held

    def add(self, assignments: Sequence[Assignment]) -> None:
        """Add jobs, to run as soon as a child is free."""
        for assignment in assignments:
            self._assigned[assignment.job.key] = assignment
            self._waiting.append(assignment)
        self._assign()

    def stop(self, key: int) -> None:
        """Kill the child that runs a job. The job is reported as failed."""
        child = self._owners.get(key)
        if child is not None and child.jobs and child.jobs[0].key == key:
            child.kill(ErrorClass.CRASH, key)

    def take_back(self, *, started: bool) -> list[int]:
        """Remove jobs from the pool, those not started or all, and return their keys."""
        keys = [assignment.job.key for assignment in self._waiting] if not started else list(self._assigned)
        self._waiting.clear()
        for key in keys:
            del self._assigned[key]
            self._owners.pop(key, None)
        return keys

    def wait_seconds(self, until: float) -> float:
        """Return the seconds until the next deadline, at most until `until`."""
        now = self._clock.monotonic()
        deadlines = [self._deadline(child) for child in self._children if child.jobs]
        return max(0.0, min([until, *deadlines]) - now)

    def receive(self, wait_seconds: float) -> tuple[list[ChildMessage], bool]:
        """Return messages of the children, and whether the pool was woken."""
        messages: list[ChildMessage] = []
        woken = False
        for key, events in self._selector.select(wait_seconds):
            if key.data is None:
                assert self._wakeup is not None, "the selector watches it"
                self._wakeup.recv(4096)
                woken = True
            elif events & selectors.EVENT_READ:
                messages += self._receive_from(key.data)
            else:
                self._flush(key.data)
        now = self._clock.monotonic()
        for child in self._children:
            if child.jobs and now >= self._deadline(child):
                child.kill(ErrorClass.TIMEOUT, child.jobs[0].key)
        if now >= self._limit_output_at:
            self._limit_output_at = now + LIMIT_OUTPUT_SECONDS
            for child in self._children:
                child.limit_output()
        self._assign()
        self._retire_outdated(now)
        return messages, woken

    def close(self) -> None:
        """Kill every child."""
        for child in list(self._children):
            self._retire(child)
        self._selector.close()
        for end in (self._wakeup, self._waker):
            if end is not None:
                end.close()

    # Assigning.

    def _ahead(self, handler: str) -> int:
        mean_seconds = self._means.get(handler)
        if mean_seconds is None:
            return 1
        return max(1, min(AHEAD_MAX, int(AHEAD_SECONDS / mean_seconds)))

    def _assign(self) -> None:
        now = self._clock.monotonic()
        kinds = dict.fromkeys((assignment.handler, assignment.memory_mb) for assignment in self._waiting)
        for kind in kinds:
            # A kind without a free child does not block the others.
            self._assign_kind(kind, now)

    def _assign_kind(self, kind: tuple[str, int | None], now: float) -> None:
        waiting = deque(each for each in self._waiting if (each.handler, each.memory_mb) == kind)
        ahead = self._ahead(kind[0])
        # Each message wakes a process: one for each child, not several small ones.
        fair_share = -(-len(waiting) // self._processes)
        given: set[int] = set()
        while waiting:
            child = self._child_for(waiting[0], ahead, now)
            if child is None:
                break
            share = max(1, min(ahead - len(child.jobs), fair_share, len(waiting)))
            jobs = [waiting.popleft().job for _ in range(share)]
            for job in jobs:
                self._owners[job.key] = child
            given.update(job.key for job in jobs)
            child.give(jobs, now)
            self._watch(child)
        if given:
            self._waiting = deque(each for each in self._waiting if each.job.key not in given)

    def _child_for(self, assignment: Assignment, ahead: int, now: float) -> Child | None:
        """Return a child with capacity for this job, starting one if the limit allows."""
        self._retire_outdated(now)
        alike = [child for child in self._children if _fits(child, assignment) and self._takes_jobs(child, now)]
        idle = [child for child in alike if not child.jobs]
        if idle:
            return idle[0]
        if len(self._children) >= self._processes:
            wanted = {(each.handler, each.memory_mb) for each in self._waiting}
            idle_others = [child for child in self._children if not child.jobs and not child.is_ending]
            others = [child for child in idle_others if (child.handler, child.memory_mb) not in wanted]
            if not others:
                roomy = [child for child in alike if len(child.jobs) < ahead]
                return min(roomy, key=lambda child: len(child.jobs), default=None)
            self._retire(others[0])
        used = {child.number for child in self._children}
        number = next(number for number in range(1, self._processes + 1) if number not in used)
        child = Child(assignment.handler, number, memory_mb=assignment.memory_mb, access=self._access, now=now)
        self._children.append(child)
        self._selector.register(child.channel, selectors.EVENT_READ, child)
        return child

    def _takes_jobs(self, child: Child, now: float) -> bool:
        """Whether a child may be given jobs: it was not killed, and the code that it has loaded is the current one."""
        return not child.is_ending and not child.is_outdated(now)

    def _retire_outdated(self, now: float) -> None:
        """End idle children whose code has changed, or that were idle for too long."""
        for child in [child for child in self._children if not child.jobs and child.is_ready and not child.is_ending]:
            if child.is_outdated(now) or now - child.busy_since > IDLE_SECONDS_MAX:
                self._retire(child)

    def _retire(self, child: Child) -> None:
        child.kill(ErrorClass.CRASH)
        self._forget(child)
        child.death()

    def _flush(self, child: Child) -> None:
        try:
            child.channel.flush()
        except OSError:
            # The child is gone; reading its channel reports that.
            return
        self._watch(child)

    def _watch(self, child: Child) -> None:
        """Watch for writability while messages to a child are buffered."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.channel.is_full else 0)
        self._selector.modify(child.channel, events, child)

    # Receiving.

    def _deadline(self, child: Child) -> float:
        if not child.is_ready:
            return child.busy_since + READY_SECONDS_MAX
        return child.busy_since + self._assigned[child.jobs[0].key].timeout_seconds

    def _receive_from(self, child: Child) -> list[ChildMessage]:
        try:
            answers = child.answers()
        except EOFError:
            return self._child_died(child)
        messages: list[ChildMessage] = []
        for answer in answers:
            match answer:
                case Ready():
                    child.ready(answer, self._clock.monotonic())
                    self._early_deaths.pop(child.handler, None)
                    self._proven.add(child.handler)
                case Imported():
                    child.files.add(answer.files)
                case Unusable():
                    self._mark_unusable(child.handler, answer.message, answer.files)
                case Done() | Failed():
                    if not child.ended(answer.key, self._clock.monotonic(), memory_mb=answer.memory_mb):
                        child.disown()
                        break
                    self._learn(child.handler, answer.duration_ms / 1000 + 0.0001)
                    messages += self._finished(replace(answer, process=child.number))
                case Progress():
                    messages.append(answer)
        return messages

    def _learn(self, handler: str, seconds: float) -> None:
        mean = self._means.get(handler)
        # A slow job raises the mean at once, a fast one lowers it gradually.
        self._means[handler] = seconds if mean is None or seconds > mean else mean + 0.1 * (seconds - mean)

    def _finished(self, answer: Done | Failed) -> list[ChildMessage]:
        self._owners.pop(answer.key, None)
        return [] if self._assigned.pop(answer.key, None) is None else [answer]

    def _child_died(self, child: Child) -> list[ChildMessage]:
        """Handle the death of a child: fail its current job, and reassign the jobs it had not started."""
        self._forget(child)
        busy_since = child.busy_since
        death = child.death()
        self._count_early_death(child, death)
        if child.handler in self.unusable:
            return self._refused(child.handler, death.jobs)
        _log.warning("child process ended", error=death.error_class.value, how=death.message)
        # A child that was never ready has started no job.
        started = 1 if death.was_ready and death.is_own_fault else 0
        for job in reversed(death.jobs[started:]):
            self._owners.pop(job.key, None)
            if job.key in self._assigned:
                self._waiting.appendleft(self._assigned[job.key])
        if not death.jobs or not started:
            return []
        spent_ms = round(1000 * (self._clock.monotonic() - busy_since))
        is_lost = death.error_class is ErrorClass.LOST
        failed = Failed(
            death.jobs[0].key,
            spent_ms,
            death.error_class.value,
            death.message,
            is_lost=is_lost,
            printed=death.printed,
            memory_mb=death.memory_mb,
            process=child.number,
        )
        return self._finished(failed)

    def _count_early_death(self, child: Child, death: Death) -> None:
        """Mark a handler as unusable after several children died before they were ready."""
        if death.was_ready:
            return
        count = self._early_deaths[child.handler] = self._early_deaths.get(child.handler, 0) + 1
        if count >= EARLY_DEATHS_MAX:
            message = (
                f"handler {child.handler!r}: {count} processes in a row ended before they were ready ({death.message})"
            )
            if child.handler not in self.unusable:
                self._mark_unusable(child.handler, message, ())

    def _mark_unusable(self, handler: str, message: str, files: Sequence[str]) -> None:
        self.unusable[handler] = message
        self._retries[handler] = _Retry(SourceFiles(files), self._clock.monotonic() + RETRY_SECONDS)

    def retry_unusable(self) -> list[str]:
        """Return handlers that may be loaded again: a file has changed, or some time has passed."""
        now = self._clock.monotonic()
        due = [name for name, retry in self._retries.items() if now >= retry.at or retry.files.have_changed(now)]
        for handler in due:
            del self._retries[handler], self.unusable[handler]
            self._early_deaths.pop(handler, None)
            self._proven.discard(handler)
        return due

    def _refused(self, handler: str, jobs: Sequence[Job]) -> list[ChildMessage]:
        keys = [job.key for job in jobs]
        keys += [assignment.job.key for assignment in self._waiting if assignment.handler == handler]
        self._waiting = deque(assignment for assignment in self._waiting if assignment.handler != handler)
        messages: list[ChildMessage] = []
        for key in keys:
            self._owners.pop(key, None)
            if self._assigned.pop(key, None) is not None:
                messages.append(Unstarted(key))
        return messages

    def _forget(self, child: Child) -> None:
        self._selector.unregister(child.channel)
        self._children.remove(child)


def _fits(child: Child, assignment: Assignment) -> bool:
    return (child.handler, child.memory_mb) == (assignment.handler, assignment.memory_mb)
