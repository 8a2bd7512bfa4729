# ruff: noqa: B018, F841
"""Planted errors: mypy --strict and pyright each refuse every line that ends with `# error`, and no other."""

from __future__ import annotations

from dataclasses import dataclass

import headgate as hg

app = hg.App("planted")


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
total = hg.Query("total", returns=int)
find = hg.Query("find", str, returns=list[str])
limit = hg.Update("limit", int, returns=bool)


@app.activity
def price(order: Order, discount: int = 0) -> int:
    return order.cents - discount


@app.activity(timeout="30s")
async def charge(order: Order) -> Receipt:
    return Receipt(order.id, order.cents)


@app.workflow
async def ship(order: Order) -> list[str]:
    return [order.id]


@app.workflow
async def tick() -> None:
    await hg.sleep("1s")


def text_limit(value: str) -> bool:
    return bool(value)


async def wrong_answer(value: int) -> str:
    return str(value)


@app.workflow(timeout="1d")
async def fulfil(order: Order, tries: int = 3) -> Receipt:
    # Activities.
    await price("o-1")  # error
    await price(order, discount="much")  # error
    await price(order, rebate=3)  # error
    await price()  # error
    await price(order, 1, 2)  # error
    text: str = await price(order)  # error
    (await charge(order)).cents  # error
    await charge.options(timeout="1m")(5)  # error
    price.options(timeouts="1m")  # error
    sum_of = price(order) + 1  # error
    # Children.
    await ship(order.id)  # error
    await ship(order, "x")  # error
    number: int = await ship(order)  # error
    shipped: list[str] = ship(order)  # error
    await ship(order).signal(approved, "yes")  # error
    ship.options(parent_closes="abandon")  # error
    # Waits and messages inside of the workflow.
    hg.sleep("1s")  # error
    hg.wait_condition(lambda: True)  # error
    when: int = await hg.wait_signal(approved)  # error
    hg.on_query(total, lambda: "much")  # error
    hg.on_query(find, lambda: ["a"])  # error
    hg.on_update(limit, text_limit)  # error
    hg.on_update(limit, wrong_answer)  # error
    hg.on_update(limit, lambda value: value > 0, validator=text_limit)  # error
    await hg.signal("other", approved, 5)  # error
    await hg.signal("other", approved)  # error
    hg.on_signal(approved, text_limit)  # error
    if tries > 5:
        fulfil.continue_as_new(order.id)  # error
    return order  # error


def outside(env: hg.testing.Environment) -> None:
    order = Order("o-1", 500)
    # Starts.
    fulfil.start("o-1")  # error
    fulfil.start("o-1", id="o-1")  # error
    fulfil.start()  # error
    fulfil.start(id="o-1")  # error
    fulfil.start(order, "three", id="o-1")  # error
    fulfil.start(order, 3, 4, id="o-1")  # error
    fulfil.start(order, id=5)  # error
    fulfil.start(order, identity="o-1")  # error
    fulfil.start(order, tags={"a": 1})  # error
    fulfil.start(order, attempts=3)  # error
    tick.start(order, id="t")  # error
    fulfil.signal_with_start(approved, "yes", order, id="o-1")  # error
    fulfil.signal_with_start(approved, Receipt("o", 1), "o-1", id="o-1")  # error
    env.start(fulfil, "o-1", id="o-1")  # error
    # Handles.
    handle = fulfil.start(order, id="o-1")
    result: str = handle.result()  # error
    handle.result().cents  # error
    other: hg.Handle[str] = fulfil.handle("o-1")  # error
    fulfil.handle(5)  # error
    handle.signal(approved, "yes")  # error
    handle.signal(approved)  # error
    handle.signal(go, 5)  # error
    handle.signal(total)  # error
    answer: str = handle.query(total)  # error
    handle.query(find, 5)  # error
    handle.query(find)  # error
    handle.query(limit)  # error
    handle.update(limit, "five")  # error
    accepted: str = handle.update(limit, 5)  # error
    handle.update(total)  # error
    handle.stop()  # error
    value: str = env.result(handle)  # error
    # Declarations.
    hg.Signal(5)  # error
    hg.Query("total")  # error
    wrong: hg.Signal[int] = hg.Signal("wrong", str)  # error
    app.activity(timeout="1m", retries=3)  # error
    hg.no_such_name  # error


def over_http(client: hg.Client) -> None:
    order = Order("o-1", 500)
    client.start(fulfil, "o-1")  # error
    client.start(fulfil)  # error
    client.start(fulfil, order, id="o-1")  # error
    client.start("fulfil", order)  # error
    client.signal_with_start(fulfil, approved, "yes", order)  # error
    handle = client.start(fulfil, order)
    result: str = handle.result()  # error
    client.handle("o-1", fulfil).result().cents  # error
    handle.signal(approved, "yes")  # error
    answer: str = handle.query(total)  # error
    handle.update(limit, "five")  # error


async def over_http_async(client: hg.AsyncClient) -> None:
    order = Order("o-1", 500)
    await client.start(fulfil, "o-1")  # error
    client.start(fulfil, order).result()  # error
    handle = await client.start(fulfil, order)
    result: str = await handle.result()  # error
    await handle.signal(approved, "yes")  # error
    answer: int = handle.query(total)  # error
