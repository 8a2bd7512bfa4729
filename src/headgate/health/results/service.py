"""Reported results in the store: a row for each test and job of a dataset, with its bounded history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from headgate import typed_decode
from headgate.clock import Clock
from headgate.errors import ConflictError, StoreBusyError
from headgate.health.results.model import Report, ReportedResult, ResultKind, folded
from headgate.store.catalogue.tables import REPORTED_RESULT, SIGNAL_HISTORY
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Delete, Put, Query, Range, Sort
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

# A test that no tool reports any more was removed from its project.
KEPT_SECONDS: Final = 30 * 24 * 3600
RESULTS_MAX: Final = 1_000
TOGETHER: Final = 100
ATTEMPTS_MAX: Final = 10


class ReportedResults:
    """Results of tests and jobs. Safe to use from many threads and processes."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def record(self, reports: Sequence[Report]) -> None:
        """Store the reports. Repeating them changes nothing. Raises `StoreBusyError` after too many conflicts."""
        for start in range(0, len(reports), TOGETHER):
            self._record(reports[start : start + TOGETHER])

    def of(self, dataset_urn: str, kind: ResultKind | None = None) -> list[ReportedResult]:
        """Return the results of a dataset, by name."""
        [found] = self.of_many([dataset_urn], kind)
        return found

    def of_many(self, dataset_urns: Sequence[str], kind: ResultKind | None = None) -> list[list[ReportedResult]]:
        """Return the results of each of some datasets, by name."""
        queries = [_query(urn, kind) for urn in dataset_urns]
        pages = self._store.query_many(queries) if queries else []
        return [[_result_of(item) for item in page.items] for page in pages]

    def keep_only(self, source: str, declared: Mapping[str, Iterable[str]]) -> list[str]:
        """Delete the tests of a project that it no longer has, and return the datasets they were of.

        `declared` has the ids of the project's tests by dataset.
        """
        urns = list(declared)
        gone: list[ReportedResult] = []
        for results in self.of_many(urns, ResultKind.TEST):
            gone += [
                each for each in results if each.source == source and each.test_id not in declared[each.dataset_urn]
            ]
        if gone:
            self._store.batch_write([Delete(SIGNAL_HISTORY, _key(each)) for each in gone])
        return list(dict.fromkeys(each.dataset_urn for each in gone))

    def delete(self, dataset_urn: str, source: str, test_id: str) -> list[ResultKind]:
        """Delete the results of a test that was removed, and return their kinds."""
        gone = [each for each in self.of(dataset_urn) if (each.source, each.test_id) == (source, test_id)]
        if gone:
            self._store.batch_write([Delete(SIGNAL_HISTORY, _key(each)) for each in gone])
        return [each.kind for each in gone]

    def move(self, dataset_urn: str, into: str) -> int:
        """Give the results of a dataset to another one, except those it has, and return their count."""
        results = self.of(dataset_urn)
        puts = []
        for each in results:
            moved = replace(each, dataset_urn=into, version=1)
            ttl = int(self._clock.seconds()) + KEPT_SECONDS
            fields = {**msgspec.to_builtins(moved), **SIGNAL_HISTORY.key_attributes(_key(moved))}
            puts.append(Put(SIGNAL_HISTORY, {**fields, "version": 1, "ttl": ttl}, absent()))
        for error in self._store.transact_many([[put] for put in puts]) if puts else []:
            if error is not None and not isinstance(error, ConflictError):
                raise error
        self.forget(dataset_urn)
        return len(results)

    def forget(self, dataset_urn: str) -> None:
        """Delete all results of a dataset."""
        results = self.of(dataset_urn)
        if results:
            self._store.batch_write([Delete(SIGNAL_HISTORY, _key(each)) for each in results])

    def _record(self, reports: Sequence[Report]) -> None:
        pending: dict[Key, list[Report]] = {}
        for each in reports:
            pending.setdefault(_key(each), []).append(each)
        for _ in range(ATTEMPTS_MAX):
            keys = list(pending)
            rows = self._store.get_many(SIGNAL_HISTORY, keys, consistent=True)
            puts: list[Put] = []
            for key, row in zip(keys, rows, strict=True):
                put = self._put(key, row, pending[key])
                if put is not None:
                    puts.append(put)
            outcomes = self._store.transact_many([[put] for put in puts]) if puts else []
            pending = {}
            for put, error in zip(puts, outcomes, strict=True):
                if isinstance(error, ConflictError):
                    key = SIGNAL_HISTORY.key_of(put.item)
                    pending[key] = [each for each in reports if _key(each) == key]
                elif error is not None:
                    raise error
            if not pending:
                return
        raise StoreBusyError(f"results of {reports[0].dataset_urn}: {ATTEMPTS_MAX} conflicts with other writers")

    def _put(self, key: Key, row: Item | None, reports: Sequence[Report]) -> Put | None:
        known = None if row is None else _result_of(row)
        result = known
        for report in reports:
            result = folded(result, report)
        assert result is not None, "a key has at least one report"
        if result is known:
            return None
        version = 1 if known is None else known.version + 1
        ttl = int(self._clock.seconds()) + KEPT_SECONDS
        fields = msgspec.to_builtins(result)
        item = {**fields, **SIGNAL_HISTORY.key_attributes(key), "version": version, "ttl": ttl}
        return Put(SIGNAL_HISTORY, item, absent() if known is None else version_is(known.version))


def _query(dataset_urn: str, kind: ResultKind | None) -> Query:
    key = REPORTED_RESULT.key(dataset_urn=dataset_urn, kind=ResultKind.TEST.value, test_id="-")
    sort = None if kind is None else Sort(Range.BEGINS_WITH, f"{kind}#")
    return Query(table=SIGNAL_HISTORY, partition=key.partition, sort=sort, limit=RESULTS_MAX, consistent=True)


def _key(result: Report | ReportedResult) -> Key:
    return REPORTED_RESULT.key(dataset_urn=result.dataset_urn, kind=result.kind.value, test_id=result.test_id)


def _result_of(item: Item) -> ReportedResult:
    return typed_decode.convert(item, ReportedResult)
