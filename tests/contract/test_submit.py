"""Submitting: the same transaction without the caller's thread, and one answer to it."""

from __future__ import annotations

import threading

import pytest

from headgate.errors import (
    ConflictError,
    HeadgateError,
    InvalidItemError,
    ItemTooLargeError,
    StoreClosedError,
    TransactionLimitError,
)
from headgate.store.catalogue.tables import CONTROL, PIPELINES
from headgate.store.model.conditions import absent, exists, version_is
from headgate.store.model.requests import Check, Put, Update, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store
from tests.contract.conftest import OpenStore, assert_refused, contents

READS_INDEXES = False

TABLES = (CONTROL, PIPELINES)
PATIENCE_SECONDS = 20


class Answer:
    """What `done` was called with, and on which thread."""

    def __init__(self) -> None:
        self.calls: list[BaseException | None] = []
        self.threads: list[int] = []
        self._arrived = threading.Event()

    def __call__(self, error: BaseException | None) -> None:
        self.threads.append(threading.get_ident())
        self.calls.append(error)
        self._arrived.set()

    def wait(self) -> BaseException | None:
        assert self._arrived.wait(PATIENCE_SECONDS), "done was never called"
        return self.calls[0]


def _put(sort: str, n: int = 1) -> Put:
    return Put(CONTROL, {"PK": "p", "SK": sort, "n": n})


def test_submit__writes__are_durable_when_done_is_reported(store: Store, open_store: OpenStore) -> None:
    answer = Answer()

    store.submit([_put("a"), Put(PIPELINES, {"PK": "p", "SK": "b"})], answer)

    assert answer.wait() is None
    other = open_store()
    assert contents(other, CONTROL, "p") == [{"PK": "p", "SK": "a", "n": 1}]
    assert contents(other, PIPELINES, "p") == [{"PK": "p", "SK": "b"}]


def test_submit__done__is_called_once_from_another_thread(store: Store) -> None:
    answers = [Answer() for _ in range(20)]

    for number, answer in enumerate(answers):
        store.submit([_put(f"{number:02d}")], answer)
    for answer in answers:
        answer.wait()
    store.close()

    assert all(answer.calls == [None] for answer in answers)
    assert threading.get_ident() not in {thread for answer in answers for thread in answer.threads}


def test_submit__condition_does_not_hold__done_is_reported_the_conflict(store: Store) -> None:
    store.put(CONTROL, {"PK": "p", "SK": "b", "n": 1})
    answer = Answer()

    store.submit([_put("a"), Put(CONTROL, {"PK": "p", "SK": "b", "n": 2}, absent())], answer)

    error = answer.wait()
    assert type(error) is ConflictError
    assert error.failures == {1: {"PK": "p", "SK": "b", "n": 1}}
    assert contents(store, CONTROL, "p") == [{"PK": "p", "SK": "b", "n": 1}]


def test_submit__many_from_many_threads__are_all_done(store: Store) -> None:
    answers: list[Answer] = []
    lock = threading.Lock()

    def work(worker: int) -> None:
        for number in range(15):
            answer = Answer()
            with lock:
                answers.append(answer)
            store.submit([_put(f"{worker}-{number:02d}")], answer)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [answer.wait() for answer in answers] == [None] * 90
    assert len(contents(store, CONTROL, "p")) == 90


def test_submit__one_of_many_refused__fails_alone(store: Store) -> None:
    answers = [Answer() for _ in range(10)]

    for number, answer in enumerate(answers):
        condition = exists() if number == 4 else absent()
        store.submit([Put(CONTROL, {"PK": "p", "SK": f"{number}"}, condition)], answer)

    outcomes = [answer.wait() for answer in answers]
    assert [type(outcome) for outcome in outcomes] == [ConflictError if n == 4 else type(None) for n in range(10)]
    assert [item["SK"] for item in contents(store, CONTROL, "p")] == [f"{n}" for n in range(10) if n != 4]


def test_submit__from_done_itself__is_done_too(store: Store) -> None:
    second = Answer()

    store.submit([_put("a")], lambda error: store.submit([_put("b")], second) if error is None else second(error))

    assert second.wait() is None
    assert [item["SK"] for item in contents(store, CONTROL, "p")] == ["a", "b"]


def test_submit__among_other_calls__agrees_with_them_on_who_won(store: Store) -> None:
    store.put(CONTROL, {"PK": "p", "SK": "s", "version": 0})
    answers = [Answer() for _ in range(8)]

    for answer in answers:
        store.submit([Update(CONTROL, Key("p", "s"), add={"version": 1}, condition=version_is(0))], answer)

    outcomes = [answer.wait() for answer in answers]
    assert sum(outcome is None for outcome in outcomes) == 1
    assert contents(store, CONTROL, "p") == [{"PK": "p", "SK": "s", "version": 1}]


def test_close__with_submitted_writes_under_way__finishes_them(store: Store, open_store: OpenStore) -> None:
    other = open_store()
    answers = [Answer() for _ in range(10)]
    for number, answer in enumerate(answers):
        store.submit([_put(f"{number}")], answer)

    store.close()

    assert [answer.wait() for answer in answers] == [None] * 10
    assert len(contents(other, CONTROL, "p")) == 10


BAD: dict[str, tuple[list[Write], type[HeadgateError]]] = {
    "no writes": ([], TransactionLimitError),
    "too many writes": ([_put(f"{number:03d}") for number in range(101)], TransactionLimitError),
    "one item twice": ([_put("a"), _put("a", 2)], TransactionLimitError),
    "no sort key": ([_put("a"), Put(CONTROL, {"PK": "p"})], InvalidItemError),
    "add without a version": ([Update(CONTROL, Key("p", "s"), add={"n": 1})], InvalidItemError),
    "empty key": ([_put("a"), Check(CONTROL, Key("p", ""), exists())], InvalidItemError),
    "too large": (
        [_put("a"), Put(CONTROL, {"PK": "p", "SK": "b", **{f"a{n:03d}": "x" * 9_000 for n in range(60)}})],
        ItemTooLargeError,
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_submit__bad_input__is_raised_here_and_now(store: Store, bad: str) -> None:
    writes, error = BAD[bad]
    answer = Answer()

    assert_refused(error, lambda: store.submit(writes, answer), lambda: contents(store, CONTROL, "p"))

    # Whatever was submitted after it is answered, and the bad one never is.
    after = Answer()
    store.submit([_put("z")], after)
    assert after.wait() is None
    assert answer.calls == []


def test_submit__after_close__says_that_the_store_is_closed(store: Store, open_store: OpenStore) -> None:
    other = open_store()
    store.close()
    answer = Answer()

    assert_refused(StoreClosedError, lambda: store.submit([_put("a")], answer), lambda: contents(other, CONTROL, "p"))
    assert answer.calls == []
