"""Values of every supported type arrive as annotated, through every way that values take."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest

import headgate as hg
from headgate.durable.model import payload
from headgate.errors import DefinitionError, InvalidPayloadError
from tests.scenarios.conftest import OpenEnvironment

T = TypeVar("T")


class Money:
    """A class of a library: neither a dataclass nor a model."""

    def __init__(self, cents: int, currency: str) -> None:
        self.cents, self.currency = cents, currency

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and (self.cents, self.currency) == (other.cents, other.currency)

    def __hash__(self) -> int:
        return hash(self.cents)

    @classmethod
    def parse(cls, text: str) -> Money:
        cents, currency = text.split()
        return cls(int(cents), currency)


hg.register_type(Money, to_json=lambda money: f"{money.cents} {money.currency}", from_json=Money.parse)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Line(pydantic.BaseModel):
    sku: str
    count: int = 1


class Invoice(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, frozen=True)

    number: Annotated[int, pydantic.Field(gt=0, alias="invoiceNumber")]
    due: date
    lines: tuple[Line, ...]
    tags: frozenset[str] = frozenset()
    total: Decimal = Decimal(0)


class Refund(pydantic.BaseModel):
    reason: str


class Page(pydantic.BaseModel, Generic[T]):
    items: list[T]


class Point(msgspec.Struct, frozen=True, array_like=True):
    """A point."""

    x: int
    y: int


@dataclass(frozen=True)
class Box(Generic[T]):
    content: T
    colour: Colour = Colour.RED


@dataclass
class Everything:
    """One field of each kind."""

    money: Money
    moneys: dict[str, list[Money | None]]
    invoice: Invoice
    page: Page[Line]
    box: Box[Point]
    when: datetime
    within: timedelta
    id: UUID
    price: Decimal
    names: frozenset[str]
    pair: tuple[int, Colour]
    raw: bytes
    either: int | list[Point] | None = None


INVOICE = Invoice.model_validate(
    {
        "invoiceNumber": 7,
        "due": date(2026, 1, 2),
        "lines": (Line(sku="a"), Line(sku="b", count=2)),
        "tags": frozenset({"x", "y", "zebra", "ant"}),
        "total": Decimal("1.10"),
    }
)
VALUE = Everything(
    money=Money(500, "EUR"),
    moneys={"a": [Money(1, "USD"), None]},
    invoice=INVOICE,
    page=Page[Line](items=[Line(sku="c")]),
    box=Box(Point(1, 2), Colour.BLUE),
    when=datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
    within=timedelta(hours=1),
    id=UUID(int=5),
    price=Decimal("0.10"),
    names=frozenset({"b", "a"}),
    pair=(1, Colour.RED),
    raw=b"\x00\xff",
    either=[Point(0, 0)],
)

app = hg.App("payload-types")
sent = hg.Signal("sent", Everything)
asked = hg.Query("asked", Everything, returns=Everything)
changed = hg.Update("changed", Everything, returns=Everything)


@app.activity
def same(value: Everything) -> Everything:
    assert value == VALUE
    return value


@app.activity
def bill(subject: Invoice | Refund, extra: Money) -> list[Invoice | Refund]:
    assert extra == Money(1, "EUR")
    return [subject, Refund(reason="late")]


@app.activity(isolate=True)
def same_elsewhere(value: Invoice) -> Invoice:
    assert value == INVOICE
    return value


@app.workflow
async def child(value: Everything) -> Everything:
    return await same(value)


@app.workflow
async def all_ways(value: Everything, run: int = 1) -> Everything:
    assert value == VALUE
    hg.on_query(asked, lambda given: given)
    hg.on_update(changed, lambda given: given)
    assert await child(value) == VALUE
    assert hg.side_effect(lambda: value, Everything) == VALUE
    answers = await bill(INVOICE, Money(1, "EUR"))
    assert answers == [INVOICE, Refund(reason="late")]
    assert await hg.wait_signal(sent) == VALUE
    if run == 1:
        hg.continue_as_new(value, 2)
    return value


@app.workflow
async def isolated(value: Invoice) -> Invoice:
    return await same_elsewhere(value)


def test_payload__every_supported_type_and_every_way__arrives_as_annotated(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(all_ways, VALUE, id="all")
    assert handle.query(asked, VALUE) == VALUE
    assert handle.update(changed, VALUE) == VALUE
    handle.signal(sent, VALUE)
    env.run()
    handle.signal(sent, VALUE)

    assert env.result(handle) == VALUE
    assert all_ways.handle("all").result() == VALUE


def test_payload__model_and_isolated_activity__arrives_as_annotated(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(isolated, INVOICE)) == INVOICE


def test_model__sets__are_encoded_in_one_order() -> None:
    stored = bytes(payload.encode([INVOICE], what="it"))
    assert b'"tags":["ant","x","y","zebra"]' in stored
    assert b'"invoiceNumber":7' in stored


def test_model__value_that_does_not_fit__is_refused_with_the_field(open_env: OpenEnvironment) -> None:
    open_env(app)
    with pytest.raises(
        InvalidPayloadError, match=r"isolated: parameter 'value': invoiceNumber: Input .* greater than 0$"
    ):
        isolated.start({"invoiceNumber": -1, "due": "2026-01-02", "lines": []})  # type: ignore[call-overload]


def test_registered_type__that_does_not_fit__is_refused_with_the_error() -> None:
    with pytest.raises(InvalidPayloadError, match=r"it: Money from 'none': ValueError: .* - at `\$\[0\]`"):
        payload.decode(msgspec.Raw(b'["none"]'), list[Money], what="it")


def test_registered_type__to_json_with_nan_or_of_a_failing_class__is_refused() -> None:
    class Odd:
        pass

    hg.register_type(Odd, to_json=lambda _: float("nan"), from_json=lambda _: Odd())
    with pytest.raises(InvalidPayloadError, match="not a number in JSON"):
        payload.encode({"a": Odd()}, what="it")


def test_register_type__too_late_or_without_effect__is_refused() -> None:
    class Late:
        pass

    def uses(value: list[Late]) -> Late: ...  # type: ignore[empty-body]

    payload.Signature.of(uses)
    # Annotations of a nested class cannot be resolved, so that it is named here.
    payload.decode(payload.NULL, Late | None, what="it")
    convert: Any = str
    with pytest.raises(DefinitionError, match=r"type .*Late: a workflow, activity or message that uses it is declared"):
        hg.register_type(Late, to_json=convert, from_json=convert)
    with pytest.raises(DefinitionError, match="it is encoded by itself"):
        hg.register_type(Point, to_json=convert, from_json=convert)
    with pytest.raises(DefinitionError, match="give a class"):
        hg.register_type("Money", to_json=convert, from_json=convert)  # type: ignore[arg-type]
