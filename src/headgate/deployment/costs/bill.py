"""The bill of a load: units of work, each with measured requests, at the prices of a table.

Every figure is a sum of lines, each a quantity times a price, so that it can be checked by hand.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from importlib import resources
from typing import Annotated, Final

from msgspec import Meta, Struct

from headgate import typed_decode
from headgate.deployment.costs.prices import Item, PriceTable
from headgate.errors import InvalidPayloadError
from headgate.health.aws_costs import SECONDS_A_MONTH

_FILE: Final = "unit_counts.json"
STANDING: Final = "deployment"
Amount = Annotated[float, Meta(ge=0)]


class Unit(Struct, frozen=True, kw_only=True):
    """A unit of work, and what AWS bills for one: `quantities` as measured, without the time of functions."""

    name: str
    title: str
    quantities: Mapping[Item, float]


class UnitCounts(Struct, frozen=True, kw_only=True):
    """All units, and the command that has measured them."""

    measured_by: str
    units: tuple[Unit, ...]

    def unit(self, name: str) -> Unit:
        """Return the unit of a name. Raises `InvalidPayloadError`."""
        for unit in self.units:
            if unit.name == name:
                return unit
        known = ", ".join(unit.name for unit in self.units)
        raise InvalidPayloadError(f"load: {name!r} is no unit; use one of {known}")


class FunctionSize(Struct, frozen=True, kw_only=True):
    """The mean duration and the memory of an invocation. The duration is an assumption: give your own."""

    duration_ms: Amount = 100.0
    memory_mb: Amount = 512.0

    @property
    def gb_seconds(self) -> float:
        return self.duration_ms / 1000 * self.memory_mb / 1024


class MonthlyLoad(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The load of a month: units by name, a month or a second, and what is stored."""

    a_month: Mapping[str, Amount] = {}
    a_second: Mapping[str, Amount] = {}
    dynamodb_storage_gb: Amount = 0
    dynamodb_recovery_gb: Amount = 0
    s3_storage_gb: Amount = 0
    log_gb: Amount = 0


class BillLine(Struct, frozen=True):
    """A quantity of an item at a price. `unit` is what it is for."""

    unit: str
    item: Item
    quantity: float
    price: float

    @property
    def dollars(self) -> float:
        return self.quantity * self.price


def read_counts() -> UnitCounts:
    """Return the measured counts that come with Headgate."""
    return typed_decode.from_json(resources.files(__package__).joinpath(_FILE).read_bytes(), UnitCounts)


def unit_lines(unit: Unit, times: float, table: PriceTable, size: FunctionSize) -> list[BillLine]:
    """Return the lines of so many units."""
    quantities = dict(unit.quantities)
    invocations = quantities.get(Item.INVOCATIONS, 0.0)
    if invocations:
        quantities[Item.GB_SECONDS] = invocations * size.gb_seconds
    return [
        BillLine(unit.name, item, times * quantity, table.prices[item].of_one)
        for item, quantity in quantities.items()
        if quantity
    ]


def monthly(load: MonthlyLoad, counts: UnitCounts, table: PriceTable, size: FunctionSize) -> list[BillLine]:
    """Return the lines of a month. Raises `InvalidPayloadError` for a unit that does not exist."""
    times: dict[str, float] = defaultdict(float)
    for name, number in load.a_month.items():
        times[name] += number
    for name, rate in load.a_second.items():
        times[name] += rate * SECONDS_A_MONTH
    lines = [line for name, number in times.items() for line in unit_lines(counts.unit(name), number, table, size)]
    stored = {
        Item.DYNAMODB_STORAGE_GB: load.dynamodb_storage_gb,
        Item.DYNAMODB_RECOVERY_GB: load.dynamodb_recovery_gb,
        Item.S3_STORAGE_GB: load.s3_storage_gb,
        Item.LOG_GB: load.log_gb,
    }
    return lines + [
        BillLine("storage", item, amount, table.prices[item].of_one) for item, amount in stored.items() if amount
    ]


def total(lines: list[BillLine]) -> float:
    """Return the sum of lines in dollars."""
    return math.fsum(line.dollars for line in lines)
