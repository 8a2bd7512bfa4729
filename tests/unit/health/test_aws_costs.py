"""Costs, against sums worked out by hand, and an estimate that does not add up."""

from __future__ import annotations

import pytest

from headgate.errors import DefinitionError
from headgate.health.aws_costs import (
    PRICES_2024_10,
    PRICES_2024_11,
    SECONDS_A_MONTH,
    Load,
    Prices,
    StatedCost,
    Workload,
    discrepancies,
    monthly,
    sampled,
)
from headgate.store.model.schema import Billing

BILLION = 1e9


def cost(load: Load, prices: Prices = PRICES_2024_10) -> float:
    return monthly(Workload(loads=(load,)), prices).total


@pytest.mark.parametrize(
    ("load", "old", "new"),
    [
        (Load(table="signals", writes=7.8 * BILLION), 9750, 4875),
        (Load(table="signals", reads=26 * BILLION, consistent_share=1), 6500, 3250),
        # Reads that may lag cost half, of which the usual estimates know nothing.
        (Load(table="signals", reads=26 * BILLION), 3250, 1625),
        (Load(table="registry", reads=13 * BILLION, consistent_share=1), 3250, 1625),
        (Load(table="evidence", writes=130 * BILLION), 162_500, 81_250),
        # One index that holds whole items doubles what writing costs; 2.5 KB are three units.
        (Load(table="evidence", writes=1e6, indexes=1), 2.5, 1.25),
        (Load(table="evidence", writes=1e6, item_kb=2.5), 3.75, 1.875),
        (Load(table="incidents", writes=1e6, transacted_share=1, indexes=4), 7.5, 3.75),
        (Load(table="incidents", reads=1e6, transacted_share=1), 0.5, 0.25),
        (Load(table="signals", reads=1e6, item_kb=9, consistent_share=1), 0.75, 0.375),
        # Two regions, each of which pays for each write; by half more each until November 2024.
        (Load(table="signals", writes=1e6, regions=2), 3.75, 1.25),
        # 2,000 write and 8,000 read units, for 730 hours.
        (Load(table="signals", billing=Billing.PROVISIONED, write_units=2000, read_units=8000), 1708.2, 1708.2),
        (
            Load(table="r", billing=Billing.PROVISIONED, write_units=100, read_units=5000, reserved_discount=0.4),
            0.6 * (47.45 + 474.5),
            0.6 * (47.45 + 474.5),
        ),
    ],
)  # fmt: skip
def test_table__a_load__costs_what_a_sum_by_hand_says(load: Load, old: float, new: float) -> None:
    assert cost(load, PRICES_2024_10) == pytest.approx(old)
    assert cost(load, PRICES_2024_11) == pytest.approx(new)


def test_estate__all_of_it__is_the_sum_of_its_lines() -> None:
    estate = Workload(
        loads=(Load(table="signals", writes=1e6),), storage_gb=500, recovery_gb=500, cache_nodes=3, transfer_gb=1000
    )

    bill = monthly(estate, PRICES_2024_10)

    assert {line.name: round(line.dollars, 2) for line in bill.lines} == {
        "signals, million writes": 1.25,
        "storage, GB": 125.0,
        "point-in-time recovery, GB": 100.0,
        "cache, node hours": 451.14,
        "transfer, GB": 10.0,
    }
    assert bill.total == pytest.approx(687.39)
    assert bill.as_of == "2024-10"


def test_estate__two_regions__keep_everything_twice() -> None:
    estate = Workload(loads=(Load(table="t", writes=0, regions=2),), storage_gb=500)

    assert monthly(estate, PRICES_2024_11).total == 250


def test_sampling__two_percent_failures__takes_evidence_from_162500_to_4843() -> None:
    events = 50_000 * SECONDS_A_MONTH
    assert events == pytest.approx(130 * BILLION, rel=0.005)

    kept = sampled(130 * BILLION, fail_share=0.02, pass_rate=0.01)

    assert kept == pytest.approx(3.874 * BILLION)
    assert cost(Load(table="evidence", writes=kept)) == pytest.approx(4842.5)
    assert cost(Load(table="evidence", writes=kept), PRICES_2024_11) == pytest.approx(2421.25)
    assert cost(Load(table="evidence", writes=kept, indexes=1), PRICES_2024_11) == pytest.approx(4842.5)


@pytest.mark.parametrize("fail_share", [-0.1, 1.1, float("nan")])
def test_sampling__what_is_not_a_share__is_refused(fail_share: float) -> None:
    with pytest.raises(DefinitionError, match="fail_share"):
        sampled(1, fail_share=fail_share, pass_rate=0.01)


def test_reserved__table_on_demand__is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"signals.*on demand"):
        cost(Load(table="signals", writes=1e6, reserved_discount=0.35))


# The estimate of the state store's design.
ESTIMATE = [
    StatedCost(name="signal writes", quantity=7800, price_low=1.25, dollars=9750),
    StatedCost(name="signal reads", quantity=26_000, price_low=0.25, dollars=6500),
    StatedCost(name="incidents", quantity=260, price_low=0.25, price_high=1.25, dollars=325),
    StatedCost(name="registry", quantity=13_000, price_low=0.25, price_high=1.25, dollars=1000),
    StatedCost(name="evidence", quantity=130_000, price_low=1.25, dollars=162_500),
    StatedCost(name="lineage", quantity=2600, price_low=0.25, price_high=1.25, dollars=1000),
    StatedCost(name="storage", quantity=500, price_low=0.25, dollars=125),
    StatedCost(name="recovery", quantity=500, price_low=0.20, dollars=100),
    StatedCost(name="cache", quantity=3 * 730, price_low=0.206, dollars=150),
    StatedCost(name="transfer", quantity=1000, price_low=0.01, dollars=10),
]


def test_doubts__estimate_with_a_wrong_total__says_what_it_comes_to() -> None:
    found = {doubt.name: (doubt.stated, round(doubt.computed)) for doubt in discrepancies(ESTIMATE, 3000)}

    assert found == {"registry": (1000, 3250), "cache": (150, 451), "total": (3000, 181_460)}


def test_doubts__without_evidence__is_still_six_times_the_total() -> None:
    total = discrepancies([line for line in ESTIMATE if line.name != "evidence"], 3000)[-1]

    assert (total.name, total.computed) == ("total", 18_960)


def test_doubts__estimate_that_adds_up__has_none() -> None:
    sound = [line for line in ESTIMATE if line.name not in ("registry", "cache")]

    assert discrepancies(sound, 180_300) == []
