"""A seeded world of worker processes that crash, freeze and race on one store, under a clock that jumps.

Order, faults, ids and jitter are drawn from the seed, so that a seed that fails once fails always.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import Raw

import headgate as hg
from headgate.clock import VirtualClock
from headgate.durable.model.history import Signal
from headgate.durable.model.records import NEVER_MS, Execution, activity_id
from headgate.durable.replay import sandbox
from headgate.errors import ConflictError, NotFoundError, OutcomeUnknownError, TransientError
from tests.simulation.durable_app import FAN_WIDTH, Attempt
from tests.simulation.durable_processes import Crash, Machine, Process
from tests.simulation.durable_rows import (
    Checks,
    Rows,
    check_quiet,
    check_received_once,
    check_replays,
    ended_activities,
)

# An index may be behind, but not for as long as a lease.
LAG_SECONDS = 2.0


@dataclass
class Acknowledged:
    """What a client was promised: the call returned. What crashed in between may have happened or not."""

    started: dict[str, str] = field(default_factory=dict)
    signals: dict[str, set[str]] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)
    ended: dict[str, str] = field(default_factory=dict)
    events: set[str] = field(default_factory=set)
    orders: set[str] = field(default_factory=set)


INPUTS: Mapping[str, Sequence[Any]] = {
    "serial": [4],
    "failing": [5],
    "fan": [FAN_WIDTH],
    "limited": [5],
    "outside": [3],
    "emitter": [2],
    "clockwork": [4],
    "collector": [],
    "loop": [4, []],
    "brittle": [10],
    "family": [3],
    "claimant": ["wanted"],
    "messenger": ["collector-0", 2],
}


class World:
    """Steps drawn from a seed, and what must hold after each."""

    def __init__(self, seed: int, folder: Path, *, faults: bool = True, jumps: bool = True, lags: bool | None = None):  # noqa: ANN204
        self.draw = random.Random(seed)
        lagging = self.draw.random() < 0.25 if lags is None else lags
        self.machine = Machine(folder, self.draw, VirtualClock(1_750_000_000.0), lagging)
        self.clock = self.machine.clock
        self.journal = self.machine.journal
        self.journal.performing = self._check_performing
        self.live_max = 1 if self.draw.random() < 0.3 else 2_000
        self.replay_always = self.draw.random() < 0.2
        self.faults = faults
        self.jumps = jumps
        self.acknowledged = Acknowledged()
        self.checks = Checks()
        self.latest = 0.0
        self.log: list[str] = []
        self.processes: list[Process] = []
        self.count = 0
        self.violations: list[str] = []
        self._performed: set[tuple[str, str]] = set()
        sandbox.install()
        for _ in range(self.draw.choice([1, 2, 2, 3])):
            self.join()
        # Others notice a new subscription within seconds; what is emitted before that is none of its business.
        self.machine.catch_up()
        self.outside = Process(self.machine)
        for workflow in self.draw.sample(list(INPUTS), 6):
            self.start(self.outside, workflow, f"{workflow}-0")

    def close(self) -> None:
        for process in [*self.processes, self.outside]:
            process.bury()
        self.machine.close()

    # Steps.

    def run(self, steps: int) -> None:
        """Take that many steps, checking after each; then let everything come to its end, and check that."""
        try:
            for _ in range(steps):
                self.step()
                self.checks.check(self.machine.reader.read())
                assert not self.violations, self.violations
            self.finish()
            assert not self.violations, self.violations
        except AssertionError as exc:
            raise AssertionError(f"{exc}; after {self.log[-12:]}") from exc

    def step(self) -> None:
        choices: list[tuple[int, Callable[[], None]]] = [
            (15, lambda: self._drive(self._poll)),
            (15, lambda: self._drive(self._turn)),
            (15, lambda: self._drive(self._begin)),
            (15, lambda: self._drive(self._finish)),
            (40, lambda: self._drive(self._poll, self._turn, self._begin, self._finish, self._turn)),
            (18, self._ask),
            (12, self._pass_time),
            (6, self.machine.catch_up),
        ]
        if self.faults:
            choices += [(4, self._arm), (3, self._freeze), (6, self._interleave)]
        if self.jumps:
            choices += [(1, self._jump)]
        weights, acts = zip(*choices, strict=True)
        self.draw.choices(acts, weights)[0]()

    def join(self) -> None:
        process = Process(self.machine, live_max=self.live_max, replay_always=self.replay_always)
        process.worker.join()
        self.processes.append(process)
        self.log.append(f"join {process.worker.worker_id}")

    def _drive(self, *acts: Callable[[Process], None]) -> None:
        able = [process for process in self.processes if not process.is_frozen]
        if not able or (len(self.processes) < 3 and self.draw.random() < 0.01):
            self.join()
            return
        process = self.draw.choice(able)
        for act in acts:
            if process in self.processes:
                self.guarded(process, act)

    def guarded(self, process: Process, act: Callable[[Process], None]) -> None:
        """Have a process do something, and take it away if that was its end."""
        self.log.append(f"{act.__name__} {self._name(process)}")
        try:
            act(process)
        except Crash:
            self.log.append(f"crash {self._name(process)} in {act.__name__}")
            process.bury()
            if process in self.processes:
                self.processes.remove(process)
            else:
                self.outside = Process(self.machine)
        except (TransientError, OutcomeUnknownError):
            self.log.append("busy")

    def _name(self, process: Process) -> str:
        return process.worker.worker_id[-6:] or "client"

    def _poll(self, process: Process) -> None:
        process.worker.poll()

    def _turn(self, process: Process) -> None:
        process.worker.turn()

    def _begin(self, process: Process) -> None:
        for _ in range(self.draw.choice([1, 1, 5, 50])):
            if process.worker.queue:
                process.begin()

    def _finish(self, process: Process) -> None:
        for _ in range(self.draw.choice([1, 1, 5, 50])):
            if process.held:
                process.finish(self.draw.randrange(len(process.held)))

    def _arm(self) -> None:
        process = self.draw.choice([*self.processes, self.outside])
        crash = self.draw.random() < 0.6
        process.store.fail_in(self.draw.randint(1, 12), crash=crash, is_done=self.draw.random() < 0.5)
        self.log.append(f"arm {self._name(process)} {process.store.fault}")

    def _freeze(self) -> None:
        process = self.draw.choice(self.processes) if self.processes else None
        if process is not None:
            process.frozen_until = self.clock.monotonic() + self.draw.choice([5.0, 15.0, 40.0])
            self.log.append(f"freeze {self._name(process)}")

    def _interleave(self) -> None:
        """Have another process act in the middle of what one does."""
        if len(self.processes) < 2:
            return
        first, second = self.draw.sample(self.processes, 2)
        act = self.draw.choice([self._poll, self._turn, self._finish])
        at = first.store.calls + self.draw.randint(1, 6)
        first.store.meanwhile = (at, lambda: self.guarded(second, act) if second in self.processes else None)
        self.log.append(f"interleave {self._name(first)} with {act.__name__} of {self._name(second)}")

    def _pass_time(self) -> None:
        seconds = self.draw.choice([4.0, 11.0, 30.0, 700.0] if self.draw.random() < 0.2 else [0.05, 0.5, 1.0, 2.0])
        self.clock.advance(seconds)
        self.log.append(f"advance {seconds}")
        if self.clock.monotonic() >= self.machine.caught_up_at + LAG_SECONDS:
            self.machine.catch_up()

    def _jump(self) -> None:
        seconds = self.draw.choice([-7200.0, -30.0, 30.0, 7200.0])
        self.latest = max(self.latest, self.clock.seconds())
        self.clock.step(seconds)
        self.log.append(f"jump {seconds}")

    # What clients do.

    def _ask(self) -> None:
        asks = [self._start, self._start, self._start_again, self._signal, self._signal, self._end, self._emit]
        asks += [self._complete, self._complete, self._query, self._start_anew, self._reset]
        self.guarded(self.outside, self.draw.choice(asks))

    def _start(self, process: Process) -> None:
        workflow = self.draw.choice([name for name in INPUTS if name != "fan" or self.count % 7 == 0])
        self.count += 1
        self.start(process, workflow, f"{workflow}-{self.count}")

    def start(self, process: Process, workflow: str, execution_id: str) -> None:
        given = list(INPUTS[workflow])
        self.acknowledged.doubtful.add(execution_id)
        process.app.workflows[workflow].start(*given, id=execution_id)
        self.acknowledged.started[execution_id] = workflow

    def _start_again(self, process: Process) -> None:
        if self.acknowledged.started:
            execution_id, workflow = self.draw.choice(list(self.acknowledged.started.items()))
            assert not process.app.workflows[workflow].start(*INPUTS[workflow], id=execution_id).was_started

    def _start_anew(self, process: Process) -> None:
        """Use the id of something that has ended once more."""
        names = [e for e, w in self.acknowledged.started.items() if w in ("serial", "clockwork", "failing", "limited")]
        if names:
            execution_id = self.draw.choice(names)
            workflow = self.acknowledged.started[execution_id]
            process.app.workflows[workflow].start(*INPUTS[workflow], id=execution_id, reuse="closed")

    def _reset(self, process: Process) -> None:
        """Compute something again from one of its turns; only a messenger would have another effect."""
        names = [e for e, w in self.acknowledged.started.items() if w != "messenger"]
        if names:
            target = self.draw.choice(names)
            with suppress(NotFoundError, ConflictError):
                row = process.client.get(target)
                process.client.reset(target, self.draw.randint(1, max(1, row.turn)))

    def _signal(self, process: Process) -> None:
        waiting = [e for e, w in self.acknowledged.started.items() if w in ("collector", "loop")]
        if not waiting:
            return
        target = self.draw.choice(waiting)
        self.count += 1
        known = sorted(s for s in self.acknowledged.signals.get(target, ()) if s.startswith("id-"))
        if known and self.draw.random() < 0.3:
            value = self.draw.choice(known)
        else:
            value = f"{self.draw.choice(['id', 'no'])}-{self.count}"
        self.signal(process, target, value)

    def signal(self, process: Process, target: str, value: str) -> None:
        name = "item" if self.acknowledged.started[target] == "collector" else "tick"
        self.acknowledged.doubtful.add(value)
        with suppress(NotFoundError, ConflictError):
            handle = process.app.workflows["serial"].handle(target)
            handle.signal(name, value, id=value if value.startswith("id-") else None)
            self.acknowledged.signals.setdefault(target, set()).add(value)

    def _end(self, process: Process) -> None:
        """Cancel or terminate something; mostly not, or little would ever come to its end."""
        names = [e for e, w in self.acknowledged.started.items() if w not in ("collector", "brittle")]
        if not names or self.draw.random() < 0.5:
            return
        target, how = self.draw.choice(names), self.draw.choice(["cancel", "terminate"])
        handle = process.app.workflows["serial"].handle(target)
        self.acknowledged.ended[target] = how
        with suppress(NotFoundError, ConflictError):
            getattr(handle, how)("simulated")

    def _emit(self, process: Process) -> None:
        self.count += 1
        key, kind = f"emitted-{self.count}", self.draw.choice(["thing.made", "order.made"])
        process.app.emit(kind, {"key": key}, id=key if self.draw.random() < 0.5 else "")
        self.acknowledged.events.add(key)
        if kind == "order.made":
            self.acknowledged.orders.add(key)

    def _complete(self, process: Process) -> None:
        if self.journal.tokens:
            self.complete(process, self.draw.choice(self.journal.tokens[-6:]))

    def complete(self, process: Process, token: str) -> None:
        with suppress(NotFoundError, ConflictError):
            process.client.complete_activity(token, Raw(b"77"))

    def _query(self, process: Process) -> None:
        collectors = [e for e, w in self.acknowledged.started.items() if w == "collector"]
        if collectors:
            handle = process.app.workflows["serial"].handle(self.draw.choice(collectors))
            with suppress(NotFoundError):
                row = handle.describe()
                # A query of a run without a turn waits for it, and time stands still here.
                if row.turn >= row.first_turn:
                    assert handle.query("count") >= 0

    # To the end.

    def finish(self) -> None:
        """Heal everything, let time pass, and check that all that was promised has come true."""
        self.log.append("heal")
        # A clock that was set back catches up in the end; until then what is due is not due.
        self.clock.step(max(0.0, self.latest - self.clock.seconds()))
        for process in [*self.processes, self.outside]:
            process.store.fault = process.store.meanwhile = None
            process.frozen_until = 0.0
        if not self.processes:
            self.join()
        for name in ("collector-0", "brittle-0", "loop-0"):
            if name not in self.acknowledged.started:
                self.start(self.outside, name.split("-")[0], name)
        self.settle()
        self._break_and_repair()
        for target, workflow in self.acknowledged.started.items():
            self._say_last_words(target, workflow)
        self.settle()
        rows = self.machine.reader.read()
        self.checks.check(rows)
        check_quiet(rows)
        check_received_once(rows)
        check_replays(rows, self.outside.app.workflows)
        self._check_attempts(rows)
        self._check_results(rows)

    def _break_and_repair(self) -> None:
        """Deploy code that does not fit the histories of one workflow, see it stuck beside the healthy, repair it."""
        victims = [e for e, w in self.acknowledged.started.items() if w == "brittle"]
        open_victims = [e for e in victims if not self._row(e).status.is_closed]
        self.journal.broken = True
        for process in self.processes:
            process.worker.engine.drop()
        for name in open_victims:
            self.outside.client.signal(name, "go")
        self.count += 1
        self.start(self.outside, "serial", f"serial-{self.count}")
        self.settle(900.0)
        assert self._row(f"serial-{self.count}").result == "4", "the healthy one waits for the stuck"
        for name in open_victims:
            row = self._row(name)
            assert row.status is hg.Status.STUCK, f"{name}: {row.status} with {row.failures} failures: {row.failure}"
        self.journal.broken = False
        for name in open_victims:
            self.outside.client.redrive(name)
        self.settle(900.0)

    def _say_last_words(self, target: str, workflow: str) -> None:
        if self._row(target).status.is_closed:
            return
        if workflow == "collector":
            count = len(self.acknowledged.signals.get(target, ()))
            self.outside.client.signal(target, "done", Raw(str(count).encode()))
        elif workflow == "loop":
            for number in range(4):
                self.signal(self.outside, target, f"no-last-{number}")

    def settle(self, seconds: float = 8_000.0) -> None:
        """Let all processes work, and time pass, for so long."""
        until = self.clock.monotonic() + seconds
        while True:
            self._work()
            left = until - self.clock.monotonic()
            if left <= 0:
                return
            due_ms = min((process.worker.schedule.next_due_ms for process in self.processes), default=NEVER_MS)
            wait = due_ms / 1000 - self.clock.seconds()
            # Short enough for a lease, unless nothing at all is under way.
            self.clock.advance(min(left, max(0.05, min(wait, 3.0 if wait < seconds else 600.0))))

    def _work(self) -> None:
        for _ in range(2_000):
            moved = False
            self.machine.catch_up()
            for process in list(self.processes):
                process.worker.poll()
                moved |= process.worker.engine.has_work or bool(process.worker.queue) or bool(process.held)
                for _ in range(200):
                    if not process.worker.engine.has_work:
                        break
                    process.worker.turn()
                while process.worker.queue:
                    process.begin()
                while process.held:
                    process.finish()
            for token in self.journal.tokens:
                self.complete(self.outside, token)
            self.journal.tokens.clear()
            if not moved:
                return
        raise AssertionError("no rest: something has work to do again and again")

    def _row(self, execution_id: str) -> Execution:
        return self.outside.client.get(execution_id)

    # What must hold of what was done.

    def _check_performing(self, attempt: Attempt) -> None:
        # Noted and not raised: an error in an activity would only be tried again.
        claim = (attempt.activity_id, attempt.token)
        if claim in self._performed:
            self.violations.append(f"{attempt}: this very claim was performed before")
        self._performed.add(claim)
        execution_id, _, rest = attempt.activity_id.partition("#")
        if "#" in rest:
            run, seq = map(int, rest.split("#"))
            turns = self.machine.reader.read().turns.get(execution_id, [])
            if (run, seq) in ended_activities(turns):
                self.violations.append(f"{attempt}: performed again after its end")

    def _check_attempts(self, rows: Rows) -> None:
        for execution_id, turns in rows.turns.items():
            for (run, seq), ended in ended_activities(turns).items():
                name = activity_id(execution_id, run, seq)
                performed = sum(attempt.activity_id == name for attempt in self.journal.attempts)
                assert performed <= ended.attempts, f"{name}: performed {performed} times, {ended.attempts} are known"

    def _check_results(self, rows: Rows) -> None:
        for execution_id, workflow in self.acknowledged.started.items():
            row = rows.executions[execution_id]
            assert row.status.is_closed, (
                f"{execution_id}: still {row.status}, turn {row.turn}, mail {rows.mail.get(execution_id)}"
            )
            if execution_id in self.acknowledged.ended and row.status in (hg.Status.CANCELLED, hg.Status.TERMINATED):
                continue
            assert row.status is hg.Status.SUCCEEDED, f"{execution_id}: {row.status} {row.error}"
            check_result(workflow, json.loads(row.result or "null"), execution_id)
            if workflow == "family":
                _check_children(rows, execution_id)
        self._check_signals(rows)
        for key in self.acknowledged.events:
            assert self.journal.delivered.get(key, 0) >= 1, f"event {key}: accepted, and never delivered"
        for key in self.acknowledged.orders:
            order = rows.executions[f"order-{key}"]
            assert order.result == "2", f"{order.execution_id}: {order.status} {order.error}"

    def _check_signals(self, rows: Rows) -> None:
        for target, sent in self.acknowledged.signals.items():
            events = [e.payload for t in rows.turns[target] for e in t.events if isinstance(e, Signal)]
            texts = [bytes(value).decode().strip('"') for value in events]
            unreceived = sent - set(texts)
            is_strict = self.acknowledged.started[target] == "collector"
            assert not (unreceived and is_strict), f"{target}: signals accepted and not received: {unreceived}"
            twice = {text for text in texts if texts.count(text) > 1}
            assert not twice, f"{target}: received more than once: {twice}"


def check_result(workflow: str, result: Any, execution_id: str) -> None:
    """Compare with what can be said beforehand."""
    expected: dict[str, Callable[[Any], bool]] = {
        "serial": lambda r: r == 4,
        "failing": lambda r: r[0] == 6 and r[1] >= 3,
        "fan": lambda r: r == sum(range(1, FAN_WIDTH + 1)),
        "limited": lambda r: r == 2 * sum(range(1, 6)),
        "outside": lambda r: r in ([77, 77], "late"),
        "emitter": lambda r: r == 2,
        "clockwork": lambda r: r == 22,
        "collector": lambda r: len(r) == len(set(r)),
        "loop": lambda r: len(r) == 4 and len(set(r)) == 4,
        "brittle": lambda r: r == 23,
        "family": lambda r: r == 3,
        "claimant": lambda r: r in ("woke", "taken"),
        "messenger": lambda r: 0 <= r <= 2,
    }
    assert expected[workflow](result), f"{execution_id}: {result}"


def _check_children(rows: Rows, execution_id: str) -> None:
    ends = {"terminate": hg.Status.TERMINATED, "cancel": hg.Status.CANCELLED, "abandon": hg.Status.SUCCEEDED}
    for policy, status in ends.items():
        child = rows.executions[f"{execution_id}.{policy}"]
        assert child.status in (status, hg.Status.SUCCEEDED), f"{child.execution_id}: {child.status}"
