"""Interrupted splits: continued by another process where the items can be read again, and named where not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.durable.engine.membership import this_host
from headgate.fanout.core.split_resumption import SILENT_SECONDS, SplitResumption
from headgate.fanout.core.splitter import Order, Splitter
from headgate.fanout.model.sources import BytesSource, LinesSource, ListSource, RangeSource, Source
from headgate.fanout.model.states import FanoutStatus
from headgate.file_roots import file_roots
from tests.fanout_books import RUN, Shop
from tests.simulation.durable_processes import Crash, Fault, ProcessStore

ORDER = Order("g", 10, handler="m:f", params={"a": 1})


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop.open(tmp_path, shards=1)
    yield shop
    shop.check()
    shop.store.close()


def interrupt(shop: Shop, source: Source, order: Order = ORDER) -> None:
    """Split in a process that dies after its first batches."""
    store = ProcessStore(shop.store)  # type: ignore[arg-type]
    store.fault = Fault(4, is_done=True)
    with pytest.raises(Crash):
        Splitter(store, shop.clock, shop.ids, shards=1).split(order, source, run_id=RUN)


def resumed(shop: Shop) -> int:
    return SplitResumption(shop.queries, shop.splitter, None).run_once()


def write_lines(path: Path) -> Path:
    path.write_text("".join(f"line {number}\n" for number in range(3_000)))
    return path


@pytest.mark.parametrize("kind", ["range", "lines", "bytes"])
def test_resumption__source_that_can_be_read_again__ends_the_split(shop: Shop, tmp_path: Path, kind: str) -> None:
    path = write_lines(tmp_path / "input.txt")
    sources: dict[str, Source] = {
        "range": RangeSource(5, 3_005),
        "lines": LinesSource(path),
        "bytes": BytesSource(path),
    }
    interrupt(shop, sources[kind])
    begun = shop.queries.fanout(RUN)
    assert begun.status is FanoutStatus.SPLITTING
    assert resumed(shop) == 0
    shop.clock.advance(SILENT_SECONDS + 1)

    assert resumed(shop) == 1

    fanout = shop.queries.fanout(RUN)
    assert fanout.status is FanoutStatus.RUNNING
    assert fanout.items_total == (path.stat().st_size if kind == "bytes" else 3_000)
    assert (fanout.handler, fanout.splitter) == ("m:f", None)
    assert resumed(shop) == 0


def test_resumption__process_of_this_machine_that_is_gone__needs_no_waiting(shop: Shop) -> None:
    interrupt(shop, RangeSource(0, 3_000))
    row = shop.queries.fanout(RUN)
    # No process has this number: it is beyond the limit of Linux.
    gone = replace(row, splitter=f"{this_host()}|99999999|x", version=row.version + 1)
    shop.store.transact([gone.replacing(row.version)])

    assert resumed(shop) == 1


def test_resumption__items_of_the_request__are_said_to_be_missing_and_sent_again_go_on(shop: Shop) -> None:
    items = list(range(3_000))
    interrupt(shop, ListSource(items))
    shop.clock.advance(SILENT_SECONDS + 1)

    assert resumed(shop) == 0

    assert "send the request again" in (shop.queries.fanout(RUN).split_error or "")
    fanout = shop.splitter.split(ORDER, ListSource(items), run_id=RUN)
    assert (fanout.items_total, fanout.split_error) == (3_000, None)


def test_resumption__file_that_has_changed__says_so_and_is_not_tried_again(shop: Shop, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "input.txt")
    interrupt(shop, LinesSource(path))
    path.write_text("other\n")
    shop.clock.advance(SILENT_SECONDS + 1)

    assert resumed(shop) == 0

    assert "it exists with another source" in (shop.queries.fanout(RUN).split_error or "")
    assert resumed(shop) == 0


def test_resumption__process_without_files_beside_a_server__leaves_the_split_to_the_server(
    shop: Shop, tmp_path: Path
) -> None:
    interrupt(shop, LinesSource(write_lines(tmp_path / "input.txt")))
    shop.clock.advance(SILENT_SECONDS + 1)
    beside = SplitResumption(shop.queries, shop.splitter, file_roots([], project=None), has_files=False)

    assert beside.run_once() == 0

    assert shop.queries.fanout(RUN).split_error is None
    assert resumed(shop) == 1
