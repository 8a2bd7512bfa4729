"""A seeded world of processes that run state machines, crash, freeze and race on one store, under a clock that jumps.

People start machines, answer tokens rightly, wrongly, twice and late, stop machines, and redrive those that failed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from headgate.asl.machines.executions import ExecutionStatus, execution_id_of
from headgate.asl.runtime.task_tokens import CallbackKind, TaskCallback
from headgate.clock import VirtualClock
from headgate.durable.model.history import Status
from headgate.durable.model.records import NEVER_MS
from headgate.durable.replay import sandbox
from headgate.errors import (
    ConflictError,
    ExecutionClosedError,
    NotFoundError,
    OutcomeUnknownError,
    SignatureError,
    TransientError,
)
from tests.asl_rig import check_events
from tests.simulation.asl_processes import MACHINE, AslMachine, AslProcess, Outcome
from tests.simulation.asl_stories import BEGUN_AT, Story
from tests.simulation.durable_processes import Crash
from tests.simulation.durable_rows import Checks, check_quiet, check_received_once, check_replays

LAG_SECONDS = 2.0


class AslWorld:
    """Steps drawn from a seed, what must hold after each, and what every machine must come to in the end."""

    def __init__(self, seed: int, folder: Path, stories: Mapping[str, Story], expected: Mapping[str, Outcome]) -> None:
        self.draw = random.Random(seed)
        self.machine = AslMachine(folder, self.draw, VirtualClock(BEGUN_AT), self.draw.random() < 0.25)
        self.clock = self.machine.clock
        self.functions = self.machine.functions
        self.stories = stories
        self.expected = expected
        self.options: dict[str, Any] = {
            "live_max": 1 if self.draw.random() < 0.3 else 2_000,
            "replay_always": self.draw.random() < 0.3,
        }
        # What the client was promised, by execution; and which of them someone has wanted to stop.
        self.started: dict[str, str] = {}
        self.stopped: set[str] = set()
        self.latest = 0.0
        self.checks = Checks()
        self.log: list[str] = []
        self.processes: list[AslProcess] = []
        sandbox.install()
        for _ in range(self.draw.choice([1, 2, 2, 3])):
            self.join()
        self.machine.catch_up()
        self.outside = AslProcess(self.machine)
        for name, story in stories.items():
            if story.inner is not None:
                self.outside.executions.machines.put("inner", json.dumps(story.inner))
            self.start(name)

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
            self.finish()
        except AssertionError as exc:
            raise AssertionError(f"{exc}; after {self.log[-12:]}") from exc

    def step(self) -> None:
        choices: list[tuple[int, Callable[[], None]]] = [
            (15, lambda: self._drive(self._poll)),
            (12, lambda: self._drive(self._turn)),
            (12, lambda: self._drive(self._begin)),
            (12, lambda: self._drive(self._finish)),
            (30, lambda: self._drive(self._poll, self._turn, self._begin, self._finish, self._turn)),
            (14, self._ask),
            (14, self._pass_time),
            (6, self.machine.catch_up),
            (4, self._arm),
            (2, self._freeze),
            (5, self._interleave),
            (1, self._jump),
        ]
        weights, acts = zip(*choices, strict=True)
        self.draw.choices(acts, weights)[0]()

    def join(self) -> None:
        process = AslProcess(self.machine, **self.options)
        process.worker.join()
        self.processes.append(process)

    def _drive(self, *acts: Callable[[AslProcess], None]) -> None:
        able = [process for process in self.processes if not process.is_frozen]
        if not able:
            self.join()
            return
        process = self.draw.choice(able)
        for act in acts:
            if process in self.processes:
                self.guarded(process, act)

    def guarded(self, process: AslProcess, act: Callable[[AslProcess], None]) -> None:
        """Have a process do something, and take it away if that was its end."""
        self.log.append(act.__name__)
        try:
            act(process)
        except Crash:
            self.log.append(f"crash in {act.__name__}")
            process.bury()
            if process in self.processes:
                self.processes.remove(process)
            else:
                self.outside = AslProcess(self.machine)
        except (TransientError, OutcomeUnknownError):
            self.log.append("busy")

    def _poll(self, process: AslProcess) -> None:
        process.worker.poll()

    def _turn(self, process: AslProcess) -> None:
        process.worker.turn()

    def _begin(self, process: AslProcess) -> None:
        for _ in range(self.draw.choice([1, 1, 5])):
            if process.worker.queue:
                process.begin()

    def _finish(self, process: AslProcess) -> None:
        for _ in range(self.draw.choice([1, 1, 5])):
            if process.held:
                process.finish(self.draw.randrange(len(process.held)))

    def _arm(self) -> None:
        process = self.draw.choice([*self.processes, self.outside])
        crash = self.draw.random() < 0.6
        process.store.fail_in(self.draw.randint(1, 12), crash=crash, is_done=self.draw.random() < 0.5)
        self.log.append(f"arm {process.store.fault}")

    def _freeze(self) -> None:
        if self.processes:
            seconds = self.draw.choice([5.0, 15.0, 40.0])
            self.draw.choice(self.processes).frozen_until = self.clock.monotonic() + seconds
            self.log.append("freeze")

    def _interleave(self) -> None:
        if len(self.processes) < 2:
            return
        first, second = self.draw.sample(self.processes, 2)
        act = self.draw.choice([self._poll, self._turn, self._finish])
        at = first.store.calls + self.draw.randint(1, 6)
        first.store.meanwhile = (at, lambda: self.guarded(second, act) if second in self.processes else None)

    def _pass_time(self) -> None:
        seconds = self.draw.choice([4.0, 11.0, 30.0] if self.draw.random() < 0.2 else [0.05, 0.5, 1.0, 2.0])
        self.clock.advance(seconds)
        self.log.append(f"advance {seconds}")
        if self.clock.monotonic() >= self.machine.caught_up_at + LAG_SECONDS:
            self.machine.catch_up()

    def _jump(self) -> None:
        # Not so far that a Task of ten minutes runs out of time.
        seconds = self.draw.choice([-7_200.0, -30.0, 30.0])
        self.latest = max(self.latest, self.clock.seconds())
        self.clock.step(seconds)
        self.log.append(f"jump {seconds}")

    # What people do.

    def _ask(self) -> None:
        asks = [self._answer, self._answer, self._answer, self._start, self._start_again, self._stop, self._redrive]
        self.guarded(self.outside, self.draw.choice(asks))

    def start(self, story: str) -> None:
        name = f"{story}-{len(self.started) + 1}"
        result = self.stories[story]
        # Noted before it is answered: it may have been started all the same.
        execution_id = execution_id_of(MACHINE, name)
        self.started[execution_id] = story
        self.functions.broken |= {value for value in result.broken if not self.log}
        assert self.outside.start(result.definition, result.input, name) == execution_id

    def _start(self, process: AslProcess) -> None:
        del process
        if len(self.started) < 3 * len(self.stories):
            self.start(self.draw.choice(list(self.stories)))

    def _start_again(self, process: AslProcess) -> None:
        execution_id = self.draw.choice(list(self.started))
        self.start_again(process, execution_id)

    def start_again(self, process: AslProcess, execution_id: str) -> None:
        result = self.stories[self.started[execution_id]]
        assert process.start(result.definition, result.input, execution_id.partition(":")[2]) == execution_id

    def _answer(self, process: AslProcess) -> None:
        if not self.functions.tokens:
            return
        token = self.draw.choice(self.functions.tokens)
        if self.draw.random() < 0.2:
            with suppress(SignatureError):
                process.answer(token[:-6] + token[-6:].swapcase())
        process.answer(token, TaskCallback(CallbackKind.HEARTBEAT))
        for _ in range(self.draw.choice([1, 1, 2])):
            process.answer(token)

    def _stop(self, process: AslProcess) -> None:
        if self.draw.random() < 0.3:
            execution_id = self.draw.choice(list(self.started))
            self.stopped.add(execution_id)
            with suppress(NotFoundError, ExecutionClosedError):
                process.executions.stop(execution_id, error="Stopped", cause="simulated")

    def _redrive(self, process: AslProcess) -> None:
        self.functions.broken.clear()
        execution_id = self.draw.choice(list(self.started))
        with suppress(NotFoundError, ConflictError):
            process.executions.redrive(execution_id)

    # To the end.

    def finish(self) -> None:
        """Heal everything, let time pass, and check that every machine has come to what it must."""
        self.log.append("heal")
        self.clock.step(max(0.0, self.latest - self.clock.seconds()))
        for process in [*self.processes, self.outside]:
            process.store.fault = process.store.meanwhile = None
            process.frozen_until = 0.0
        if not self.processes:
            self.join()
        self.functions.broken.clear()
        for execution_id in self.started:
            self.start_again(self.outside, execution_id)
        self.settle()
        for execution_id in self.started:
            with suppress(ConflictError):
                self.outside.executions.redrive(execution_id)
        self.settle()
        rows = self.machine.reader.read()
        self.checks.check(rows)
        check_quiet(rows)
        check_received_once(rows)
        check_replays(rows, self.outside.app.workflows)
        assert not rows.activities, "an activity was left behind"
        assert not rows.timers, "a timer was left behind"
        for execution_id, story in self.started.items():
            self._check(execution_id, story)

    def _check(self, execution_id: str, story: str) -> None:
        found = self.outside.outcome(execution_id, self.stories[story].definition)
        events = self.outside.executions.history(execution_id)
        check_events(events)
        expected = self.expected[story]
        assert found.status is ExecutionStatus.SUCCEEDED, f"{execution_id}: {found}"
        assert found.output == expected.output, f"{execution_id}: {found}"
        is_redriven = any(event.type == "ExecutionRedriven" for event in events)
        published = self.stories[story]
        # What was redriven has the events of more than one attempt, or of fewer.
        is_open = is_redriven or published.is_racing or bool(published.broken)
        assert is_open or found == expected, f"{execution_id}: {found}"

    def settle(self, seconds: float = 1_000.0) -> None:
        """Let all processes work, and time pass, for so long."""
        until = self.clock.monotonic() + seconds
        while True:
            self._work()
            left = until - self.clock.monotonic()
            if left <= 0 or self._is_quiet():
                return
            due_ms = min((process.worker.schedule.next_due_ms for process in self.processes), default=NEVER_MS)
            wait = due_ms / 1000 - self.clock.seconds()
            self.clock.advance(min(left, max(0.05, min(wait, 3.0))))

    def _is_quiet(self) -> bool:
        rows = self.machine.reader.read()
        return all(row.status is not Status.RUNNING for row in rows.executions.values()) and not rows.mail

    def _work(self) -> None:
        unreceived = list(self.functions.tokens)
        for _ in range(500):
            self.machine.catch_up()
            moved = False
            known = set(self.functions.tokens)
            for process in self.processes:
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
            # Once: the receiver may be a worker whose lease has yet to expire.
            for token in unreceived:
                moved |= self.outside.answer(token)
            unreceived = [token for token in self.functions.tokens if token not in known]
            if not moved:
                return
        raise AssertionError("no rest: something has work to do again and again")
