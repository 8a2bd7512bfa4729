"""An app that a server runs and that programs call over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import headgate as hg

app = hg.App("desk")


@dataclass
class Order:
    id: str
    cents: int


@dataclass
class Receipt:
    order: str
    total: int


class CardDeclined(Exception):
    pass


paid = hg.Signal("paid", int)
total = hg.Query("total", returns=int)
raise_by = hg.Update("raise_by", int, returns=int)


@app.activity(timeout="1h")
def ask_bank(order: Order) -> str:
    written = Path(f"{order.id}.new")
    written.write_text(hg.activity().token)
    written.rename(order.id)
    answer: str = hg.complete_later()
    return answer


@app.workflow
async def sell(order: Order) -> Receipt:
    """Wait for a payment that covers the price, which updates may raise."""
    price, received = order.cents, 0

    def by(cents: int) -> int:
        nonlocal price
        price += cents
        return price

    def check(cents: int) -> None:
        if cents <= 0:
            raise ValueError("raise_by: from 1")

    def missing() -> int:
        if order.id == "unknown":
            raise LookupError(order.id)
        return price - received

    hg.on_update(raise_by, by, validator=check)
    hg.on_query(total, missing)
    while received < price:
        received += await hg.wait_signal(paid)
    if order.id == "declined":
        raise CardDeclined(order.id)
    return Receipt(order.id, received)


@app.workflow
async def bank(order: Order) -> str:
    return await ask_bank(order)


@app.workflow
async def patient_bank(order: Order) -> str:
    return await ask_bank.options(cancellation="wait")(order)


@app.activity
def tenant_of_activity() -> str:
    return hg.activity().headers["tenant"]


@app.workflow
async def tenant() -> list[str]:
    return [hg.info().headers["tenant"], await tenant_of_activity()]


@app.workflow
async def nap(seconds: float) -> str:
    await hg.sleep(seconds)
    return "rested"
