"""Splitting: all items in chunks of their own, once, however often and by however many it is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from headgate.errors import AlreadyStartedError, DefinitionError, InvalidIdError, InvalidPayloadError, StoreBusyError
from headgate.fanout.core.attempts import AttemptFailure, AttemptResult
from headgate.fanout.core.splitter import Order, Splitter, check_order, check_run_id, digest_of
from headgate.fanout.model.rows import Fanout, Policy, dump_policy, run_key
from headgate.fanout.model.sources import LinesSource, ListSource, RangeSource, Source
from headgate.fanout.model.states import FanoutStatus
from headgate.fanout.repair.redrive import ChunkSelection, Redriver
from headgate.store.catalogue.tables import FANOUT, INBOXES
from headgate.store.model.requests import Query
from tests.fanout_books import RUN, Shop
from tests.iterable_source import IterableSource
from tests.simulation.durable_processes import Crash, Fault, ProcessStore

ORDER = Order("g", 10)


@pytest.fixture(params=[1, 16], ids=["one counter", "sixteen counters"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop.open(tmp_path, shards=request.param)
    yield shop
    if shop.queries.find(RUN) is not None:
        shop.check()
    shop.store.close()


def faulty(shop: Shop) -> tuple[Splitter, ProcessStore]:
    """A splitter in a process of its own, which can be killed."""
    store = ProcessStore(shop.store)  # type: ignore[arg-type]
    return Splitter(store, shop.clock, shop.ids, shards=1), store


def check_whole(shop: Shop, items: int, size: int) -> None:
    """Every item is in one chunk, and the last chunk says how many it really has."""
    books = shop.check()
    at = 0
    for chunk in books.main:
        assert chunk.start == at
        at += chunk.items
    assert at == items
    assert [chunk.items for chunk in books.main[:-1]] == [size] * max(0, len(books.main) - 1)
    assert books.fanout.chunks_total == books.fanout.chunks == len(books.main)
    assert books.fanout.items_total == items
    assert books.fanout.split_through == items


@pytest.mark.parametrize(("items", "size"), [(1, 10), (10, 10), (11, 10), (4200, 500), (1000, 1), (3, 1_000_000)])
def test_split__so_many_items__each_is_in_one_chunk(shop: Shop, items: int, size: int) -> None:
    fanout = shop.split(RangeSource(0, items), size=size)

    assert (fanout.status, fanout.split_error) == (FanoutStatus.RUNNING, None)
    check_whole(shop, items, size)
    assert shop.counts().queued == -(-items // size)


@pytest.mark.parametrize("source", [ListSource([]), RangeSource(3, 3), IterableSource(list, name="none")])
def test_split__no_items__has_succeeded_at_once(shop: Shop, source: Source) -> None:
    fanout = shop.split(source)

    assert (fanout.status, fanout.chunks_total) == (FanoutStatus.SUCCEEDED, 0)
    assert shop.fanout().finished_at is not None
    assert shop.maintenance.run_once() == 0


def test_split__no_items_and_someone_waits__is_reported(shop: Shop) -> None:
    order = Order("g", 1, waiter="exec-1", waiter_signal="ended")
    shop.splitter.split(order, ListSource([]), run_id=RUN)

    (mail,) = shop.store.query(Query(table=INBOXES, partition="exec-1", consistent=True)).items
    assert "ended" in str(mail)
    # And it does not stay for ever.
    assert shop.fanout().attention_pk == "EXPIRING"


def test_split__asked_for_again__changes_nothing(shop: Shop) -> None:
    shop.split(list(range(35)), size=10)
    before = shop.books()

    for _ in range(3):
        shop.clock.advance(100)
        assert shop.split(list(range(35)), size=10).run_id == RUN
    assert shop.books() == before


def test_split__asked_for_again_after_it_has_ended__changes_nothing(shop: Shop) -> None:
    shop.close_with_last_chunk()
    shop.split([1])
    shop.tracker.complete(shop.start("chunk-0000000"), AttemptResult())
    before = shop.books()

    assert shop.split([1]).status is FanoutStatus.SUCCEEDED
    assert shop.books() == before


@pytest.mark.parametrize(
    ("order", "source"),
    [
        (ORDER, ListSource([1, 3])),
        (ORDER, ListSource([2, 1])),
        (ORDER, RangeSource(1, 3)),
        (replace(ORDER, chunk_size=11), ListSource([1, 2])),
        (replace(ORDER, group="h"), ListSource([1, 2])),
        (replace(ORDER, handler="m:f"), ListSource([1, 2])),
        (replace(ORDER, params={"beta": 3.5}), ListSource([1, 2])),
    ],
)
def test_split__the_id_was_used_for_something_else__is_refused(shop: Shop, order: Order, source: Source) -> None:
    shop.splitter.split(ORDER, ListSource([1, 2]), run_id=RUN)
    before = shop.books()

    with pytest.raises(AlreadyStartedError, match=RUN):
        shop.splitter.split(order, source, run_id=RUN)
    assert shop.books() == before


def test_split__asked_for_again_with_the_same_policy__changes_nothing(shop: Shop) -> None:
    order = replace(ORDER, policy=Policy(max_attempts=5))
    first = shop.splitter.split(order, RangeSource(0, 100), run_id=RUN)

    assert shop.splitter.split(order, RangeSource(0, 100), run_id=RUN) == first


def test_split__asked_for_again_with_another_policy__is_refused_naming_the_field(shop: Shop) -> None:
    first = shop.splitter.split(replace(ORDER, policy=Policy(max_attempts=5)), RangeSource(0, 100), run_id=RUN)

    with pytest.raises(AlreadyStartedError, match=r"another policy: max_attempts 5 \(yours 7\);.*fanout tune"):
        shop.splitter.split(replace(ORDER, policy=Policy(max_attempts=7)), RangeSource(0, 100), run_id=RUN)

    assert shop.queries.fanout(RUN) == first


def test_split__asked_for_again_after_a_tune__neither_the_first_policy_nor_the_present_one_is_refused(
    shop: Shop,
) -> None:
    first = shop.splitter.split(ORDER, RangeSource(0, 100), run_id=RUN)
    tuned = replace(first, policy=dump_policy(replace(first.rules(), max_attempts=9)), version=first.version + 1)
    shop.store.transact([tuned.replacing(first.version)])

    for order in (ORDER, replace(ORDER, policy=tuned.rules())):
        assert shop.splitter.split(order, RangeSource(0, 100), run_id=RUN) == tuned


def test_split__fan_out_of_an_earlier_version_without_a_policy_digest__is_returned(shop: Shop) -> None:
    first = shop.splitter.split(ORDER, RangeSource(0, 100), run_id=RUN)
    earlier = replace(first, policy_digest=None, version=first.version + 1)
    shop.store.transact([earlier.replacing(first.version)])

    order = replace(ORDER, policy=Policy(max_attempts=7))
    assert shop.splitter.split(order, RangeSource(0, 100), run_id=RUN) == earlier


def test_split__without_an_id__has_one_of_its_own(shop: Shop) -> None:
    one, other = (shop.splitter.split(ORDER, ListSource([1])).run_id for _ in range(2))

    assert one != other
    assert one.startswith("fan_")


def test_split__two_of_one_group__do_not_mix(shop: Shop) -> None:
    shop.split(list(range(5)), run_id=RUN, group="grs")
    shop.split(list(range(7)), run_id="run-2", group="grs")
    claim = shop.start("chunk-0000000", run_id="run-2")
    shop.tracker.complete(claim, AttemptResult(output_key="run-2/out"))

    assert shop.counts(RUN).done == 0
    assert shop.counts("run-2").done == 1
    assert shop.chunk("chunk-0000000", RUN).output_key is None
    found = {fanout.run_id for fanout in shop.queries.by_group("grs").fanouts}
    assert found == {RUN, "run-2"}
    shop.check("run-2")


def test_split__of_unknown_length__has_ids_that_sort_however_many_there_are(shop: Shop) -> None:
    fanout = shop.split(IterableSource(lambda: range(2_000), name="n"), size=1)

    assert fanout.width == 12
    ids = [chunk.chunk_id for chunk in shop.books().main]
    assert ids == sorted(ids)
    assert ids[-1] == "chunk-000000001999"


def test_split__a_range_of_ten_million_and_one__needs_one_digit_more(shop: Shop) -> None:
    fanout = shop.split(RangeSource(0, 10_000_001), size=1_000_000)

    assert fanout.width == 8
    assert [chunk.start for chunk in shop.books().main] == list(range(0, 10_000_001, 1_000_000))


# Dying and going on.


def interrupted(items: Sequence[int], after: int) -> tuple[Source, list[bool]]:
    """Items of which the maker breaks down after so many, until it is repaired."""
    result = [False]

    def make() -> Iterator[int]:
        for place, item in enumerate(items):
            if place == after and not result[0]:
                raise ValueError("the tape is torn")
            yield item

    return IterableSource(make, name="tape"), result


@pytest.mark.parametrize("after", [0, 5, 950, 1_999])
def test_split__the_source_breaks__says_why_and_goes_on_when_it_is_repaired(shop: Shop, after: int) -> None:
    source, result = interrupted(range(2_000), after)
    with pytest.raises(InvalidPayloadError, match="the tape is torn"):
        shop.split(source, size=10)

    fanout = shop.fanout()
    assert fanout.status is FanoutStatus.SPLITTING
    assert "the tape is torn" in (fanout.split_error or "")
    shop.check()
    result[0] = True
    fanout = shop.split(source, size=10)
    assert (fanout.status, fanout.split_error) == (FanoutStatus.RUNNING, None)
    check_whole(shop, 2_000, 10)


def test_split__dies_and_workers_go_on_meanwhile__nothing_is_lost(shop: Shop) -> None:
    splitter, store = faulty(shop)
    store.fault = Fault(4, is_done=True)
    with pytest.raises(Crash):
        splitter.split(Order("g", 1), RangeSource(0, 300), run_id=RUN)
    done = 0
    for claim in shop.claims().take(100, {}):
        shop.tracker.complete(claim, AttemptResult())
        done += 1
    assert done > 0
    shop.maintenance.run_once()
    assert not shop.fanout().is_finished

    shop.splitter.split(Order("g", 1), RangeSource(0, 300), run_id=RUN)

    check_whole(shop, 300, 1)
    counts = shop.counts()
    assert (counts.total, counts.done, counts.queued) == (300, done, 300 - done)


def test_split__all_that_there_is_so_far_has_ended__is_not_over_before_it_is_split(shop: Shop) -> None:
    source, result = interrupted(range(1_000), 900)
    with pytest.raises(InvalidPayloadError):
        shop.split(source, size=10)
    for claim in shop.claims().take(1_000, {}):
        shop.tracker.complete(claim, AttemptResult())
    shop.maintenance.run_once()
    assert shop.fanout().status is FanoutStatus.SPLITTING

    result[0] = True
    shop.split(source, size=10)
    for claim in shop.claims().take(1_000, {}):
        shop.tracker.complete(claim, AttemptResult())
    shop.maintenance.run_once()
    assert shop.fanout().status is FanoutStatus.SUCCEEDED


@pytest.mark.parametrize("at", range(2, 9))
@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
def test_split__two_at_once__finish_it_between_them(shop: Shop, at: int, is_done: bool) -> None:
    """The second one begins in the middle of the first, whole or dying on its way."""
    first, store = faulty(shop)
    second, other = faulty(shop)
    other.fault = Fault(5, is_done=is_done) if at % 2 else None

    def meanwhile() -> None:
        try:
            second.split(Order("g", 1), RangeSource(0, 300), run_id=RUN)
        except Crash:
            return

    store.meanwhile = (at, meanwhile)
    fanout = first.split(Order("g", 1), RangeSource(0, 300), run_id=RUN)

    assert fanout.status is FanoutStatus.RUNNING
    check_whole(shop, 300, 1)


@pytest.mark.parametrize("at", range(1, 9))
def test_split__an_answer_is_lost__goes_on_all_the_same(shop: Shop, at: int) -> None:
    """Its own step was made, and this was not reported: that must not be taken for someone else's."""
    splitter, store = faulty(shop)
    store.fault = Fault(at, crash=False, is_done=True)
    try:
        fanout = splitter.split(Order("g", 1), RangeSource(0, 200), run_id=RUN)
    except StoreBusyError:
        fanout = splitter.split(Order("g", 1), RangeSource(0, 200), run_id=RUN)

    assert fanout.status is FanoutStatus.RUNNING
    check_whole(shop, 200, 1)


def test_split__cancelled_in_the_middle__adds_nothing_more_and_ends(shop: Shop) -> None:
    splitter, store = faulty(shop)
    store.meanwhile = (4, lambda: cancel(shop))

    fanout = splitter.split(Order("g", 1), RangeSource(0, 500), run_id=RUN)

    assert fanout.cancelled_at is not None
    assert shop.counts().total < 500
    shop.maintenance.run_once()
    fanout = shop.fanout()
    assert (fanout.status, fanout.is_finished) == (FanoutStatus.CANCELLED, True)
    # Asking again does not bring it back to life.
    again = splitter.split(Order("g", 1), RangeSource(0, 500), run_id=RUN)
    assert again.status is FanoutStatus.CANCELLED
    assert shop.counts().open == 0


def cancel(shop: Shop) -> None:
    shop.control.cancel(RUN)


def test_split__cancelled_in_the_middle_and_redriven__does_not_succeed_without_the_rest(shop: Shop) -> None:
    splitter, store = faulty(shop)
    store.meanwhile = (4, lambda: cancel(shop))
    splitter.split(Order("g", 1), RangeSource(0, 500), run_id=RUN)
    shop.maintenance.run_once()
    there = shop.counts().total
    assert 0 < there < 500
    Redriver(shop.store, shop.clock, shop.ids).redrive(RUN, ChunkSelection(all=True))
    for claim in shop.claims().take(1_000, {}):
        shop.tracker.complete(claim, AttemptResult())
    shop.maintenance.run_once()
    assert not shop.fanout().is_finished

    shop.splitter.split(Order("g", 1), RangeSource(0, 500), run_id=RUN)

    check_whole(shop, 500, 1)
    for claim in shop.claims().take(1_000, {}):
        shop.tracker.complete(claim, AttemptResult())
    shop.maintenance.run_once()
    assert shop.fanout().status is FanoutStatus.SUCCEEDED


def test_split__whose_splitter_died_and_that_is_cancelled__comes_to_its_end(shop: Shop) -> None:
    source, _ = interrupted(range(1_000), 900)
    with pytest.raises(InvalidPayloadError):
        shop.split(source, size=10)
    shop.control.cancel(RUN)

    for _ in range(3):
        shop.maintenance.run_once()
    fanout = shop.fanout()
    assert (fanout.status, fanout.is_finished) == (FanoutStatus.CANCELLED, True)
    assert shop.maintenance.run_once() == 0


def test_split__paused_in_the_middle__is_split_and_stays_paused(shop: Shop) -> None:
    splitter, store = faulty(shop)
    store.meanwhile = (4, lambda: pause(shop))

    fanout = splitter.split(Order("g", 1), RangeSource(0, 300), run_id=RUN)

    assert (fanout.status, fanout.paused_at is not None) == (FanoutStatus.RUNNING, True)
    check_whole(shop, 300, 1)
    assert shop.claims().take(10, {}) == []


def pause(shop: Shop) -> None:
    shop.control.pause(RUN)


def test_split__a_bad_item_at_the_end__leaves_word_and_no_half_chunk(shop: Shop) -> None:
    items: list[Any] = [*range(995), float("nan"), 1, 2, 3, 4]
    source = IterableSource(lambda: iter(items), name="mixed")

    with pytest.raises(InvalidPayloadError, match="item 995"):
        shop.split(source, size=10)

    fanout = shop.fanout()
    assert "item 995" in (fanout.split_error or "")
    assert fanout.split_through % 10 == 0
    shop.check()


def test_split__a_list_with_a_bad_item__leaves_nothing_behind(shop: Shop) -> None:
    with pytest.raises(InvalidPayloadError, match="item 1"):
        shop.split([1, float("inf")])

    assert shop.queries.find(RUN) is None


# Sizes.


@pytest.mark.parametrize("letter", ["x", "\u6f22", "\U0001f600"], ids=["1", "3", "4"])
def test_split__large_items_of_any_script__fit_into_its_transactions(shop: Shop, letter: str) -> None:
    text = letter * (75_000 // len(letter.encode()))
    fanout = shop.split([text] * 100, size=1)

    assert fanout.status is FanoutStatus.RUNNING
    check_whole(shop, 100, 1)


def test_split__chunks_of_many_megabytes__are_stored_and_read_back(shop: Shop) -> None:
    shop.split(["x" * 250_000] * 40, size=20)

    assert [len(chunk.input or "") for chunk in shop.books().main] == [20 * 250_002 + 21] * 2


def test_split__the_lines_of_a_file__each_chunk_says_where_its_own_are(shop: Shop, tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{number}\n" for number in range(25)))

    shop.split(LinesSource(path), size=10)

    check_whole(shop, 25, 10)
    assert [chunk.items for chunk in shop.books().main] == [10, 10, 5]


# Orders.


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_attempts", [0, -1, 1001]),
        ("timeout_seconds", [0.0, -1.0, 7 * 86_400 + 1.0, math.inf, math.nan]),
        ("heartbeat_seconds", [0.0, -1.0, math.nan, math.inf]),
        ("concurrency", [0, -3]),
        ("priority", [0, 10]),
        ("memory_mb", [0, 15]),
        ("item_timeout_seconds", [0.0, -1.0, math.nan]),
        ("backoff_factor", [0.5, math.inf, math.nan]),
        ("backoff_seconds", [-1.0, math.inf]),
        ("backoff_seconds_max", [-1.0, math.inf, 1e15]),
        ("retention_days", [0.0, -1.0, math.inf, math.nan, 1e9]),
    ],
)
def test_check_order__a_policy_that_makes_no_sense__is_refused_by_name(name: str, values: list[float]) -> None:
    for value in values:
        with pytest.raises(DefinitionError, match=name):
            check_order(Order("g", 1, policy=replace(Policy(), **{name: value})))


@pytest.mark.parametrize("order", [Order("", 1), Order("g" * 201, 1), Order("g", 0), Order("g", -5)])
def test_check_order__no_group_or_no_size__is_refused(order: Order) -> None:
    with pytest.raises(DefinitionError):
        check_order(order)


def test_check_order__the_extremes_that_are_allowed__can_be_run_and_closed(shop: Shop) -> None:
    """Whatever passes must be good for the whole life of a fan-out, or it poisons everyone who tends."""
    shop.close_with_last_chunk()
    policy = Policy(
        max_attempts=1000,
        timeout_seconds=7 * 86_400.0,
        heartbeat_seconds=1e9,
        backoff_seconds=1e6,
        backoff_factor=1e6,
        backoff_seconds_max=86_400.0,
        retention_days=36_500.0,
        concurrency=10**9,
        priority=9,
    )
    check_order(Order("g", 1, policy=policy))
    shop.split([1], **msgspec.structs.asdict(policy))
    for _ in range(3):
        shop.tracker.fail(shop.start("chunk-0000000"), AttemptFailure("E", "x"))
        shop.clock.advance(2 * 86_400)
        shop.maintenance.run_once()
    shop.tracker.complete(shop.start("chunk-0000000"), AttemptResult())
    assert shop.fanout().status is FanoutStatus.SUCCEEDED


@pytest.mark.parametrize("run_id", ["", "x" * 201, "a\nb", "a\x00", "half \udce9"])
def test_check_run_id__what_cannot_be_one__is_refused(run_id: str) -> None:
    with pytest.raises(InvalidIdError):
        check_run_id(run_id)


@pytest.mark.parametrize("run_id", ["../../y", "a/b", "a\\b", "50%", ".hidden", "..", ""])
def test_split__new_fan_out_under_an_id_that_no_url_reaches__is_refused(shop: Shop, run_id: str) -> None:
    with pytest.raises(InvalidIdError, match="fan-out id"):
        shop.split([1], run_id=run_id)


def test_split__fan_out_of_an_earlier_version_under_such_an_id__is_resumed_and_read(shop: Shop) -> None:
    shop.split([1, 2])
    row = {**shop.store.get(FANOUT, run_key(RUN), consistent=True)}  # type: ignore[dict-item]
    shop.store.put(FANOUT, {**row, "PK": "a/b"})

    assert shop.split([1, 2], run_id="a/b").run_id == "a/b"
    assert shop.fanout("a/b").chunks_total == 2


@pytest.mark.parametrize("run_id", ["1", "run-2026#5", "ünï-code", "x" * 200, "RUN", "ACTIVE", "a b"])
def test_split__ids_that_look_like_keys__do_no_harm(shop: Shop, run_id: str) -> None:
    shop.split(list(range(5)), run_id=run_id)
    shop.split(list(range(3)), run_id=RUN)
    claims = shop.claims().take(100, {})

    assert sorted(claim.chunk.run_id for claim in claims) == sorted([run_id] * 5 + [RUN] * 3)
    for claim in claims:
        shop.tracker.complete(claim, AttemptResult())
    shop.maintenance.run_once()
    assert shop.check(run_id).fanout.status is FanoutStatus.SUCCEEDED


def test_split__a_queue_that_nothing_here_can_send_to__is_refused_before_anything_is_written(shop: Shop) -> None:
    with pytest.raises(DefinitionError, match="queue"):
        shop.splitter.split(replace(ORDER, queue_url="https://sqs/q"), ListSource([1]), run_id=RUN)
    assert shop.queries.find(RUN) is None


def test_split__an_error_was_stored_when_all_chunks_were_there__is_gone_after_the_end(shop: Shop) -> None:
    def send(fanout: Fanout) -> Fanout:
        # As split resumption of another process does if sending takes long.
        shop.splitter.store_error(fanout.run_id, "its process died")
        return fanout

    splitter = Splitter(shop.store, shop.clock, shop.ids, shards=1, send=send)

    fanout = splitter.split(replace(ORDER, queue_url="https://sqs/q"), ListSource([1]), run_id=RUN)

    assert (fanout.status, fanout.split_error) == (FanoutStatus.RUNNING, None)


def test_digest_of__the_order_of_parameters__does_not_matter() -> None:
    one, other = replace(ORDER, params={"a": 1, "b": 2}), replace(ORDER, params={"b": 2, "a": 1})

    assert digest_of(one, {}) == digest_of(other, {})
    assert digest_of(one, {}) != digest_of(ORDER, {})
