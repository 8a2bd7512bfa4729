"""The workflows of the shop that the browser tests look at: jobs of pipelines, an order, and code that fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

import headgate as hg
from headgate.durable.engine import stuck as setbacks

# The pauses between attempts at a turn: a second in all, and not most of a minute.
setbacks._FIRST_SECONDS = 0.01  # type: ignore[misc]  # it is final in the program
app = hg.App("shop")


@app.activity
def copy_export(date: str) -> int:
    return 1_000 + len(date)


@app.activity
def reserve_stock(order: str) -> str:
    return f"reserved {order}"


@app.activity(retry=hg.Retry(attempts=3, first="50ms", most="100ms"))
def charge_card(order: str) -> str:
    if hg.activity().attempt < 3:
        raise ConnectionError("card-gateway: connection reset")
    return f"charged {order}"


@app.activity
def ship(order: str) -> str:
    return f"shipped {order}"


@app.workflow
async def load_orders(date: str) -> int:
    return await copy_export(date)


@app.workflow
async def wait_for_people(date: str) -> str:
    """Go on when a person says so: a job that is still running whenever it is looked at."""
    return f"{date} {await hg.wait_signal('go')}"


@app.workflow
async def pack(order: str) -> str:
    await hg.sleep("200ms")
    return f"packed {order}"


@app.workflow
async def fulfil_order(order: str) -> str:
    """Reserve, charge and pack an order, then wait for the carrier."""
    await asyncio.gather(reserve_stock(order), charge_card(order))
    await pack(order)
    await hg.sleep("100ms")
    carrier = await hg.wait_signal("picked-up", timeout="2d")
    await ship(order)
    return f"{order} is with {carrier}"


@app.workflow
async def price_import(supplier: str) -> str:
    """Fail until the file 'prices-are-good' exists."""
    return await read_prices(supplier)


@app.activity(retry=hg.Retry(attempts=1))
def read_prices(supplier: str) -> str:
    if not Path("prices-are-good").exists():
        raise ValueError(f"{supplier}: row 17 has no price")
    return supplier


@app.activity(retry=hg.Retry(attempts=20, first="1h", most="1h"))
def send_to_bank(order: str) -> str:
    hg.log(f"sending {order}")
    raise ConnectionError("bank: closed on weekends")


@app.workflow
async def pay_supplier(order: str) -> str:
    """Wait for the next attempt at a payment whenever it is looked at."""
    hg.log("paying a supplier")
    return await send_to_bank(order)


@app.workflow(check=False)
async def audit_ledger(day: str) -> str:
    """Read a file in workflow code, which is not allowed: the execution is stuck."""
    return f"{day} {len(Path('market_app.py').read_text())}"


@app.on_event("order.refunded", retry=hg.Retry(attempts=1))
def book_refund(event: hg.Event) -> None:
    raise ConnectionError(f"ledger: no answer for {event.subject}")


@app.on_event("order.paid")
def book_payment(event: hg.Event) -> None:
    pass
