"""Input specs: a process without the code refuses the input that the code would refuse, and names the field."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, Literal

import msgspec
import pytest
from msgspec import Raw

from headgate.durable.model.input_specs import input_spec, signature_of
from headgate.durable.model.payload import Signature
from headgate.errors import InvalidPayloadError


class Size(enum.Enum):
    """A choice."""

    SMALL = "small"
    LARGE = "large"


@dataclasses.dataclass
class Line:
    """A part of an order."""

    item: str
    count: int = 1


class Order(msgspec.Struct):
    """An order, with names that are no attributes."""

    id: str
    lines: list[Line] = []
    size: Size = Size.SMALL
    parent: Order | None = None
    note: str | None = msgspec.field(default=None, name="a-note")


class Opaque:
    """A class without a JSON form."""


def one(order: Order) -> None: ...
def several(id: str, count: int = 1, *, rate: float = 0.5) -> None: ...
def nothing() -> None: ...
def anything(value: Any) -> None: ...
def opaque(value: Opaque) -> None: ...
def pairs(value: dict[str, tuple[int, str]]) -> None: ...
def either(value: int | str | Literal["x"]) -> None: ...
def two_structs(value: Line | Order) -> None: ...


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (one, '{"id": "a"}'),
        (one, '{"id": "a", "lines": [{"item": "b"}, {"item": "c", "count": 2}], "size": "large", "a-note": "n"}'),
        (one, '{"id": "a", "parent": {"id": "b", "parent": null}}'),
        (several, '{"id": "a"}'),
        (several, '{"id": "a", "count": 2, "rate": 1}'),
        (nothing, "null"),
        (anything, '[1, {"x": null}]'),
        (opaque, '{"x": 1}'),
        (pairs, '{"a": [1, "b"]}'),
        (either, "5"),
        (either, '"y"'),
        (two_structs, '{"item": "b"}'),
    ],
)
def test_input__valid_for_the_code__passes(function: Any, value: str) -> None:
    signature_of(input_spec(Signature.of(function))).unpack(Raw(value.encode()), what="input")


@pytest.mark.parametrize(
    ("function", "value", "fact"),
    [
        (one, '{"id": 5}', r"parameter 'order': Expected `str`, got `int` - at `\$.id`"),
        (one, "{}", "missing required field `id`"),
        (one, '{"id": "a", "lines": [{"item": "b", "count": "2"}]}', r"\$.lines\[0\].count"),
        (one, '{"id": "a", "size": "huge"}', r"Invalid enum value 'huge' - at `\$.size`"),
        (several, '{"count": 1}', "missing parameter 'id'"),
        (several, '{"id": "a", "rates": 1}', "unknown parameter 'rates'"),
        (nothing, "5", "nothing is taken"),
        (pairs, '{"a": [1]}', "parameter 'value'"),
        (either, "[]", "parameter 'value'"),
    ],
)
def test_input__refused_by_the_code__is_refused_by_the_spec_naming_the_field(
    function: Any, value: str, fact: str
) -> None:
    with pytest.raises(InvalidPayloadError, match=fact):
        signature_of(input_spec(Signature.of(function))).unpack(Raw(value.encode()), what="input")
