"""A seeded world of pipelines: processes that crash at any call, a stream that repeats itself, a clock that jumps."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from msgspec.structs import replace

from headgate.clock import VirtualClock
from headgate.durable.model.duration import Seconds
from headgate.durable.model.records import NEVER_MS
from headgate.durable.replay import sandbox
from headgate.errors import ConflictError, NotFoundError, OutcomeUnknownError, TransientError
from headgate.pipelines.definition.model import (
    Budgets,
    Monitoring,
    Period,
    Pipeline,
    PostRun,
    Readiness,
    RetryPolicy,
    Rule,
    Schedule,
    Trait,
    TriggerSpec,
    Upstream,
)
from headgate.pipelines.enums import FailureCategory, JobState, RerunReason, RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.events.outbox import StoredPipelineEvent
from headgate.pipelines.lifecycle.scheduler import CronScheduler, ScheduledPipeline
from headgate.pipelines.row_codec import struct_of
from headgate.pipelines.runs.controls import Controls
from headgate.pipelines.runs.locks import Locks, evaluation_key, lifetime_seconds
from headgate.pipelines.runs.rerun_rows import RerunStatus, request_key
from headgate.pipelines.runs.rows import Run, Slot, run_of
from headgate.pipelines.runs.store import Runs
from headgate.pipelines.schedule.timetables import timetables
from headgate.pipelines.service import PipelineService
from headgate.pipelines.traits.traits import TraitPush
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.requests import Query, Range, Sort
from headgate.triggers.contract import PollResult, Started, TriggerFailedError, TriggerOrder
from tests.pipeline_rig import LANDED, Jobs, pipeline
from tests.simulation.asl_processes import AslMachine, AslProcess
from tests.simulation.durable_processes import Crash, SeededIds

# Shortly before a midnight that ends more than a day, or on which the clocks of Berlin change.
STARTS: Final = (
    "2026-12-31T22:50:00+00:00",
    "2028-02-28T22:50:00+00:00",
    "2026-03-28T23:50:00+00:00",
    "2026-10-24T23:50:00+00:00",
    "2026-06-15T12:00:00+00:00",
)
QUICK: Final = TriggerSpec(type="command", config={}, check_interval=Seconds(30), poll_window=Seconds(600))
RETRY: Final = RetryPolicy(attempts=2, backoff=Seconds(30))
WINDOW: Final[dict[str, Any]] = {"window": Seconds(600), "interval": Seconds(120)}
WATCH: Final = PostRun(
    rules=(Rule(key="orders"),),
    drift_field="count",
    monitoring=Monitoring(enabled=True, duration=Seconds(300), interval=Seconds(60)),
)
SHARED: Final[dict[str, Any]] = {
    "trigger": QUICK,
    "retry": RETRY,
    "budgets": Budgets(manual=2, drift=1),
    "timezone": "Europe/Berlin",
}
DRY: Final = "dry"
LOOK_SECONDS: Final = 40.0
# The event of a refusal that no run follows.
REFUSALS: Final = (EventName.PIPELINE_EXCLUDED, EventName.INFRA_FAILURE, EventName.RERUN_REJECTED)


def pipelines() -> list[Pipeline]:
    """Return one of each kind: by a sensor and rules, by the clock, after another, watched, and dry."""
    orders = Readiness(rules=(Rule(key="orders"),), **WINDOW)
    fresh = Readiness(traits={"fresh": Trait(evaluator="push", required=False)}, **WINDOW)
    return [
        pipeline("bronze", readiness=orders, **SHARED),
        pipeline("hourly", schedules=(Schedule(cron="5 * * * *"),), period=Period.HOURLY, **SHARED),
        pipeline("gold", schedules=(Schedule(upstream=(Upstream(pipeline="bronze"),)),), **SHARED),
        pipeline("watched", schedules=(LANDED,), readiness=fresh, post_run=WATCH, **SHARED),
        pipeline(DRY, dry_run=True, readiness=Readiness(**WINDOW), **SHARED),
    ]


class StrictJobs(Jobs):
    """Jobs that know of their run: one may be started only for a run that is to start it."""

    def __init__(self, find: Callable[[str], Run | None]) -> None:
        super().__init__()
        self.violations: list[str] = []
        self._find = find

    def start(self, order: TriggerOrder) -> Started:
        run = self._find(order.run_id)
        if run is None or run.status is not RunStatus.TRIGGERING:
            self.violations.append(f"{order.key} was started, its run is {run and run.status}")
        if order.key != order.run_id:
            self.violations.append(f"{order.key} is not the id of its run")
        if order.pipeline == DRY:
            self.violations.append(f"{order.key} is a dry run, and was started")
        return super().start(order)


@dataclass
class PipelineMachine(AslMachine):
    """What outlives processes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        ids = SeededIds(self.clock, random.Random(1))
        self.runs = Runs(self.store, self.clock, ids)
        self.locks = Locks(self.store, self.clock, ids)
        self.controls = Controls(self.store, self.clock)
        self.jobs = StrictJobs(self.runs.find)


class PipelineProcess(AslProcess):
    """A server: an engine, pipelines, router, clockwork and lookout, on a store at any call to which it may die."""

    def __init__(self, machine: PipelineMachine, **options: Any) -> None:
        super().__init__(machine, **options)
        asl: Any = SimpleNamespace(app=self.app, executions=self.executions, machines=self.executions.machines)
        ids = SeededIds(machine.clock, random.Random(machine.draw.getrandbits(64)))
        self.pipelines = PipelineService(self._as_store(), machine.clock, ids, self.bus, asl, machine.jobs)
        self.pipelines.register(
            {
                "EvaluatorFunctionArn": lambda _event: {},
                "sla_monitor_arn": lambda _event: {"warningAt": "", "breachAt": ""},
            },
            reads_are_local=True,
        )
        self.cron_scheduler: CronScheduler = self.pipelines.cron_scheduler

    def know(self) -> None:
        """Read the definitions, as a process does that has just begun."""
        self.cron_scheduler.load(
            [
                ScheduledPipeline(stored.pipeline, stored.version, datetime.fromisoformat(stored.at))
                for stored in self.pipelines.definitions.all().pipelines
            ],
            lambda each: timetables(each, {}),
        )

    def route(self, limit: int) -> None:
        """Receive some changes, and note how far that was."""
        store: Any = self.store
        batch = store.changes(PIPELINES, "router", limit=limit)
        for change in batch.changes:
            self.pipelines.on_change(change)
        store.checkpoint(PIPELINES, "router", batch.position)


@dataclass
class StartRequests:
    """What was acknowledged: the caller got an answer."""

    slots: Counter[Slot] = field(default_factory=Counter)
    reruns: set[str] = field(default_factory=set)


class PipelineWorld:
    """Steps drawn from a seed, and what must hold after each."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.draw = random.Random(seed)
        start = datetime.fromisoformat(self.draw.choice(STARTS)).timestamp()
        self.machine = PipelineMachine(folder, self.draw, VirtualClock(start))
        self.clock = self.machine.clock
        self.jobs = self.machine.jobs
        self.wishes = StartRequests()
        self.log: list[str] = []
        self.latest = start
        self.count = 0
        self.processes: list[PipelineProcess] = []
        # Runs that have ended, as they were then.
        self._ended: dict[str, Run] = {}
        sandbox.install()
        self.outside = PipelineProcess(self.machine)
        self.outside.pipelines.put_machine()
        for definition in pipelines():
            self.outside.pipelines.definitions.put(definition, "text", "ana")
        self.definitions = {definition.id: definition for definition in pipelines()}
        self.join()

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
                self.check()
            self.finish()
        except AssertionError as exc:
            raise AssertionError(f"{exc}; after {self.log[-25:]}") from exc

    def step(self) -> None:
        choices: list[tuple[int, Callable[[], None]]] = [
            (60, lambda: self._drive(self._work)),
            (25, lambda: self._drive(self._route)),
            (8, lambda: self._drive(self._tick)),
            (25, self._ask),
            (14, self._pass_time),
            (9, self._arm),
            (8, self._end_jobs),
            (2, self._jump),
        ]
        weights, acts = zip(*choices, strict=True)
        self.draw.choices(acts, weights)[0]()

    def join(self) -> None:
        process = PipelineProcess(self.machine)
        process.worker.join()
        process.know()
        # From now on it looks in place of those who wait; and it may die doing so.
        process.pipelines.readiness_poller.tick()
        self.processes.append(process)

    def _drive(self, act: Callable[[PipelineProcess], None]) -> None:
        if not self.processes or (len(self.processes) < 2 and self.draw.random() < 0.02):
            self.join()
            return
        self.guarded(self.draw.choice(self.processes), act)

    def guarded(self, process: PipelineProcess, act: Callable[[PipelineProcess], None]) -> bool:
        """Have a process do something, and take it away if that was its end. Return whether it was done."""
        self.log.append(act.__name__.strip("_"))
        try:
            act(process)
        except Crash:
            self.log.append("crash")
            process.bury()
            if process in self.processes:
                self.processes.remove(process)
            else:
                self.outside = PipelineProcess(self.machine)
            return False
        except (TransientError, OutcomeUnknownError):
            self.log.append("busy")
            return False
        return True

    def _work(self, process: PipelineProcess) -> None:
        process.worker.poll()
        for _ in range(self.draw.choice([1, 3, 10])):
            if process.worker.engine.has_work:
                process.worker.turn()
            if process.worker.queue:
                process.begin()
            if process.held:
                process.finish(self.draw.randrange(len(process.held)))

    def _route(self, process: PipelineProcess) -> None:
        process.route(self.draw.choice([1, 5, 50]))

    def _tick(self, process: PipelineProcess) -> None:
        process.pipelines.tick()

    def _arm(self) -> None:
        process = self.draw.choice([*self.processes, self.outside])
        crash = self.draw.random() < 0.7
        process.store.fail_in(self.draw.randint(1, 14), crash=crash, is_done=self.draw.random() < 0.5)
        self.log.append(f"arm {process.store.fault}")

    def _pass_time(self) -> None:
        seconds = self.draw.choice([1.0, 5.0, 11.0, 31.0, 60.0, 125.0, 900.0])
        self.clock.advance(seconds)
        self.log.append(f"advance {seconds}")

    def _jump(self) -> None:
        seconds = self.draw.choice([-7_200.0, -60.0, 60.0, 3_600.0, 7_200.0])
        self.latest = max(self.latest, self.clock.seconds())
        self.clock.step(seconds)
        self.log.append(f"jump {seconds}")

    def _end_jobs(self) -> None:
        self.log.append("jobs")
        for key, state in self.jobs.states.items():
            if state.state is JobState.RUNNING and self.draw.random() < 0.5:
                if self.draw.random() < 0.7:
                    self.jobs.succeed(key)
                else:
                    self.jobs.fail(key, category=self.draw.choice(list(FailureCategory)[:3]))
        if self.draw.random() < 0.3:
            category = self.draw.choice([FailureCategory.TRANSIENT, FailureCategory.PERMANENT])
            self.jobs.start_errors.append(TriggerFailedError("simulated", category))
        if self.draw.random() < 0.3:
            self.jobs.poll_errors.append(TriggerFailedError("simulated", FailureCategory.TRANSIENT))

    # What people and producers do.

    def _ask(self) -> None:
        asks = [
            self._land,
            self._land,
            self._orders,
            self._orders,
            self._mark,
            self._rerun,
            self._rerun,
            self._take_back,
            self._forget,
            self._cancel,
            self._pause,
            self._resume,
            self._resume,
            self._trait,
            self._redefine,
            self._repeat,
        ]
        self.guarded(self.outside, self.draw.choice(asks))

    def _date(self) -> str:
        today = self.clock.now().date().isoformat()
        return self.draw.choice([today, today, "2026-03-01", "2026-03-02"])

    def _land(self, process: PipelineProcess) -> None:
        pipeline_id, date = self.draw.choice(["bronze", "watched", DRY]), self._date()
        self.count += 1
        process.pipelines.sensors.push(pipeline_id, "landed", {"date": date, "n": self.count})
        self.wishes.slots[Slot(pipeline_id, "stream", date)] += 1

    def _orders(self, process: PipelineProcess) -> None:
        count = self.draw.choice([10, 10, 20])
        process.pipelines.sensors.push(
            self.draw.choice(["bronze", "watched"]), "orders", {"date": self._date(), "count": count}
        )

    def _trait(self, process: PipelineProcess) -> None:
        status = self.draw.choice(["PASS", "PASS", "FAIL"])
        process.pipelines.traits.push("watched", "fresh", TraitPush(status=status, ttl_seconds=0))

    def _mark(self, process: PipelineProcess) -> None:
        slot = Slot(self.draw.choice(["bronze", "watched", DRY]), "stream", self._date())
        process.pipelines.stores.markers.put_again(slot, source="api", by="ana")
        self.wishes.slots[slot] += 1

    def _rerun(self, process: PipelineProcess) -> None:
        slot = Slot(self.draw.choice(["bronze", "watched", "gold", DRY]), "stream", self._date())
        reason = self.draw.choice([RerunReason.MANUAL, RerunReason.MANUAL, RerunReason.LATE_DATA])
        is_forced = self.draw.random() < 0.2
        rerun = process.pipelines.stores.reruns.request(slot, reason, by="ana", is_forced=is_forced)
        self.wishes.reruns.add(rerun.rerun_id)

    def _take_back(self, process: PipelineProcess) -> None:
        """Delete the request row of a rerun that was decided: that requests nothing.

        The row of a period may be a later request by then. To delete that one would withdraw it.
        """
        for rerun_id in sorted(self.wishes.reruns):
            rerun = process.pipelines.stores.reruns.get(rerun_id)
            row = self.machine.store.get(PIPELINES, request_key(rerun.slot), consistent=True)
            is_own = row is not None and row["rerun_id"] == rerun_id
            if is_own and not rerun.status.is_open:
                process.store.delete(PIPELINES, request_key(rerun.slot))
                return

    def _forget(self, process: PipelineProcess) -> None:
        """Delete what a sensor said: the stream delivers that too, and nothing follows from it."""
        process.pipelines.sensors.delete(self.draw.choice(["bronze", "watched", DRY]), "landed")

    def _live(self) -> list[Run]:
        return [run for run in self.all_runs() if not run.status.is_terminal and not run.status.is_done]

    def _cancel(self, process: PipelineProcess) -> None:
        live = self._live()
        if live and self.draw.random() < 0.4:
            with suppress(ConflictError, NotFoundError):
                process.pipelines.jobs.cancel(self.draw.choice(live).run_id, by="ana", reason="simulated")

    def _pause(self, process: PipelineProcess) -> None:
        if self.draw.random() < 0.3:
            process.pipelines.stores.controls.pause(
                self.draw.choice(list(self.definitions)), by="ana", reason="simulated"
            )

    def _resume(self, process: PipelineProcess) -> None:
        for pipeline_id in self.definitions:
            process.pipelines.stores.controls.resume(pipeline_id, by="ana", reason="simulated")

    def _redefine(self, process: PipelineProcess) -> None:
        """Put a definition that differs in nothing that matters, so that versions move on."""
        self.count += 1
        definition = self.draw.choice(list(self.definitions.values()))
        process.pipelines.definitions.put(replace(definition, description=str(self.count)), "text", "ana")

    def _repeat(self, process: PipelineProcess) -> None:
        """Have the stream delivered once more from somewhere, as at-least-once allows."""
        store: Any = process.store
        changes = store.changes(PIPELINES, f"again {self.draw.randint(0, 1)}", limit=60)
        for change in changes.changes:
            process.pipelines.on_change(change)
        if self.draw.random() < 0.7:
            store.checkpoint(PIPELINES, f"again {self.draw.randint(0, 1)}", changes.position)

    # What must hold.

    def all_runs(self) -> list[Run]:
        return [run for pipeline_id in self.definitions for run in self._runs(pipeline_id)]

    def _runs(self, pipeline_id: str) -> Iterator[Run]:
        cursor: str | None = None
        while True:
            page = self.machine.store.query(
                Query(
                    table=PIPELINES,
                    partition=f"PIPELINE#{pipeline_id}",
                    sort=Sort(Range.BEGINS_WITH, "RUN#"),
                    limit=200,
                    cursor=cursor,
                )
            )
            yield from map(run_of, page.items)
            cursor = page.cursor
            if cursor is None:
                return

    def check(self) -> None:
        runs = self.all_runs()
        live = Counter(run.slot for run in runs if not run.status.is_terminal and not run.status.is_done)
        assert all(count == 1 for count in live.values()), f"live at once: {live}"
        assert not self.jobs.violations, self.jobs.violations
        self._check_ended(runs)
        self._check_logs(runs)
        self._check_locks({run.slot for run in runs} | set(self.wishes.slots))

    def _check_ended(self, runs: list[Run]) -> None:
        for run in runs:
            before = self._ended.get(run.run_id)
            assert before is None or before == run, f"{run.run_id} had ended: {before}, {run}"
            if run.status.is_terminal:
                self._ended[run.run_id] = run

    def _check_logs(self, runs: list[Run]) -> None:
        attempts = Counter(run.slot for run in runs)
        for slot, count in attempts.items():
            log = self.machine.runs.log(slot)
            assert log is not None, slot
            assert log.attempts == count, f"{slot}: {log.attempts} attempts, {count} runs"
            last = self.machine.runs.get(log.run_id)
            assert log.status in (last.status, RunStatus.COMPLETED, RunStatus.CANCELLED), f"{slot}: {log} {last}"

    def _check_locks(self, slots: set[Slot]) -> None:
        for slot in slots:
            lock = self.machine.locks.find(evaluation_key(slot))
            if lock is not None:
                lifetime = lifetime_seconds(self.definitions[slot.pipeline_id])
                assert lock.expires_at <= max(self.latest, self.clock.seconds()) + lifetime + 1, lock

    # To the end.

    def finish(self) -> None:
        """Heal everything, let time pass, and check that all that was promised has come true."""
        self.log.append("heal")
        self.clock.step(max(0.0, self.latest - self.clock.seconds()))
        for process in [*self.processes, self.outside]:
            process.store.fault = process.store.meanwhile = None
        if not self.processes:
            self.join()
        self._resume(self.outside)
        self.jobs.start_errors.clear()
        self.jobs.poll_errors.clear()
        self.jobs.succeed()
        self.settle()
        self.check()
        self._check_quiet()
        self._check_requests()

    def settle(self) -> None:
        """Let everything happen that can, in its own time, for as long as the longest lock may last."""
        until = self.clock.seconds() + max(map(lifetime_seconds, self.definitions.values()))
        while self.clock.seconds() < until:
            self._settle_now()
            due = min([process.worker.schedule.next_due_ms for process in self.processes] or [NEVER_MS]) / 1000
            # Not further than a few leases: what a dead process had is noticed by looking.
            self.clock.advance(min(max(0.05, due - self.clock.seconds()), LOOK_SECONDS))

    def _settle_now(self) -> None:
        for _ in range(500):
            done = 0
            for process in list(self.processes):
                process.pipelines.readiness_poller.tick()
                process.worker.poll()
                while process.worker.engine.has_work:
                    process.worker.turn()
                    done += 1
                while process.worker.queue:
                    process.begin()
                while process.held:
                    process.finish()
                    done += 1
            batch = self.machine.store.changes(PIPELINES, "router", limit=1)
            for _ in batch.changes:
                self.processes[0].route(200)
                done += 1
            if not done:
                return
        raise AssertionError("no rest: something asks for itself again and again")

    def _check_quiet(self) -> None:
        left = self._live()
        assert not left, f"still live: {left}"
        watched = [run for run in self.all_runs() if not run.status.is_terminal]
        assert not watched, f"still watched: {watched}"
        for slot in {run.slot for run in self.all_runs()} | set(self.wishes.slots):
            assert self.machine.locks.find(evaluation_key(slot)) is None, f"{slot}: its lock is left behind"
        unended = [key for key, state in self.jobs.states.items() if state == PollResult(JobState.RUNNING)]
        assert not unended, unended

    def _check_requests(self) -> None:
        refused = {Slot(event.pipeline_id, event.schedule_id, event.date) for event in self._events(*REFUSALS)}
        for slot in self.wishes.slots:
            log = self.machine.runs.log(slot)
            was_begun = log is not None and log.attempts > 0
            assert was_begun or slot in refused, f"{slot}: it was asked for, and nothing came of it"
        reruns = self.outside.pipelines.stores.reruns
        for rerun_id in self.wishes.reruns:
            rerun = reruns.get(rerun_id)
            assert rerun.status is not RerunStatus.ACCEPTED, f"{rerun}: it was accepted, and has not ended"
            assert not rerun.status.is_open or rerun.slot in refused, f"{rerun}: nothing came of it"
        done = {run.slot.date for run in self.all_runs() if run.pipeline_id == "bronze" and run.status.is_done}
        after = {run.slot.date for run in self.all_runs() if run.pipeline_id == "gold"}
        assert done <= after | {slot.date for slot in refused if slot.pipeline_id == "gold"}, "the cascade was lost"

    def _events(self, *names: EventName) -> Iterator[StoredPipelineEvent]:
        for pipeline_id in self.definitions:
            cursor: str | None = None
            while True:
                page = self.machine.store.query(
                    Query(
                        table=PIPELINES,
                        partition=f"PIPELINE#{pipeline_id}",
                        sort=Sort(Range.BEGINS_WITH, "EVENT#"),
                        limit=500,
                        cursor=cursor,
                    )
                )
                found = [struct_of(item, StoredPipelineEvent) for item in page.items]
                yield from (event for event in found if event.name in names)
                cursor = page.cursor
                if cursor is None:
                    break
