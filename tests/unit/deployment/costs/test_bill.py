"""Bills of a deployment, against sums worked out by hand."""

from __future__ import annotations

import pytest

from headgate.deployment.costs.bill import (
    FunctionSize,
    MonthlyLoad,
    Unit,
    UnitCounts,
    monthly,
    read_counts,
    total,
    unit_lines,
)
from headgate.deployment.costs.prices import Item, published, replaced
from headgate.errors import InvalidPayloadError

RUN = Unit(
    name="run",
    title="",
    quantities={
        Item.DYNAMODB_WRITES: 105,
        Item.DYNAMODB_READS: 52,
        Item.STATE_TRANSITIONS: 29,
        Item.INVOCATIONS: 13,
    },
)
COUNTS = UnitCounts(measured_by="hand", units=(RUN,))
# 100 ms of half a GB.
SIZE = FunctionSize()


def test_unit__a_million_runs__cost_what_a_sum_by_hand_says() -> None:
    lines = {line.item: round(line.dollars, 4) for line in unit_lines(RUN, 1_000_000, published(), SIZE)}

    assert lines == {
        Item.DYNAMODB_WRITES: 65.625,  # 105 x 0.625
        Item.DYNAMODB_READS: 6.5,  # 52 x 0.125
        Item.STATE_TRANSITIONS: 725.0,  # 29 x 25
        Item.INVOCATIONS: 2.6,  # 13 x 0.20
        Item.GB_SECONDS: 10.8334,  # 13 x 0.05 GB-seconds x 16.6667
    }


def test_month__ten_thousand_runs_an_hour_and_storage__is_the_sum_of_its_lines() -> None:
    load = MonthlyLoad(a_month={"run": 7_300_000}, dynamodb_storage_gb=100, log_gb=10)

    # 7.3 x (65.625 + 6.5 + 725 + 2.6 + 10.83335) + 25 + 5
    assert total(monthly(load, COUNTS, published(), SIZE)) == pytest.approx(5947.0760, abs=0.001)


def test_month__rate_a_second__is_that_of_thirty_days() -> None:
    [writes, *_] = monthly(MonthlyLoad(a_second={"run": 2}), COUNTS, published(), SIZE)

    assert writes.quantity == 2 * 2_592_000 * 105


@pytest.mark.parametrize(
    ("item", "by_hand"),
    [
        # 4,000,000 PUT requests at $5 a million; 3,000,000 FIFO and 5,000,000 standard requests; and so on.
        (Item.S3_PUTS, 20.0),
        (Item.S3_GETS, 1.6),
        (Item.SQS_FIFO, 2.0),
        (Item.SQS_STANDARD, 1.6),
        (Item.EVENTS, 4.0),
        (Item.SCHEDULES, 4.0),
        (Item.NOTIFICATIONS, 2.0),
    ],
)
def test_prices__four_million_of_each__cost_what_the_price_list_says(item: Item, by_hand: float) -> None:
    unit = Unit(name="x", title="", quantities={item: 4})

    assert total(unit_lines(unit, 1_000_000, published(), SIZE)) == pytest.approx(by_hand)


def test_prices__every_item__has_a_price_with_a_source() -> None:
    table = published()

    assert set(table.prices) == set(Item)
    assert all(each.source.startswith("https://aws.amazon.com/") and each.unit for each in table.prices.values())


def test_prices__of_a_file__replace_those_that_it_names() -> None:
    table = replaced({"as_of": "2026-01", "region": "eu-west-1", "dynamodb_writes": {"dollars": 0.705, "per": 1e6}})

    assert (table.as_of, table.region) == ("2026-01", "eu-west-1")
    assert table.prices[Item.DYNAMODB_WRITES].of_one == pytest.approx(0.705e-6)
    assert table.prices[Item.STATE_TRANSITIONS] == published().prices[Item.STATE_TRANSITIONS]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"region": "eu-west-1"}, "as_of missing"),
        ({"as_of": "2026-01", "region": "x", "writes": {"dollars": 1}}, "'writes' is no item"),
        ({"as_of": "2026-01", "region": "x", "events": {"dollars": -1}}, "prices, events"),
        ({"as_of": "2026-01", "region": "x", "events": {"dollars": 1, "for": 3}}, "prices, events"),
    ],
)
def test_prices__file_that_is_wrong__is_refused(document: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidPayloadError, match=problem):
        replaced(document)


def test_load__unit_that_does_not_exist__is_refused_with_those_that_do() -> None:
    with pytest.raises(InvalidPayloadError, match="'runs' is no unit; use one of run"):
        monthly(MonthlyLoad(a_month={"runs": 1}), COUNTS, published(), SIZE)


def test_counts__that_come_with_the_product__are_of_known_items_and_none_is_free() -> None:
    counts = read_counts()

    assert {unit.name for unit in counts.units} >= {"run", "execution", "step", "chunk", "signal", "deployment"}
    assert all(total(unit_lines(unit, 1, published(), SIZE)) > 0 for unit in counts.units)
