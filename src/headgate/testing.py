"""Test environment for users' workflows: a virtual clock, stand-ins for activities, and replay after every event.

Everything runs in the test's own thread on a real store in a temporary folder, so that a test neither hangs nor
depends on timing.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from types import CodeType
from typing import Any, Final, ParamSpec, Self, TypeVar, Unpack, overload

import msgspec
from msgspec import Raw

from headgate.bootstrap.store import AppService, OpenedStore, database_path, open_store
from headgate.bootstrap.task_backends import open_task_backends
from headgate.clock import SystemClock, VirtualClock
from headgate.durable.client.handle import Handle, failure_of
from headgate.durable.client.listing import ExecutionFilter, list_all
from headgate.durable.model import payload
from headgate.durable.model.duration import Duration, seconds
from headgate.durable.model.failures import describe
from headgate.durable.model.history import Status, TerminateRequested, Turn
from headgate.durable.model.names import is_built_in
from headgate.durable.model.records import NEVER_MS, Execution
from headgate.durable.replay import sandbox
from headgate.durable.replay.determinism_lint import lint
from headgate.durable.replay.fork_plan import live_turns, runs_of
from headgate.durable.replay.interpreter import Interpreter
from headgate.durable.sdk.activity_context import activity as current_activity
from headgate.durable.sdk.activity_context import complete_later
from headgate.durable.sdk.app import App
from headgate.durable.sdk.call_shapes import StartOptions, Takes0, Takes1, Takes2, Takes3, Takes4, Takes5
from headgate.durable.sdk.definitions import Activity, Workflow
from headgate.durable.sdk.workflow import side_effect
from headgate.durable.service import install_notes
from headgate.durable.worker.executor import perform_async
from headgate.durable.worker.worker import Worker
from headgate.errors import DefinitionError, DeterminismError
from headgate.fanout.inline_worker import InlineWorker
from headgate.notify.deliverer import QUEUE as ALERTS
from headgate.settings import Settings, TaskSettings

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")

STEPS_MAX: Final = 100_000
# Under one other seed, the order of a small set may be the same by chance.
HASH_SEEDS: Final = ("1", "4242")
_SEED_SECONDS_MAX: Final = 120


class RecordedHistory(msgspec.Struct, frozen=True):
    """A history, and where the code of its workflow is."""

    module: str
    app: str
    workflow: str
    execution_id: str
    turns: Raw


class SeedOutcome(msgspec.Struct, frozen=True):
    """How a replay in another process ended: with the first difference, or why it could not be made."""

    difference: str = ""
    error: str = ""


_outcomes_decoder: Final = msgspec.json.Decoder(list[SeedOutcome])


@functools.cache
def _empty_database() -> bytes:
    with tempfile.TemporaryDirectory(prefix="headgate-test-") as home:
        settings = Settings(home=Path(home))
        open_store(settings, VirtualClock()).store.close()
        return database_path(settings).read_bytes()


class Call:
    """The arguments of one call to a stand-in."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args = args
        self.kwargs = kwargs


class StandIn:
    """Replaces an activity. Answers set by `*_once` are used first, in order; then the permanent answer."""

    def __init__(self, real: Callable[..., Any], tokens: list[str]) -> None:
        self.calls: list[Call] = []
        self._tokens = tokens
        self._real = real
        self._once: deque[Callable[..., Any]] = deque()
        self._always: Callable[..., Any] | None = None

    def returns(self, value: Any) -> Self:  # noqa: ANN401
        """Answer every call with this value."""
        return self._set(lambda *_, **__: value)

    def returns_once(self, value: Any) -> Self:  # noqa: ANN401
        """Answer the next call with this value."""
        return self._add(lambda *_, **__: value)

    def raises(self, error: BaseException) -> Self:
        """Fail every call. The activity's retry policy applies; wrap it in `NonRetryable` to fail at once."""
        return self._set(_raiser(error))

    def raises_once(self, error: BaseException) -> Self:
        """Fail the next call."""
        return self._add(_raiser(error))

    def calls_with(self, function: Callable[..., Any]) -> Self:
        """Answer every call with what `function` returns for the same arguments."""
        return self._set(function)

    def calls_with_once(self, function: Callable[..., Any]) -> Self:
        """Answer the next call with what `function` returns."""
        return self._add(function)

    def calls_real(self) -> Self:
        """Call the activity itself from now on."""
        return self._set(self._real)

    def waits(self) -> Self:
        """Never answer: the test ends the activity with `env.complete` or `env.fail`, or lets it time out."""
        return self._set(self._wait)

    def waits_once(self) -> Self:
        """Do not answer the next call."""
        return self._add(self._wait)

    def _wait(self, *_: object, **__: object) -> Any:  # noqa: ANN401
        self._tokens.append(current_activity().token)
        return complete_later()

    def answer(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Return the configured answer of this call, or call the activity itself if none is set."""
        self.calls.append(Call(args, kwargs))
        function = self._once.popleft() if self._once else self._always or self._real
        answer = function(*args, **kwargs)
        return asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer

    def _set(self, answer: Callable[..., Any]) -> Self:
        self._always = answer
        return self

    def _add(self, answer: Callable[..., Any]) -> Self:
        self._once.append(answer)
        return self


class WorkflowStandIn(StandIn):
    """Replaces a workflow: the execution only returns the configured answer.

    A replacement function may be `async` and then runs as workflow code.
    """

    def __init__(self, real: Callable[..., Any]) -> None:
        super().__init__(real, [])
        # Functions to run and errors to raise, which cannot be recorded in a history.
        self._unrecorded: list[Any] = []

    async def run(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Return the configured answer of this call, the same on every replay."""
        chosen = side_effect(lambda: self._choose(args, kwargs))
        match chosen["how"]:
            case "returns":
                return chosen["value"]
            case "raises":
                raise self._unrecorded[chosen["place"]]
            case "runs":
                return await self._unrecorded[chosen["place"]](*args, **kwargs)
            case _:
                return await asyncio.get_running_loop().create_future()

    def _choose(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(Call(args, kwargs))
        function = self._once.popleft() if self._once else self._always or self._real
        if function == self._wait:
            return {"how": "waits"}
        if inspect.iscoroutinefunction(function):
            return {"how": "runs", "place": self._add_unrecorded(function)}
        try:
            return {"how": "returns", "value": function(*args, **kwargs)}
        except Exception as exc:  # noqa: BLE001 - the workflow raises it
            return {"how": "raises", "place": self._add_unrecorded(exc)}

    def _add_unrecorded(self, answer: object) -> int:
        self._unrecorded.append(answer)
        return len(self._unrecorded) - 1


class _InlineWorker:
    """The worker of an environment, as its client sees it: a caller that waits runs the pending work itself."""

    notifies_waiters = False

    def __init__(self, worker: Worker, run: Callable[[], bool]) -> None:
        self._worker = worker
        self._run = run

    def wake(self, execution_id: str) -> None:
        self._worker.engine.read_inbox(execution_id)

    def poll_soon(self) -> None:
        pass

    def run_inline(self) -> bool:
        return self._run()


class Environment:
    """Runs an app in virtual time, as a context manager.

    With `replay_always`, the default, every turn replays the whole history, so that non-deterministic code fails in
    the test and not after a restart in production. With `vary_hash_seeds`, the histories are replayed at the end in
    other processes, in which sets of strings have another order. By default, the first environment of a process that
    runs a workflow with a set in its code does so for it, if other processes can import the module.
    """

    def __init__(
        self,
        app: App,
        *,
        replay_always: bool = True,
        vary_hash_seeds: bool | None = None,
        start_seconds: float = 1_750_000_000.0,
        settings: Settings | None = None,
        tables: Sequence[str] = (),
    ) -> None:
        """Use `settings` with a temporary home. `tables` are those of DynamoDB Tasks, as tasks.tables declares them."""
        settings = Settings() if settings is None else settings
        tasks = TaskSettings(tables=tuple(tables)) if tables else settings.tasks
        self._settings = msgspec.structs.replace(settings, tasks=tasks)
        self.clock = VirtualClock(start_seconds)
        self.app = app
        self.tokens: list[str] = []
        self._replay_always = replay_always
        self._vary_hash_seeds = vary_hash_seeds
        self._is_running = False
        self._thread = threading.get_ident()
        self._exits = ExitStack()
        self._service: AppService | None = None
        self._worker: Worker | None = None
        self._chunks: InlineWorker | None = None
        self._opened: OpenedStore | None = None

    def __enter__(self) -> Self:
        with ExitStack() as exits:
            self._open(exits)
            # Everything opened: keep it open until `__exit__`.
            self._exits = exits.pop_all()
        return self

    def _open(self, exits: ExitStack) -> None:
        home = exits.enter_context(tempfile.TemporaryDirectory(prefix="headgate-test-"))
        settings = msgspec.structs.replace(self._settings, home=Path(home))
        # Copying an empty database is faster than creating its tables.
        database_path(settings).write_bytes(_empty_database())
        opened = self._opened = open_store(settings, self.clock)
        exits.callback(opened.store.close)
        self._service = AppService(self.app, opened, self.clock, open_task_backends(settings, SystemClock()))
        exits.callback(lambda: self.app.bind(None, None))
        self._chunks = InlineWorker(self._service.fanouts)
        sandbox.install()
        install_notes()
        self._worker = self._service.worker(queues=self._queues(), replay_always=self._replay_always)
        self._worker.join()
        self._service.notifier.attach(_InlineWorker(self._worker, self._run_in_own_thread))
        exits.callback(self._worker.engine.drop)

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        try:
            if self._vary_hash_seeds and kind is None:
                replay_with_hash_seeds(self.app, self._histories())
            elif self._vary_hash_seeds is None and kind is None:
                self._vary_hash_seeds_of_sets()
        finally:
            self._exits.close()

    def _vary_hash_seeds_of_sets(self) -> None:
        """Replay the histories of workflows with sets, each once in this process, if its module can be imported."""
        wanted = {each.name for each in self.app.workflows.values() if _is_to_be_varied(self.app, each)}
        histories = [(row, turns) for row, turns in self._histories() if row.workflow in wanted] if wanted else []
        with suppress(DefinitionError):  # Other processes cannot import the code.
            replay_with_hash_seeds(self.app, histories)
        _varied.update(self.app.workflows[row.workflow].function.__code__ for row, _ in histories)

    def _histories(self) -> list[tuple[Execution, list[Turn]]]:
        """Return the executions of the app's own workflows, with their turns."""
        rows: list[Execution] = []
        cursor: str | None = None
        while True:
            page = list_all(self.service.store, ExecutionFilter(), limit=1000, cursor=cursor)
            rows += [row for row in page.executions if row.turn and not is_built_in(row.workflow)]
            cursor = page.cursor
            if cursor is None:
                return [(row, list(self.service.client.history(row.execution_id))) for row in rows]

    @property
    def opened(self) -> OpenedStore:
        """The open store."""
        assert self._opened is not None, "use the environment in a with block"
        return self._opened

    @property
    def service(self) -> AppService:
        """The app's client, bus and schedules."""
        assert self._service is not None, "use the environment in a with block"
        return self._service

    @property
    def worker(self) -> Worker:
        """The worker that the environment drives."""
        assert self._worker is not None, "use the environment in a with block"
        return self._worker

    @property
    def now(self) -> datetime:
        """The current virtual time."""
        return self.clock.now()

    @overload
    def start(self, workflow: Workflow[P, R], *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...

    @overload
    def start(self, workflow: Takes0[R], /, **options: Unpack[StartOptions]) -> Handle[R]: ...

    @overload
    def start(self, workflow: Takes1[A, R], a: A, /, **options: Unpack[StartOptions]) -> Handle[R]: ...

    @overload
    def start(self, workflow: Takes2[A, B, R], a: A, b: B, /, **options: Unpack[StartOptions]) -> Handle[R]: ...

    @overload
    def start(
        self, workflow: Takes3[A, B, C, R], a: A, b: B, c: C, /, **options: Unpack[StartOptions]
    ) -> Handle[R]: ...

    @overload
    def start(
        self, workflow: Takes4[A, B, C, D, R], a: A, b: B, c: C, d: D, /, **options: Unpack[StartOptions]
    ) -> Handle[R]: ...

    @overload
    def start(
        self, workflow: Takes5[A, B, C, D, E, R], a: A, b: B, c: C, d: D, e: E, /, **options: Unpack[StartOptions]
    ) -> Handle[R]: ...

    def start(self, workflow: Any, *args: Any, **options: Any) -> Handle[Any]:
        """Start an execution and run until idle."""
        handle: Handle[Any] = workflow.start(*args, **options)
        self.run()
        return handle

    def run(self) -> None:
        """Run until idle: nothing is left to do before time passes or an external message arrives."""
        self._is_running = True
        try:
            self._run()
        finally:
            self._is_running = False

    def _run_in_own_thread(self) -> bool:
        if self._is_running or threading.get_ident() != self._thread:
            return False
        self.run()
        return True

    def _run(self) -> None:
        steps = 0
        while steps < STEPS_MAX:
            self.worker.poll()
            before = steps
            while self.worker.engine.has_work and steps < STEPS_MAX:
                self.worker.turn()
                steps += 1
            while self.worker.queue and steps < STEPS_MAX:
                self._perform()
                steps += 1
            if self._chunks is not None:
                steps += self._chunks.work()
            if steps == before:
                return
        raise AssertionError(f"not idle after {STEPS_MAX} steps: a workflow or activity restarts itself endlessly")

    def complete(self, value: object = None, *, token: str | None = None) -> None:
        """End an activity that is completed from outside, as the last stand-in that waits, with a result."""
        self.service.client.complete_activity(
            self.tokens[-1] if token is None else token, payload.encode(value, what="result of the activity")
        )
        self.run()

    def fail(self, error: BaseException, *, token: str | None = None) -> None:
        """End an attempt at such an activity with an error; its retry policy applies."""
        self.service.client.fail_activity(self.tokens[-1] if token is None else token, describe(error))
        self.run()

    def advance(self, duration: Duration) -> None:
        """Advance the clock, firing every timer at its time."""
        until = self.clock.seconds() + seconds(duration, name="advance")
        self.run()
        while True:
            due = self._next_due_ms() / 1000
            if due > until:
                break
            self._move_to(due)
        self._move_to(until)

    def result(self, handle: Handle[R], *, within: Duration = "3650d") -> R:
        """Return the result of an execution, advancing time as needed. Raises as `Handle.result` does."""
        until = self.clock.seconds() + seconds(within, name="within")
        self.run()
        while not handle.describe().status.is_closed:
            due_ms = self._next_due_ms()
            if handle.status() is Status.STUCK:
                raise failure_of(_stuck(handle))
            if due_ms >= NEVER_MS or due_ms / 1000 > until:
                raise TimeoutError(f"execution {handle.id}: waits for an external message; no timer will end the wait")
            self._move_to(due_ms / 1000)
        return handle.result(0)

    def _next_due_ms(self) -> int:
        chunks = None if self._chunks is None else self._chunks.next_due_ms()
        return min(self.worker.schedule.next_due_ms, NEVER_MS if chunks is None else chunks)

    def stand_in(self, target: Activity[..., Any] | Workflow[..., Any]) -> StandIn:
        """Replace an activity, or a workflow (also as a child), and return the stand-in to configure.

        Raises `DefinitionError` if the app does not have it.
        """
        if not isinstance(target, Activity | Workflow):
            raise DefinitionError(f"stand_in({target!r}): give an activity or a workflow of app {self.app.name}")
        is_workflow = isinstance(target, Workflow)
        if target.name not in (self.app.workflows if is_workflow else self.app.activities):
            kind = "workflow" if is_workflow else "activity"
            raise DefinitionError(
                f"{kind} {target.name}: app {self.app.name} does not have it; stand in for one of its own"
            )
        if isinstance(target, Workflow):
            return self._stand_in_workflow(target)
        return self._stand_in_activity(target)

    def _stand_in_workflow(self, workflow: Workflow[..., Any]) -> StandIn:
        stand_in = WorkflowStandIn(workflow.function)
        definition = object.__new__(Workflow)
        definition.__dict__.update(workflow.__dict__)
        definition.function = stand_in.run
        self._exits.callback(self.app.workflows.__setitem__, workflow.name, self.app.workflows[workflow.name])
        self.app.workflows[workflow.name] = definition
        return stand_in

    def _stand_in_activity(self, activity: Activity[..., Any]) -> StandIn:
        stand_in = StandIn(activity.function, self.tokens)
        definition = object.__new__(Activity)
        definition.__dict__.update(activity.__dict__)
        definition.function = stand_in.answer
        definition.is_async = False
        definition.isolate = False
        self.worker.stand_ins[activity.name] = definition
        # Every call must reach the stand-in, so the activity's in-worker shortcut is disabled.
        activity.look = None
        return stand_in

    def _move_to(self, moment: float) -> None:
        self.clock.advance(max(0.0, moment - self.clock.seconds()))
        self.run()

    def _perform(self) -> None:
        worker = self.worker
        activity = worker.queue.popleft()
        definition = worker.definition(activity)
        if not definition.is_async:
            worker.perform(activity)
            return
        running = worker.begin(activity)
        input = worker.input_of(activity)
        worker.finish(activity, asyncio.run(perform_async(definition, input, running.context)))

    def _queues(self) -> list[str]:
        declared = {activity.activity_options.queue for activity in self.app.activities.values()}
        declared |= {subscription.queue for subscription in self.app.subscriptions.values()}
        return sorted(declared | {"default", ALERTS})


def replay(workflow: Workflow[..., Any], execution_id: str, turns: Iterable[Turn]) -> None:
    """Run a recorded history against today's code. Raises `DeterminismError` naming the first difference."""
    for run in runs_of(live_turns(turns)):
        interpreter = Interpreter(
            workflow.function,
            workflow.signature,
            execution_id,
            workflow.interceptors,
            workflow.codec,
            retry=workflow.retry,
        )
        try:
            for turn in run:
                # A termination ends the execution without running its code.
                if not any(isinstance(event, TerminateRequested) for event in turn.events):
                    interpreter.replay(turn)
        finally:
            interpreter.evict()


# The code of workflows that were replayed under other hash seeds by default, so that each costs a process once.
_varied: set[CodeType] = set()


@functools.lru_cache(maxsize=1024)
def _has_sets(function: Callable[..., object]) -> bool:
    return lint(function).has_sets


def _is_to_be_varied(app: App, workflow: Workflow[..., Any]) -> bool:
    """Whether a workflow has a set in its code, and its app is global in a module that other processes can import."""
    module = sys.modules.get(workflow.function.__module__)
    if module is None or module.__name__ == "__main__" or getattr(workflow.function, "__code__", None) in _varied:
        return False
    return any(each is app for each in vars(module).values()) and _has_sets(workflow.function)


def replay_with_hash_seeds(app: App, histories: Sequence[tuple[Execution, list[Turn]]]) -> None:
    """Replay histories in other processes, in which strings have other hashes and sets of them another order.

    Raises `DeterminismError` with the first step that differs, and `DefinitionError` if another process cannot import
    the code: the app and its workflows must be global in their module.
    """
    recorded = [
        RecordedHistory(
            module=app.workflows[row.workflow].function.__module__,
            app=app.name,
            workflow=row.workflow,
            execution_id=row.execution_id,
            turns=Raw(msgspec.json.encode(turns)),
        )
        for row, turns in histories
    ]
    for seed in HASH_SEEDS if recorded else ():
        path = os.pathsep.join(filter(None, sys.path))
        ended = subprocess.run(
            [sys.executable, "-m", "headgate.hash_seed_replay"],
            input=msgspec.json.encode(recorded),
            capture_output=True,
            # The process that runs the tests passes on what its code reads.
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},  # noqa: TID251 - as above
            timeout=_SEED_SECONDS_MAX,
            check=False,
        )
        if ended.returncode:
            raise DefinitionError(f"replay under hash seed {seed}: {ended.stderr.decode(errors='replace')[-2000:]}")
        for outcome in _outcomes_decoder.decode(ended.stdout.splitlines()[-1]):
            if outcome.difference:
                raise DeterminismError(
                    f"{outcome.difference} (under hash seed {seed}: the order of a set of strings differs between "
                    "processes; iterate over a list, a dict, or sorted(...))"
                )
            if outcome.error:
                raise DefinitionError(f"replay under hash seed {seed}: {outcome.error}")


async def _awaited(answer: Awaitable[Any]) -> Any:  # noqa: ANN401
    return await answer


def _raiser(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def _stuck(handle: Handle[Any]) -> Execution:
    row = handle.describe()
    return msgspec.structs.replace(row, error=row.failure)
