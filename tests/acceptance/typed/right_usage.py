"""Right usage of the SDK: mypy --strict and pyright accept every line."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import assert_type

import headgate as hg

app = hg.App("typed")


@dataclass
class Order:
    id: str
    cents: int


@dataclass
class Receipt:
    order: str
    total: int


approved = hg.Signal("approved", Receipt)
go = hg.Signal("go")
maybe: hg.Signal[int | None] = hg.Signal("maybe", int | None)
total = hg.Query("total", returns=int)
find = hg.Query("find", str, returns=list[str])
limit = hg.Update("limit", int, returns=bool)
reset = hg.Update("reset")


@app.activity
def price(order: Order, discount: int = 0) -> int:
    return order.cents - discount


@app.activity(timeout="30s", retry=hg.Retry(attempts=2))
async def charge(order: Order) -> Receipt:
    begin = hg.activity().heartbeat_details(int)
    assert_type(begin, int | None)
    hg.heartbeat(5)
    return Receipt(order.id, order.cents)


@app.workflow
async def ship(order: Order, *, fast: bool = False) -> list[str]:
    await hg.wait_signal(go)
    return [order.id] if fast else []


@app.workflow
async def tick() -> None:
    await hg.sleep("1s")


@app.workflow(timeout="1d")
async def fulfil(order: Order, tries: int = 3) -> Receipt:
    names: list[str] = []

    def set_limit(value: int) -> bool:
        return value > 0

    async def do_reset() -> None:
        await hg.sleep(1)

    hg.on_query(total, lambda: order.cents)
    hg.on_query(find, lambda prefix: [name for name in names if name.startswith(prefix)])
    hg.on_update(limit, set_limit, validator=lambda value: value > 0)
    hg.on_update(reset, do_reset)
    hg.on_signal(approved, lambda receipt: names.append(receipt.order))
    hg.on_signal("old", names.append)
    cents = await price(order, discount=3)
    assert_type(cents, int)
    receipt = await charge.options(timeout="1m")(order)
    assert_type(receipt, Receipt)
    child = ship.options(id="child", parent_close="abandon")(order, fast=True)
    await child.signal(go)
    await child.signal("go", 5)
    assert_type(await child, list[str])
    both = await asyncio.gather(price(order), ship(order))
    assert_type(both, tuple[int, list[str]])
    approval = await hg.wait_signal(approved, timeout="1d")
    assert_type(approval, Receipt)
    assert_type(await hg.wait_signal("n", type=int), int)
    assert_type(await hg.wait_signal(maybe), int | None)
    await hg.signal("other", approved, receipt)
    await hg.signal("other", go)
    if tries:
        fulfil.continue_as_new(order, tries - 1)
    return Receipt(approval.order, cents)


def outside(env: hg.testing.Environment) -> None:
    order = Order("o-1", 500)
    handle = fulfil.start(order, id="o-1", tags={"a": "b"}, reuse=hg.Reuse.CLOSED, timeout="1h", delay=5, memo={"a": 1})
    assert_type(handle, hg.Handle[Receipt])
    assert_type(handle.result(5), Receipt)
    assert_type(fulfil.start(order, 4), hg.Handle[Receipt])
    assert_type(fulfil.start(order, 4, id="x"), hg.Handle[Receipt])
    assert_type(fulfil.start(order=order, tries=1), hg.Handle[Receipt])
    assert_type(fulfil.options(id="o-2", reuse="closed").start(order=order), hg.Handle[Receipt])
    assert_type(fulfil.handle("o-1").result(), Receipt)
    assert_type(tick.start(id="t"), hg.Handle[None])
    assert_type(ship.start(order, fast=True).result(), list[str])
    assert_type(fulfil.signal_with_start(approved, Receipt("o", 1), order, id="o-1"), hg.Handle[Receipt])
    assert_type(fulfil.options(id="o-1").signal_with_start(approved, Receipt("o", 1), order), hg.Handle[Receipt])
    fulfil.signal_with_start("approved", {"order": "o"}, order, id="o-1")
    handle.signal(approved, Receipt("o-1", 5), id="once")
    handle.signal(go)
    handle.signal("go", {"any": "thing"}, id="x")
    assert_type(handle.query(total), int)
    assert_type(handle.query(find, "a", timeout_seconds=2), list[str])
    assert_type(handle.query("total", returns=int), int)
    assert_type(handle.update(limit, 5), bool)
    assert_type(handle.update(reset), None)
    assert_type(handle.update("limit", 5, returns=bool), bool)
    handle.cancel("no longer needed")
    bare: hg.Handle = handle
    assert_type(env.start(fulfil, order), hg.Handle[Receipt])
    assert_type(env.start(fulfil, order, 2, id="o-3"), hg.Handle[Receipt])
    assert_type(env.result(handle), Receipt)
    print(bare.id)


def over_http(client: hg.Client) -> None:
    order = Order("o-1", 500)
    handle = client.start(fulfil.options(id="o-1", reuse="closed"), order, tries=2)
    assert_type(handle, hg.RemoteHandle[Receipt])
    assert_type(handle.result(5), Receipt)
    assert_type(client.handle("o-1", fulfil).result(), Receipt)
    assert_type(client.signal_with_start(fulfil, approved, Receipt("o", 1), order).result(), Receipt)
    handle.signal(approved, Receipt("o", 1), id="once")
    handle.signal(go)
    assert_type(handle.query(find, "a"), list[str])
    assert_type(handle.query("total", returns=int), int)
    assert_type(handle.update(limit, 5), bool)
    client.start_by_name("fulfil", {"order": {"id": "o", "cents": 1}}, id="o-2").cancel()


async def over_http_async(client: hg.AsyncClient) -> None:
    handle = await client.start(fulfil, Order("o-1", 500))
    assert_type(handle, hg.AsyncRemoteHandle[Receipt])
    assert_type(await handle.result(), Receipt)
    assert_type(await handle.query(total), int)
    assert_type([each.id async for each in client.executions()], list[str])
