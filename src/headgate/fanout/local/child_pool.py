"""The child pool: which child runs what, what they say, and what becomes of jobs whose child is gone."""

from __future__ import annotations

import selectors
import socket
from collections import deque
from collections.abc import Sequence
from typing import Final

import structlog
from msgspec import Struct

from headgate.clock import Clock
from headgate.fanout.core.attempts import ErrorClass
from headgate.fanout.local.child_process import READY_SECONDS_MAX, Child, Death
from headgate.fanout.model.child_protocol import Done, Failed, Job, Progress, Ready, Unusable

# So much work a child is given at once: enough not to wait for the next, little enough to share.
AHEAD_SECONDS: Final = 0.05
AHEAD_MAX: Final = 64
STILLBORN_MAX: Final = 3
# What a handler has imported may change unseen: nobody keeps it for longer than this without work.
IDLE_SECONDS_MAX: Final = 10.0
_log = structlog.get_logger(__name__)


class Assignment(Struct, frozen=True):
    """A job, and what kind of child it needs."""

    job: Job
    handler: str
    memory_mb: int | None
    timeout_seconds: float


class Unstarted(Struct, frozen=True):
    """A job whose handler cannot be loaded here: it was not begun."""

    key: int


Heard = Progress | Done | Failed | Unstarted


class ChildPool:
    """Runs jobs in up to so many processes. For one thread; `ring` for any."""

    def __init__(self, clock: Clock, processes: int, *, trusted: Sequence[str] | None = None) -> None:
        # Handlers that cannot be loaded here, and why.
        self.unusable: dict[str, str] = {}
        self._clock = clock
        self._processes = processes
        self._trusted = trusted
        self._stillborn: dict[str, int] = {}
        # Handlers that a child has loaded.
        self._proven: set[str] = set()
        self._children: list[Child] = []
        self._waiting: deque[Assignment] = deque()
        self._assigned: dict[int, Assignment] = {}
        self._owners: dict[int, Child] = {}
        # By handler: how long its jobs take.
        self._means: dict[str, float] = {}
        self._selector = selectors.DefaultSelector()
        self._bell: socket.socket | None = None
        self._ringer: socket.socket | None = None

    def open(self) -> None:
        """Be ready to hear. Nothing is held before that, so that a pool which is never used needs no closing."""
        self._bell, self._ringer = socket.socketpair()
        self._bell.settimeout(0)
        self._selector.register(self._bell, selectors.EVENT_READ)

    def ring(self) -> None:
        """Have `hear` return soon."""
        ringer = self._ringer
        if ringer is None:
            return
        try:
            ringer.send(b"\0", socket.MSG_DONTWAIT)
        except OSError:
            return

    def room(self) -> int:
        """Return how many more jobs it is worth having."""
        places = self._processes * max(map(self._ahead, self._means), default=1)
        room = places - len(self._assigned)
        # Not for each that has ended: a few at a time make a better transaction.
        return room if room >= max(1, places // 4) else 0

    def room_for(self, handler: str) -> int:
        """Return how many more jobs of a handler it is worth having: of one not known to be quick, one a process."""
        held = sum(1 for assignment in self._assigned.values() if assignment.handler == handler)
        if handler not in self._proven:
            # It may take for ever to load, and must not have every process for that.
            return 1 - held
        return self._processes * self._ahead(handler) - held

    def add(self, assignments: Sequence[Assignment]) -> None:
        """Have jobs run as soon as there is a child for them."""
        for assignment in assignments:
            self._assigned[assignment.job.key] = assignment
            self._waiting.append(assignment)
        self._hand_out()

    def stop(self, key: int) -> None:
        """Stop a job that is no longer wanted. It will be told as having failed."""
        child = self._owners.get(key)
        if child is not None and child.jobs and child.jobs[0].key == key:
            child.kill(ErrorClass.CRASH)

    def take_back(self, *, begun: bool) -> list[int]:
        """Return the keys of jobs that are not begun, or of all, which then are no longer the pool's."""
        keys = [assignment.job.key for assignment in self._waiting] if not begun else list(self._assigned)
        self._waiting.clear()
        for key in keys:
            del self._assigned[key]
            self._owners.pop(key, None)
        return keys

    def patience(self, until: float) -> float:
        """Return for how many seconds nothing has to be done before `until`."""
        now = self._clock.monotonic()
        deadlines = [self._deadline(child) for child in self._children if child.jobs]
        return max(0.0, min([until, *deadlines]) - now)

    def hear(self, patience_seconds: float) -> tuple[list[Heard], bool]:
        """Return what the children have said, and whether the bell was rung."""
        heard: list[Heard] = []
        rung = False
        for key, events in self._selector.select(patience_seconds):
            if key.data is None:
                assert self._bell is not None, "it is what the selector tells of"
                self._bell.recv(4096)
                rung = True
            elif events & selectors.EVENT_READ:
                heard += self._hear_child(key.data)
            else:
                self._flush(key.data)
        now = self._clock.monotonic()
        for child in self._children:
            if child.jobs and now >= self._deadline(child):
                child.kill(ErrorClass.TIMEOUT)
        self._hand_out()
        self._retire_outdated(now)
        return heard, rung

    def close(self) -> None:
        """End every child."""
        for child in list(self._children):
            self._retire(child)
        self._selector.close()
        for end in (self._bell, self._ringer):
            if end is not None:
                end.close()

    # Giving.

    def _ahead(self, handler: str) -> int:
        mean_seconds = self._means.get(handler)
        if mean_seconds is None:
            return 1
        return max(1, min(AHEAD_MAX, int(AHEAD_SECONDS / mean_seconds)))

    def _hand_out(self) -> None:
        now = self._clock.monotonic()
        kinds = dict.fromkeys((assignment.handler, assignment.memory_mb) for assignment in self._waiting)
        for kind in kinds:
            # One kind that has no child now does not keep the others waiting.
            self._hand_out_kind(kind, now)

    def _hand_out_kind(self, kind: tuple[str, int | None], now: float) -> None:
        waiting = deque(each for each in self._waiting if (each.handler, each.memory_mb) == kind)
        ahead = self._ahead(kind[0])
        given: set[int] = set()
        while waiting:
            child = self._child_for(waiting[0], ahead, now)
            if child is None:
                break
            share = min(ahead - len(child.jobs), max(1, len(waiting) // self._processes))
            jobs = [waiting.popleft().job for _ in range(min(max(1, share), len(waiting)))]
            for job in jobs:
                self._owners[job.key] = child
            given.update(job.key for job in jobs)
            child.give(jobs, now)
            self._watch(child)
        if given:
            self._waiting = deque(each for each in self._waiting if each.job.key not in given)

    def _child_for(self, assignment: Assignment, ahead: int, now: float) -> Child | None:
        """Return a child with room for this, making one if there may be another."""
        self._retire_outdated(now)
        alike = [child for child in self._children if _fits(child, assignment)]
        idle = [child for child in alike if not child.jobs]
        if idle:
            return idle[0]
        if len(self._children) >= self._processes:
            wanted = {(each.handler, each.memory_mb) for each in self._waiting}
            idle_others = [child for child in self._children if not child.jobs]
            others = [child for child in idle_others if (child.handler, child.memory_mb) not in wanted]
            if not others:
                roomy = [child for child in alike if len(child.jobs) < ahead]
                return min(roomy, key=lambda child: len(child.jobs), default=None)
            self._retire(others[0])
        child = Child(assignment.handler, memory_mb=assignment.memory_mb, trusted=self._trusted, now=now)
        self._children.append(child)
        self._selector.register(child.channel, selectors.EVENT_READ, child)
        return child

    def _retire_outdated(self, now: float) -> None:
        """Let go of idle children whose handler has changed, or that have had nothing to do for long."""
        for child in [child for child in self._children if not child.jobs and child.is_ready]:
            if child.is_outdated() or now - child.busy_since > IDLE_SECONDS_MAX:
                self._retire(child)

    def _retire(self, child: Child) -> None:
        child.kill(ErrorClass.CRASH)
        self._dismiss(child)
        child.death()

    def _flush(self, child: Child) -> None:
        try:
            child.channel.flush()
        except OSError:
            # It is gone, which the other direction tells.
            return
        self._watch(child)

    def _watch(self, child: Child) -> None:
        """Be told when a child can be sent what it had no room for."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.channel.is_full else 0)
        self._selector.modify(child.channel, events, child)

    # Hearing.

    def _deadline(self, child: Child) -> float:
        if not child.is_ready:
            return child.busy_since + READY_SECONDS_MAX
        return child.busy_since + self._assigned[child.jobs[0].key].timeout_seconds

    def _hear_child(self, child: Child) -> list[Heard]:
        try:
            answers = child.answers()
        except EOFError:
            return self._bury(child)
        heard: list[Heard] = []
        for answer in answers:
            match answer:
                case Ready():
                    child.ready(answer.file, self._clock.monotonic())
                    self._stillborn.pop(child.handler, None)
                    self._proven.add(child.handler)
                case Unusable():
                    self.unusable[child.handler] = answer.message
                case Done() | Failed():
                    if not child.ended(answer.key, self._clock.monotonic()):
                        child.disown()
                        break
                    self._learn(child.handler, answer.duration_ms / 1000 + 0.0001)
                    heard += self._settled(answer)
                case Progress():
                    heard.append(answer)
        return heard

    def _learn(self, handler: str, seconds: float) -> None:
        mean = self._means.get(handler)
        # What is slow is believed at once, what is quick only by and by.
        self._means[handler] = seconds if mean is None or seconds > mean else mean + 0.1 * (seconds - mean)

    def _settled(self, answer: Done | Failed) -> list[Heard]:
        self._owners.pop(answer.key, None)
        return [] if self._assigned.pop(answer.key, None) is None else [answer]

    def _bury(self, child: Child) -> list[Heard]:
        """A child is gone: what it was doing has failed, and what it had not begun goes to another."""
        self._dismiss(child)
        busy_since = child.busy_since
        death = child.death()
        self._note_stillborn(child, death)
        if child.handler in self.unusable:
            return self._refused(child.handler, death.jobs)
        _log.warning("a child process is gone", error=death.error_class.value, how=death.message)
        # One that never was ready has begun nothing.
        begun = 1 if death.was_ready else 0
        for job in reversed(death.jobs[begun:]):
            self._owners.pop(job.key, None)
            if job.key in self._assigned:
                self._waiting.appendleft(self._assigned[job.key])
        if not death.jobs or not death.was_ready:
            return []
        spent_ms = round(1000 * (self._clock.monotonic() - busy_since))
        return self._settled(Failed(death.jobs[0].key, spent_ms, death.error_class.value, death.message))

    def _note_stillborn(self, child: Child, death: Death) -> None:
        """A handler whose process never gets ready is of no use, whatever it says."""
        if death.was_ready:
            return
        count = self._stillborn[child.handler] = self._stillborn.get(child.handler, 0) + 1
        if count >= STILLBORN_MAX:
            said = (
                f"handler {child.handler!r}: {count} processes in a row ended before they were ready ({death.message})"
            )
            self.unusable.setdefault(child.handler, said)

    def _refused(self, handler: str, jobs: Sequence[Job]) -> list[Heard]:
        keys = [job.key for job in jobs]
        keys += [assignment.job.key for assignment in self._waiting if assignment.handler == handler]
        self._waiting = deque(assignment for assignment in self._waiting if assignment.handler != handler)
        heard: list[Heard] = []
        for key in keys:
            self._owners.pop(key, None)
            if self._assigned.pop(key, None) is not None:
                heard.append(Unstarted(key))
        return heard

    def _dismiss(self, child: Child) -> None:
        self._selector.unregister(child.channel)
        self._children.remove(child)


def _fits(child: Child, assignment: Assignment) -> bool:
    return (child.handler, child.memory_mb) == (assignment.handler, assignment.memory_mb)
