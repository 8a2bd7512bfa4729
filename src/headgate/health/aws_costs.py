"""Costs: what a state store on AWS costs a month, worked out from its load and from prices that have a date.

Every figure is a sum of lines, each a quantity at a price, so that it can be checked by hand; and so can an estimate
that someone else has written down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from headgate.errors import DefinitionError
from headgate.store.model.schema import Billing

HOURS_A_MONTH: Final = 730
SECONDS_A_MONTH: Final = 30 * 86_400
_MILLION: Final = 1_000_000
_WRITE_UNIT_KB: Final = 1
_READ_UNIT_KB: Final = 4

Share = Annotated[float, Meta(ge=0, le=1)]


class Prices(Struct, frozen=True, kw_only=True):
    """What AWS asks in one region, in dollars, as of a month."""

    as_of: str
    write_million: float
    read_million: float
    # Of a write into a table with replicas, in each region.
    replicated_write_million: float
    write_unit_hour: float = 0.00065
    read_unit_hour: float = 0.00013
    storage_gb: float = 0.25
    recovery_gb: float = 0.20
    cache_node_hour: float = 0.206
    transfer_gb: float = 0.01


# us-east-1. In November 2024 requests of on-demand tables became cheaper by half, and replicated ones by two thirds.
PRICES_2024_10: Final = Prices(as_of="2024-10", write_million=1.25, read_million=0.25, replicated_write_million=1.875)
PRICES_2024_11: Final = Prices(as_of="2024-11", write_million=0.625, read_million=0.125, replicated_write_million=0.625)


class Sampling(Struct, frozen=True, kw_only=True):
    """Which share of writes is of failures, and which shares of passes and failures are kept."""

    fail_share: Share
    pass_rate: Share
    fail_rate: Share = 1.0


class Load(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one table is asked in a month. An index that holds whole items costs a write for each write it sees."""

    table: str
    writes: float = 0
    reads: float = 0
    item_kb: float = 1
    indexes: float = 0
    consistent_share: Share = 0
    # Of a transaction: AWS counts each read and write of one twice.
    transacted_share: Share = 0
    regions: int = 1
    billing: Billing = Billing.ON_DEMAND
    # Capacity that is provided whether it is used or not, and what a commitment takes off its price.
    write_units: float = 0
    read_units: float = 0
    reserved_discount: Share = 0
    # Where not all that is offered is written.
    sampling: Sampling | None = None


class Workload(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is paid for: tables, what they keep, and what stands beside them."""

    loads: tuple[Load, ...] = ()
    storage_gb: float = 0
    recovery_gb: float = 0
    cache_nodes: int = 0
    transfer_gb: float = 0


class Line(Struct, frozen=True):
    """A quantity at a price."""

    name: str
    quantity: float
    price: float

    @property
    def dollars(self) -> float:
        """What it comes to."""
        return self.quantity * self.price


class Bill(Struct, frozen=True):
    """The lines of a month, and since when the prices hold."""

    lines: tuple[Line, ...]
    as_of: str

    @property
    def total(self) -> float:
        """The sum of the lines, in dollars."""
        return math.fsum(line.dollars for line in self.lines)


def monthly(estate: Workload, prices: Prices) -> Bill:
    """Return what an estate costs a month. Raises `DefinitionError` for a load that cannot be."""
    lines = [line for load in estate.loads for line in _table_lines(load, prices)]
    regions = max((load.regions for load in estate.loads), default=1)
    lines += [
        Line("storage, GB", estate.storage_gb * regions, prices.storage_gb),
        Line("point-in-time recovery, GB", estate.recovery_gb * regions, prices.recovery_gb),
        Line("cache, node hours", estate.cache_nodes * HOURS_A_MONTH, prices.cache_node_hour),
        Line("transfer, GB", estate.transfer_gb, prices.transfer_gb),
    ]
    return Bill(tuple(line for line in lines if line.quantity), prices.as_of)


def by_month(estate: Workload) -> Workload:
    """Return an estate whose writes and reads are given a second as one of a month."""
    loads = tuple(
        replace(load, writes=load.writes * SECONDS_A_MONTH, reads=load.reads * SECONDS_A_MONTH) for load in estate.loads
    )
    return replace(estate, loads=loads)


def sampled(events: float, *, fail_share: float, pass_rate: float, fail_rate: float = 1.0) -> float:
    """Return how many of so many events are kept, if passes and failures are kept at these rates."""
    for name, share in (("fail_share", fail_share), ("pass_rate", pass_rate), ("fail_rate", fail_rate)):
        if not 0 <= share <= 1:
            raise DefinitionError(f"{name} {share}: it is a share, from 0 to 1")
    return events * (fail_share * fail_rate + (1 - fail_share) * pass_rate)


class StatedCost(Struct, frozen=True, kw_only=True):
    """A line of an estimate that someone wrote down. A price that varies is given as a range."""

    name: str
    quantity: float
    price_low: float
    price_high: float | None = None
    dollars: float


class Discrepancy(Struct, frozen=True):
    """Something in an estimate that does not add up."""

    name: str
    stated: float
    computed: float
    reason: str


def discrepancies(lines: Sequence[StatedCost], stated_total: float, *, tolerance: float = 0.05) -> list[Discrepancy]:
    """Return what is wrong with an estimate: lines that are not quantity times price, and a total that is not a sum."""
    found = [doubt for line in lines if (doubt := _line_doubt(line, tolerance)) is not None]
    total = math.fsum(line.dollars for line in lines)
    if not math.isclose(total, stated_total, rel_tol=tolerance):
        found.append(Discrepancy("total", stated_total, total, "the lines add up to something else"))
    return found


def _line_doubt(line: StatedCost, tolerance: float) -> Discrepancy | None:
    high = line.price_low if line.price_high is None else line.price_high
    least, most = line.quantity * line.price_low, line.quantity * high
    if least * (1 - tolerance) <= line.dollars <= most * (1 + tolerance):
        return None
    nearest = least if line.dollars < least else most
    return Discrepancy(line.name, line.dollars, nearest, "the quantity at its price comes to something else")


def _table_lines(load: Load, prices: Prices) -> list[Line]:
    if load.billing is Billing.PROVISIONED:
        kept = (1 - load.reserved_discount) * HOURS_A_MONTH * load.regions
        return [
            Line(f"{load.table}, write units", load.write_units * kept, prices.write_unit_hour),
            Line(f"{load.table}, read units", load.read_units * kept, prices.read_unit_hour),
        ]
    if load.reserved_discount or load.write_units or load.read_units:
        raise DefinitionError(
            f"table {load.table}: capacity is reserved for provisioned tables only, and this one is on demand"
        )
    return [
        Line(f"{load.table}, million writes", _write_units(load) / _MILLION, _write_price(load, prices)),
        Line(f"{load.table}, million reads", _read_units(load) / _MILLION, prices.read_million),
    ]


def _write_units(load: Load) -> float:
    units = math.ceil(load.item_kb / _WRITE_UNIT_KB) * (1 + load.transacted_share)
    # An index is written by DynamoDB itself, never twice for a transaction.
    copies = math.ceil(load.item_kb / _WRITE_UNIT_KB) * load.indexes
    writes = load.writes
    if load.sampling is not None:
        kept = load.sampling
        writes = sampled(writes, fail_share=kept.fail_share, pass_rate=kept.pass_rate, fail_rate=kept.fail_rate)
    return writes * (units + copies) * load.regions


def _write_price(load: Load, prices: Prices) -> float:
    return prices.write_million if load.regions == 1 else prices.replicated_write_million


def _read_units(load: Load) -> float:
    # A read that may lag costs half; one of a transaction costs twice a consistent one.
    weight = 0.5 + 0.5 * load.consistent_share
    weight = weight * (1 - load.transacted_share) + 2 * load.transacted_share
    return load.reads * math.ceil(load.item_kb / _READ_UNIT_KB) * weight
