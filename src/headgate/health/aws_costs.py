"""AWS costs: the monthly cost of a state store on AWS, from its load and from dated prices.

Every figure is a sum of lines, each a quantity times a price, so that it can be checked by hand. The same arithmetic
checks a given estimate.
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
    """AWS prices of one region in dollars, as of a month."""

    as_of: str
    write_million: float
    read_million: float
    # Price of a write to a replicated table, in each region.
    replicated_write_million: float
    write_unit_hour: float = 0.00065
    read_unit_hour: float = 0.00013
    storage_gb: float = 0.25
    recovery_gb: float = 0.20
    cache_node_hour: float = 0.206
    transfer_gb: float = 0.01


# us-east-1. In November 2024 on-demand requests became 50% cheaper, and replicated writes by two thirds.
PRICES_2024_10: Final = Prices(as_of="2024-10", write_million=1.25, read_million=0.25, replicated_write_million=1.875)
PRICES_2024_11: Final = Prices(as_of="2024-11", write_million=0.625, read_million=0.125, replicated_write_million=0.625)


class Sampling(Struct, frozen=True, kw_only=True):
    """The share of failures among writes, and the sampling rates of passes and failures."""

    fail_share: Share
    pass_rate: Share
    fail_rate: Share = 1.0


class Load(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The monthly load of a table. An index that projects whole items costs one write for each write to the table."""

    table: str
    writes: float = 0
    reads: float = 0
    item_kb: float = 1
    indexes: float = 0
    consistent_share: Share = 0
    # Share of requests in transactions, which AWS bills twice.
    transacted_share: Share = 0
    regions: int = 1
    billing: Billing = Billing.ON_DEMAND
    # Provisioned capacity, and the discount for reserving it.
    write_units: float = 0
    read_units: float = 0
    reserved_discount: Share = 0
    # Set if only a sample of the offered items is written.
    sampling: Sampling | None = None


class Workload(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that is billed: tables, storage, and the services beside them."""

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
        """The cost of the line."""
        return self.quantity * self.price


class Bill(Struct, frozen=True):
    """The lines of a month, and the date of the prices."""

    lines: tuple[Line, ...]
    as_of: str

    @property
    def total(self) -> float:
        """The sum of the lines, in dollars."""
        return math.fsum(line.dollars for line in self.lines)


def monthly(workload: Workload, prices: Prices) -> Bill:
    """Return the monthly cost of a workload. Raises `DefinitionError` for an invalid load."""
    lines = [line for load in workload.loads for line in _table_lines(load, prices)]
    regions = max((load.regions for load in workload.loads), default=1)
    lines += [
        Line("storage, GB", workload.storage_gb * regions, prices.storage_gb),
        Line("point-in-time recovery, GB", workload.recovery_gb * regions, prices.recovery_gb),
        Line("cache, node hours", workload.cache_nodes * HOURS_A_MONTH, prices.cache_node_hour),
        Line("transfer, GB", workload.transfer_gb, prices.transfer_gb),
    ]
    return Bill(tuple(line for line in lines if line.quantity), prices.as_of)


def by_month(workload: Workload) -> Workload:
    """Return the monthly workload of one whose loads are per second."""
    loads = tuple(
        replace(load, writes=load.writes * SECONDS_A_MONTH, reads=load.reads * SECONDS_A_MONTH)
        for load in workload.loads
    )
    return replace(workload, loads=loads)


def sampled(events: float, *, fail_share: float, pass_rate: float, fail_rate: float = 1.0) -> float:
    """Return how many events are stored if passes and failures are sampled at these rates."""
    for name, share in (("fail_share", fail_share), ("pass_rate", pass_rate), ("fail_rate", fail_rate)):
        if not 0 <= share <= 1:
            raise DefinitionError(f"{name} {share}: give a share from 0 to 1")
    return events * (fail_share * fail_rate + (1 - fail_share) * pass_rate)


class StatedCost(Struct, frozen=True, kw_only=True):
    """A line of an estimate to check. A price that varies is a range."""

    name: str
    quantity: float
    price_low: float
    price_high: float | None = None
    dollars: float


class Discrepancy(Struct, frozen=True):
    """A number of an estimate that does not add up."""

    name: str
    stated: float
    computed: float
    reason: str


def discrepancies(lines: Sequence[StatedCost], stated_total: float, *, tolerance: float = 0.05) -> list[Discrepancy]:
    """Return the errors of an estimate: lines that are not quantity times price, and a wrong total."""
    found = [doubt for line in lines if (doubt := _line_doubt(line, tolerance)) is not None]
    total = math.fsum(line.dollars for line in lines)
    if not math.isclose(total, stated_total, rel_tol=tolerance):
        found.append(Discrepancy("total", stated_total, total, "not the sum of the lines"))
    return found


def _line_doubt(line: StatedCost, tolerance: float) -> Discrepancy | None:
    high = line.price_low if line.price_high is None else line.price_high
    least, most = line.quantity * line.price_low, line.quantity * high
    if least * (1 - tolerance) <= line.dollars <= most * (1 + tolerance):
        return None
    nearest = least if line.dollars < least else most
    return Discrepancy(line.name, line.dollars, nearest, "not the quantity times the price")


def _table_lines(load: Load, prices: Prices) -> list[Line]:
    if load.billing is Billing.PROVISIONED:
        kept = (1 - load.reserved_discount) * HOURS_A_MONTH * load.regions
        return [
            Line(f"{load.table}, write units", load.write_units * kept, prices.write_unit_hour),
            Line(f"{load.table}, read units", load.read_units * kept, prices.read_unit_hour),
        ]
    if load.reserved_discount or load.write_units or load.read_units:
        raise DefinitionError(
            f"table {load.table}: only provisioned tables have reserved capacity, and this one is on demand"
        )
    return [
        Line(f"{load.table}, million writes", _write_units(load) / _MILLION, _write_price(load, prices)),
        Line(f"{load.table}, million reads", _read_units(load) / _MILLION, prices.read_million),
    ]


def _write_units(load: Load) -> float:
    units = math.ceil(load.item_kb / _WRITE_UNIT_KB) * (1 + load.transacted_share)
    # DynamoDB bills an index write once, also within a transaction.
    copies = math.ceil(load.item_kb / _WRITE_UNIT_KB) * load.indexes
    writes = load.writes
    if load.sampling is not None:
        kept = load.sampling
        writes = sampled(writes, fail_share=kept.fail_share, pass_rate=kept.pass_rate, fail_rate=kept.fail_rate)
    return writes * (units + copies) * load.regions


def _write_price(load: Load, prices: Prices) -> float:
    return prices.write_million if load.regions == 1 else prices.replicated_write_million


def _read_units(load: Load) -> float:
    # An eventually consistent read costs half; a transactional one twice a consistent one.
    weight = 0.5 + 0.5 * load.consistent_share
    weight = weight * (1 - load.transacted_share) + 2 * load.transacted_share
    return load.reads * math.ceil(load.item_kb / _READ_UNIT_KB) * weight
