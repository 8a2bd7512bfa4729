"""`headgate aws cost`: prices a run, a step, a chunk, a signal and a month of load; checks a stated estimate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headgate.cli.input_files import read_document
from headgate.cli.output import show_table
from headgate.cli.session import Json, echo_json
from headgate.errors import InvalidPayloadError
from headgate.exit_codes import ExitCode

if TYPE_CHECKING:
    from headgate.deployment.costs.bill import BillLine, FunctionSize, MonthlyLoad, UnitCounts
    from headgate.deployment.costs.prices import PriceTable
    from headgate.health.aws_costs import Discrepancy

_MILLION: Final = 1_000_000


def cost(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]", help="Load of a month in JSON or TOML: a_month, a_second, storage; and stated lines."
        ),
    ] = None,
    prices: Annotated[
        str | None, typer.Option(metavar="FILE", help="Prices in TOML that replace those of us-east-1.")
    ] = None,
    function_ms: Annotated[float, typer.Option(min=0, help="Assumed mean duration of an invocation.")] = 100.0,
    function_memory_mb: Annotated[float, typer.Option(min=0, help="Memory of a function.")] = 512.0,
    show_prices: Annotated[bool, typer.Option("--show-prices", help="Print the prices with their sources.")] = False,
    as_json: Json = False,
) -> None:
    """Price a million runs, steps, chunks and signals on AWS, or a month of the load in a file.

    Requests were measured with the product's own code; prices are dated and have a source, and those that were not
    checked since are named. The duration of functions is an assumption. An estimate in the file (stated, stated_total)
    is checked; the exit code is 1 if it is wrong.
    """
    from headgate.deployment.costs.bill import FunctionSize, read_counts
    from headgate.deployment.costs.prices import published, replaced

    table = published() if prices is None else replaced(read_document(prices, "prices"))
    size = FunctionSize(duration_ms=function_ms, memory_mb=function_memory_mb)
    if show_prices:
        _show_prices(table, as_json=as_json)
    elif file is None:
        _show_units(read_counts(), table, size, as_json=as_json)
    else:
        _show_month(file, read_counts(), table, size, as_json=as_json)


def _show_prices(table: PriceTable, *, as_json: bool) -> None:
    if as_json:
        echo_json(table)
        return
    rows = [
        (item, f"{each.dollars:g}", f"{each.per:,.0f}", each.confirmed or "-", each.unit, each.source)
        for item, each in table.prices.items()
    ]
    show_table(("ITEM", "$", "FOR", "CONFIRMED", "UNIT", "SOURCE"), rows, nothing="")
    typer.echo(_dated(table))


def _show_units(counts: UnitCounts, table: PriceTable, size: FunctionSize, *, as_json: bool) -> None:
    from headgate.deployment.costs.bill import STANDING, total, unit_lines

    priced = [(unit, unit_lines(unit, 1, table, size)) for unit in counts.units]
    if as_json:
        echo_json(
            {
                "as_of": table.as_of,
                "region": table.region,
                "measured_by": counts.measured_by,
                "units": [
                    {"name": unit.name, "title": unit.title, "dollars": total(lines), "lines": _json_lines(lines)}
                    for unit, lines in priced
                ],
            }
        )
        return
    rows = [
        (unit.name, f"{_MILLION * total(lines):,.2f}", _most(lines), unit.title)
        for unit, lines in priced
        if unit.name != STANDING
    ]
    show_table(("UNIT", "$ A MILLION", "MOST OF IT", "WHAT"), rows, nothing="")
    for unit, lines in priced:
        if unit.name == STANDING:
            typer.echo(f"{unit.title}: ${total(lines):,.2f}")
    typer.echo(_dated(table))
    typer.echo(f"requests measured by {counts.measured_by}; functions of {size.duration_ms:g} ms are an assumption")


def _show_month(file: str, counts: UnitCounts, table: PriceTable, size: FunctionSize, *, as_json: bool) -> None:
    from headgate.deployment.costs.bill import monthly, total

    load, doubts = _parsed(file)
    lines = monthly(load, counts, table, size)
    if as_json:
        answer = {"as_of": table.as_of, "region": table.region, "lines": _json_lines(lines), "total": total(lines)}
        echo_json({**answer, "doubts": doubts})
    else:
        rows = [
            (each.unit, str(each.item), f"{each.quantity:,.0f}", f"{each.price:.3g}", f"{each.dollars:,.2f}")
            for each in lines
        ]
        rows += [(f"all of {unit}", "", "", "", f"{dollars:,.2f}") for unit, dollars in _by_unit(lines).items()]
        rows.append(("total", "", "", "", f"{total(lines):,.2f}"))
        if lines:
            show_table(("UNIT", "ITEM", "QUANTITY", "PRICE $", "A MONTH $"), rows, nothing="")
            typer.echo(_dated(table))
        for doubt in doubts:
            typer.echo(
                f"doubt: {doubt.name}: stated {doubt.stated:,.2f}, computed {doubt.computed:,.2f}: {doubt.reason}"
            )
    if doubts:
        raise typer.Exit(ExitCode.FAILED)


def _parsed(file: str) -> tuple[MonthlyLoad, Sequence[Discrepancy]]:
    import msgspec

    from headgate import typed_decode
    from headgate.deployment.costs.bill import MonthlyLoad
    from headgate.health.aws_costs import StatedCost, discrepancies

    document = read_document(file, "load")
    stated, stated_total = document.pop("stated", []), document.pop("stated_total", None)
    try:
        load = typed_decode.convert(document, MonthlyLoad)
        estimate: list[StatedCost] = typed_decode.convert(stated, list[StatedCost])
        whole = None if stated_total is None else typed_decode.convert(stated_total, float)
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(f"load {file}: {exc}") from exc
    if not estimate:
        return load, []
    return load, discrepancies(estimate, sum(each.dollars for each in estimate) if whole is None else whole)


def _by_unit(lines: Sequence[BillLine]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for line in lines:
        sums[line.unit] += line.dollars
    return dict(sums)


def _most(lines: Sequence[BillLine]) -> str:
    """Return the item that costs most, and its share."""
    whole = sum(line.dollars for line in lines)
    largest = max(lines, key=lambda line: line.dollars)
    return f"{largest.item} {largest.dollars / whole:.0%}"


def _json_lines(lines: Sequence[BillLine]) -> list[dict[str, Any]]:
    import msgspec

    return [{**msgspec.to_builtins(line), "dollars": line.dollars} for line in lines]


def _dated(table: PriceTable) -> str:
    text = f"prices of {table.region} as of {table.as_of}; sources: headgate aws cost --show-prices"
    unconfirmed = ", ".join(table.unconfirmed)
    return f"{text}\nnot checked since {table.as_of}: {unconfirmed}" if unconfirmed else text
