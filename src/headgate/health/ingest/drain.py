"""OpenLineage drain: processes the accepted events of a shard, in order for each job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError, HeadgateError, StoreBusyError, TransientError, UserError
from headgate.health.ingest import events as openlineage_events
from headgate.health.ingest import runs as openlineage_runs
from headgate.health.ingest import translate as openlineage
from headgate.health.ingest.effects import (
    AliasEffect,
    DatasetDiscovered,
    Effect,
    FieldsEffect,
    IngestWarning,
    LifecycleEffect,
    MetadataEffect,
    ResultEffect,
    RunEffect,
    SignalEffect,
    SpecUpdate,
)
from headgate.health.ingest.names import NameResolver
from headgate.health.ingest.runs import RunLineage
from headgate.health.ingest.translate import Configs
from headgate.health.lineage.specs import LineageSpec
from headgate.health.model.timestamps import instant
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Delete, Put
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

# The retention of failed events, and of the state of a run since its last event.
DEAD_SECONDS: Final = 30 * 24 * 3600
RUN_SECONDS: Final = 30 * 24 * 3600
ATTEMPTS_MAX: Final = 5
DEAD: Final = "OLDEAD"
_FOLD_ATTEMPTS: Final = 10


class DrainResult(Struct, frozen=True):
    """The outcome of a drain: events processed, failed, and postponed."""

    done: int = 0
    dead: int = 0
    deferred: int = 0


class Handlers(Struct, frozen=True, kw_only=True):
    """The effect handlers. Each must be idempotent."""

    names: NameResolver
    configs: Configs
    lineage: Callable[[LineageSpec], object]
    signal: Callable[[SignalEffect], object]
    results: Callable[[Sequence[ResultEffect]], object]
    discovered: Callable[[DatasetDiscovered], object]
    alias: Callable[[AliasEffect], object]
    # The datasets that a job is known to write.
    outputs: Callable[[str], Iterable[str]] = lambda _producer_id: ()
    metadata: Callable[[MetadataEffect], object] = lambda _effect: None
    fields: Callable[[FieldsEffect], object] = lambda _effect: None
    run: Callable[[RunEffect], object] = lambda _effect: None
    lifecycle: Callable[[LifecycleEffect], object] = lambda _effect: None
    oddity: Callable[[IngestWarning], object] = lambda _effect: None


class Shard:
    """One pass over the events of a shard, under a lease until `until_ms`."""

    def __init__(self, store: Store, clock: Clock, handlers: Handlers, until_ms: int) -> None:
        self.done = self.dead = self.deferred = 0
        self._store = store
        self._clock = clock
        self._handlers = handlers
        self._until_ms = until_ms
        # Jobs with a postponed event; their later events wait as well.
        self._waiting: set[str] = set()

    @property
    def looked_at(self) -> int:
        return self.done + self.dead + self.deferred

    def has_time(self) -> bool:
        return self._now_ms() < self._until_ms

    def carry_out(self, items: Iterable[Item]) -> None:
        """Process the next events of the shard. Raises the `FatalError` of a handler."""
        finished: list[Key] = []
        try:
            for item in items:
                if item["order_key"] in self._waiting or not self.has_time():
                    self._wait(item)
                elif self._is_done(item):
                    finished.append(CONTROL.key_of(item))
        finally:
            # An event that was processed and not deleted is processed again, which is harmless.
            if finished:
                self._store.batch_write([Delete(CONTROL, key) for key in finished])

    def _wait(self, item: Item) -> None:
        self._waiting.add(item["order_key"])
        self.deferred += 1

    def _is_done(self, item: Item) -> bool:
        """Process one event, and return whether its row can be deleted."""
        try:
            self._perform(item)
        except UserError as exc:
            self._put_aside(item, exc)
        except ConflictError as exc:
            self._again_or_aside(item, exc)
        except TransientError:
            self._wait(item)
        else:
            self.done += 1
            return True
        return False

    def _perform(self, item: Item) -> None:
        event = openlineage_events.parse(item["body"].encode())
        run: RunLineage | None = None
        results: list[ResultEffect] = []
        for effect in openlineage.translate(event, self._handlers.names, self._handlers.configs):
            if isinstance(effect, SpecUpdate):
                run = self._fold(effect)
                spec = openlineage_runs.spec_of(run)
                if spec is not None:
                    self._handlers.lineage(spec)
            elif isinstance(effect, ResultEffect):
                results += self._of_datasets(effect, run)
            else:
                self._hand_on(effect)
        if results:
            self._handlers.results(results)

    def _of_datasets(self, effect: ResultEffect, run: RunLineage | None) -> list[ResultEffect]:
        """Return the result for each dataset it is about; if it names none, for every output of the run or its job."""
        if effect.dataset_urn is not None:
            return [effect]
        writes: Iterable[str] = () if run is None else run.writes
        if not writes and effect.producer_id is not None:
            writes = self._handlers.outputs(effect.producer_id)
        return [replace(effect, dataset_urn=urn) for urn in writes]

    def _hand_on(self, effect: Effect) -> None:
        match effect:
            case SignalEffect():
                self._handlers.signal(effect)
            case DatasetDiscovered():
                self._handlers.discovered(effect)
            case AliasEffect():
                self._handlers.alias(effect)
            case MetadataEffect():
                self._handlers.metadata(effect)
            case RunEffect():
                self._handlers.run(effect)
            case FieldsEffect():
                self._handlers.fields(effect)
            case LifecycleEffect():
                self._handlers.lifecycle(effect)
            case IngestWarning():
                self._handlers.oddity(effect)

    def _fold(self, update: SpecUpdate) -> RunLineage:
        """Merge an event into the state of its run, and return that."""
        if update.run_id is None:
            return openlineage_runs.folded(None, update)
        key = Key(f"OLRUN#{update.producer_id}", f"RUN#{update.run_id}")
        for _ in range(_FOLD_ATTEMPTS):
            item = self._store.get(CONTROL, key, consistent=True)
            known = None if item is None else openlineage_runs.load(item["run"])
            run = openlineage_runs.folded(known, update)
            if run == known:
                return run
            version = 0 if item is None else item["version"]
            row = {
                **CONTROL.key_attributes(key),
                "run": openlineage_runs.dump(run),
                "version": version + 1,
                "ttl": self._now_ms() // 1000 + RUN_SECONDS,
            }
            try:
                self._store.put(CONTROL, row, condition=absent() if item is None else version_is(version))
            except ConflictError:
                continue
            return run
        raise StoreBusyError(f"run {update.run_id} of {update.producer_id}: too many conflicting writes; try again")

    def _again_or_aside(self, item: Item, error: HeadgateError) -> None:
        attempts = item["attempts"] + 1
        if attempts >= ATTEMPTS_MAX:
            self._put_aside(item, error)
            return
        self._wait(item)
        try:
            self._store.update(CONTROL, CONTROL.key_of(item), set={"attempts": attempts})
        except ConflictError:
            # The lease expired, and another process handled the event.
            return

    def _put_aside(self, item: Item, error: HeadgateError) -> None:
        now_ms = self._now_ms()
        aside = {
            **item,
            "PK": DEAD,
            "reason": f"{error.code}: {error.message}"[:2_000],
            "failed_at": instant(now_ms),
            "ttl": now_ms // 1000 + DEAD_SECONDS,
        }
        self._store.transact([Put(CONTROL, aside), Delete(CONTROL, CONTROL.key_of(item))])
        self.dead += 1

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)
