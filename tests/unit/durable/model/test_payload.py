"""Values of user code as JSON."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.durable.model.payload import BYTES_MAX, DEPTH_MAX, Signature, canonical, decode, digest, encode
from headgate.errors import DefinitionError, InvalidPayloadError, PayloadTooLargeError, UserError

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Odd(Enum):
    NOT_A_NUMBER = math.nan


@dataclass
class Line:
    sku: str
    price: float = 1.0
    tags: frozenset[str] = frozenset()
    inner: Any = None


class Order(msgspec.Struct):
    id: str
    lines: list[Line] = []
    parent: Order | None = None


class Address(TypedDict):
    street: str


class Point(NamedTuple):
    x: int
    y: float


class Custom:
    pass


class OfText(str):
    pass


class OfNumber(float):
    pass


def _encode(value: object) -> bytes:
    return bytes(encode(value, what="input"))


@given(JSON_VALUES)
def test_encode__json_value__comes_back_the_same(value: Any) -> None:
    raw = encode(value, what="input")
    assert decode(raw, Any, what="input") == value
    assert json.loads(bytes(raw)) == value


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (Order("o", [Line("a", 2.5, frozenset({"x", "y"}))]), Order),
        (Line("a", inner=[1, None]), Line),
        ({"street": "x"}, Address),
        (Point(1, 2.5), Point),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), datetime),
        (date(2026, 1, 2), date),
        (timedelta(days=1, seconds=3), timedelta),
        (Decimal("1.10"), Decimal),
        (UUID(int=7), UUID),
        (Colour.RED, Colour),
        (Level.LOW, Level),
        (b"\x00\xff", bytes),
        ({3, 1, 2}, set[int]),
        ({1: "a"}, dict[int, str]),
        ((1, "a"), tuple[int, str]),
        ([None, 1.5], list[float | None]),
        (None, None),
    ],
)
def test_encode__typed_value__comes_back_by_its_annotation(value: object, annotation: object) -> None:
    assert decode(encode(value, what="input"), annotation, what="input") == value


@pytest.mark.parametrize(("value", "expected"), [(OfText("a"), b'"a"'), (OfNumber(1.5), b"1.5"), (Level.LOW, b"1")])
def test_encode__subclass_of_text_or_number__is_its_plain_value(value: object, expected: bytes) -> None:
    assert _encode(value) == expected


def test_encode__keys__keep_their_order() -> None:
    assert _encode({"b": 1, "a": {"d": [1], "c": None}}) == b'{"b":1,"a":{"d":[1],"c":null}}'


def test_encode__text_that_looks_suspicious__is_kept() -> None:
    for value in ("null", "[", {"null": "[]"}, {"a": "[null]"}):
        assert decode(encode(value, what="input"), Any, what="input") == value


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (math.nan, "$"),
        (math.inf, "$"),
        ([1.0, -math.inf], "$[1]"),
        ({"a": [{"b": math.nan}]}, "$.a[0].b"),
        ({"a": None, "b": (1.0, math.nan)}, "$.b[1]"),
        (Line("a", math.nan), "$.price"),
        (Order("o", [Line("a"), Line("b", math.inf)]), "$.lines[1].price"),
        (Point(1, math.nan), "$[1]"),
        (OfNumber("nan"), "$"),
        ([OfNumber("inf")], "$[0]"),
        ({1: math.nan}, "$[1]"),
    ],
)
def test_encode__nan_or_infinity__is_refused_with_its_path(value: object, path: str) -> None:
    with pytest.raises(InvalidPayloadError, match=r"^order 7: .*(nan|inf) is not a number in JSON") as caught:
        encode(value, what="order 7")
    assert str(caught.value).endswith(f"at `{path}`")


def test_encode__nan_hidden_in_an_enum__is_refused() -> None:
    with pytest.raises(InvalidPayloadError, match="nan is not a number in JSON"):
        encode([Odd.NOT_A_NUMBER], what="input")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Custom(), rf"{__name__}.Custom has no JSON form; .*, at `\$`"),
        ({"a": [1, Custom()]}, rf"{__name__}.Custom has no JSON form; .*, at `\$.a\[1\]`"),
        ({"a": {(1, 2): 3}}, r"the key \(1, 2\) is of type tuple; .*, at `\$.a`"),
        ({None: 1}, r"the key None is of type NoneType"),
        ([1j], r"complex has no JSON form.*`\$\[0\]`"),
        (Path("x"), r"pathlib\S*\.PosixPath has no JSON form"),
        (ValueError("x"), "ValueError has no JSON form"),
        (len, "builtin_function_or_method has no JSON form"),
        ((each for each in "a"), "generator has no JSON form"),
        ({"t": "\ud800"}, r"text with half a surrogate pair: .*`\$.t`"),
        ({"\ud800": 1}, "the key '.ud800' is of type str"),
        ({1, "a"}, r"a set whose members have no order.*`\$`"),
        ({"a": [{Colour.RED, 1}]}, r"a set whose members have no order.*`\$.a\[0\]`"),
        (Line("a", inner=Custom()), r"Custom has no JSON form.*`\$.inner`"),
        (Order("a", parent=Order("b", lines=[Custom()])), r"Custom has no JSON form.*`\$.parent.lines\[0\]`"),  # type: ignore[list-item]
    ],
)
def test_encode__no_json_form__is_refused_by_path_and_type(value: object, message: str) -> None:
    with pytest.raises(InvalidPayloadError, match=f"^result of charge: .*{message}"):
        encode(value, what="result of charge")


def test_encode__integer_with_more_digits_than_python_reads__is_refused() -> None:
    assert decode(encode(10**4299, what="x"), Any, what="x") == 10**4299
    with pytest.raises(InvalidPayloadError, match=r"an integer of more than 4,000 digits; use text, at `\$\[0\]`"):
        encode([10**4300], what="input")


def test_encode__value_that_holds_itself__is_refused() -> None:
    circle: list[object] = []
    circle.append([circle, circle])
    with pytest.raises(InvalidPayloadError, match=f"nested deeper than {DEPTH_MAX} levels, or holding itself"):
        encode(circle, what="input")


def _nested(depth: int, wrap: Callable[[object], object]) -> object:
    value: object = 1
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: {"a": value}, lambda value: {"a": (value,)}])
def test_encode__nested_too_deep__is_refused_before_it_cannot_be_read(wrap: Callable[[object], object]) -> None:
    fits = _nested(DEPTH_MAX // 2, wrap)
    assert decode(encode(fits, what="input"), Any, what="input") == json.loads(json.dumps(fits))
    with pytest.raises(InvalidPayloadError, match="nested deeper than"):
        encode(_nested(DEPTH_MAX + 1, wrap), what="input")


def test_encode__too_large__is_refused_with_both_sizes() -> None:
    assert len(encode("x" * (BYTES_MAX - 2), what="input")) == BYTES_MAX
    with pytest.raises(
        PayloadTooLargeError, match="input: 6,000,001 bytes of JSON, and 6,000,000 are accepted"
    ) as caught:
        encode("x" * (BYTES_MAX - 1), what="input")
    assert caught.value.http_status == 413


def test_encode__set__is_written_alike_under_every_hash_seed() -> None:
    program = (
        "from headgate.durable.model.payload import encode\n"
        f"from {__name__} import Line\n"
        "words = {'alpha', 'beta', 'gamma', 'delta', 'epsilon'}\n"
        "print(bytes(encode({'z': words, 'a': [Line('s', tags=frozenset(words))]}, what='x')).decode())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
    assert '"z":["alpha","beta","delta","epsilon","gamma"]' in outputs.pop()


@pytest.mark.parametrize(
    ("raw", "annotation", "message"),
    [
        (b'"a"', int, "Expected `int`, got `str`"),
        (b'{"id":1}', Order, r"Expected `str`, got `int` - at `\$.id`"),
        (b"{}", Order, "missing required field `id`"),
        (b'[1,"a"]', list[int], r"Expected `int`, got `str` - at `\$\[1\]`"),
        (b'"blue"', Colour, "Invalid enum value"),
        (b"-1", Annotated[int, msgspec.Meta(ge=0)], "Expected `int` >= 0"),
        (b"1", None, "Expected `null`"),
        (b"", Any, "truncated"),
        (b"{", Any, "truncated"),
        (b"NaN", Any, "malformed"),
        (b'"\xff"', Any, "utf-8"),
        (b"[" * 100_000 + b"]" * 100_000, Any, "recursion"),
    ],
)
def test_decode__not_what_is_annotated__is_refused_by_path(raw: bytes, annotation: object, message: str) -> None:
    with pytest.raises(InvalidPayloadError, match=f"^input of fulfil: .*{message}"):
        decode(msgspec.Raw(raw), annotation, what="input of fulfil")


@pytest.mark.parametrize(
    "annotation",
    [Any, object, Custom, list[Custom], dict[str, Custom], "nowhere", int | Custom, Callable, Annotated[Custom, []]],
)
def test_decode__annotation_beyond_msgspec__gives_plain_values(annotation: object) -> None:
    for raw, expected in ((b'{"a":[1]}', {"a": [1]}), (b'"x"', "x"), (b"null", None)):
        assert decode(msgspec.Raw(raw), annotation, what="input") == expected


@dataclass
class Holder:
    custom: Custom | None = None
    number: int = 0


def test_decode__class_with_a_part_beyond_msgspec__is_plain_whatever_the_value() -> None:
    # Not only when the part is there: the type of a value must not depend on what came before.
    for raw in (b'{"number":1}', b'{"custom":{"a":1}}', b'{"number":"x"}', b'{"custom":null}'):
        assert decode(msgspec.Raw(raw), Holder, what="input") == json.loads(raw)


def test_decode__annotation_that_cannot_be_hashed__is_still_used() -> None:
    with pytest.raises(InvalidPayloadError, match="Expected `int`"):
        decode(msgspec.Raw(b'"x"'), Annotated[int, []], what="input")


def test_decode__type_that_refers_to_itself__is_read() -> None:
    raw = msgspec.Raw(b'{"id":"a","parent":{"id":"b"}}')
    assert decode(raw, Order, what="input") == Order("a", parent=Order("b"))


def test_canonical__order_and_space__do_not_matter() -> None:
    left = msgspec.Raw(b' {"b": [1, 2.0], "a": {"d": null, "c": "\\u00e9"}} ')
    right = encode({"a": {"c": "é", "d": None}, "b": [1, 2.0]}, what="input")
    assert canonical(left) == canonical(right) == '{"a":{"c":"é","d":null},"b":[1,2.0]}'.encode()
    assert digest(left) == digest(right)


def test_canonical__different_values__differ() -> None:
    values = [None, 0, False, 0.0, "", "0", [], {}, [0], {"a": 0}, {"a": None}, 2**64, 2**64 + 1]
    assert len({digest(encode(value, what="x")) for value in values}) == len(values)
    assert all(len(digest(encode(value, what="x"))) == 32 for value in values)


def test_canonical__not_json__is_refused() -> None:
    with pytest.raises(InvalidPayloadError, match="payload"):
        digest(msgspec.Raw(b"{"))


@given(JSON_VALUES)
@settings(max_examples=50)
def test_canonical__of_canonical__is_itself(value: Any) -> None:
    once = canonical(encode(value, what="x"))
    assert canonical(msgspec.Raw(once)) == once
    assert json.loads(once) == value


def _none() -> int:
    return 1


def _one(order: Order) -> str:
    return order.id


def _one_default(order: dict[str, int] | None = None, /) -> None:
    return None


def _one_named(*, order: int) -> None:
    return None


def _many(order: Order, count: int = 3, *, note: str | None = None):  # type: ignore[no-untyped-def]  # noqa: ANN202
    return None


def _mixed(first: int, /, second: str = "x") -> list[Point]:
    return []


def _call(function: Callable[..., Any], *args: object, **kwargs: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Send a call through JSON, and check that the function can be called with what comes out."""
    signature = Signature.of(function)
    unpacked = signature.unpack(signature.pack(args, kwargs, what="input"), what="input")
    function(*unpacked[0], **unpacked[1])
    return unpacked


def test_signature__one_parameter__is_the_value_itself() -> None:
    assert bytes(Signature.of(_one).pack((Order("o"),), {}, what="x")) == b'{"id":"o","lines":[],"parent":null}'
    assert _call(_one, Order("o")) == ((Order("o"),), {})
    assert _call(_one, order=Order("o")) == ((Order("o"),), {})
    assert _call(_one_named, order=3) == ((), {"order": 3})


def test_signature__no_parameter__is_null() -> None:
    assert bytes(Signature.of(_none).pack((), {}, what="x")) == b"null"
    assert _call(_none) == ((), {})
    assert Signature.of(_none).unpack(msgspec.Raw(b"{}"), what="x") == ((), {})
    with pytest.raises(InvalidPayloadError, match="x: a value is given, and nothing is taken"):
        Signature.of(_none).unpack(msgspec.Raw(b"1"), what="x")


def test_signature__several_parameters__are_an_object_without_those_not_given() -> None:
    packed = Signature.of(_many).pack((Order("o"),), {"note": "n"}, what="x")
    assert list(json.loads(bytes(packed))) == ["order", "note"]
    assert _call(_many, Order("o"), note="n") == ((), {"order": Order("o"), "note": "n"})
    assert _call(_many, Order("o"), 4) == ((), {"order": Order("o"), "count": 4})
    assert _call(_mixed, 1) == ((1,), {})
    assert _call(_mixed, 1, "y") == ((1,), {"second": "y"})


def test_signature__single_default_and_null__is_a_call_without_it() -> None:
    assert _call(_one_default) == ((), {})
    assert _call(_one_default, None) == ((), {})
    assert Signature.of(_one_default).unpack(msgspec.Raw(b" null "), what="x") == ((), {})
    assert _call(_one_default, {"a": 1}) == (({"a": 1},), {})


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "message"),
    [
        (_none, (1,), {}, "1 positional arguments given, 0 taken"),
        (_none, (), {"a": 1}, "unknown parameter 'a'; the parameters are none"),
        (_one, (), {}, "missing parameter 'order'"),
        (_one, (1, 2), {}, "2 positional arguments given, 1 taken"),
        (_one, (1,), {"order": 2}, "parameter 'order' is given twice"),
        (_one_named, (1,), {}, "1 positional arguments given, 0 taken"),
        (_one_default, (), {"order": 1}, "taken by position only"),
        (_many, (), {"nota": 1}, "missing parameter 'order' and unknown parameter 'nota'; .* 'order', 'count', 'note'"),
        (_many, (1, 2, 3), {}, "3 positional arguments given, 2 taken"),
        (_many, (Custom(),), {"count": 1}, r"Custom has no JSON form.*`\$.order`"),
    ],
)
def test_pack__arguments_not_taken__are_refused(
    function: Callable[..., Any], args: tuple[object, ...], kwargs: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidPayloadError, match=f"^input of f: .*{message}"):
        Signature.of(function).pack(args, kwargs, what="input of f")


@pytest.mark.parametrize(
    ("function", "raw", "message"),
    [
        (_one, b"null", "parameter 'order': Expected `object`, got `null`"),
        (_one, b'{"id":3}', r"parameter 'order': Expected `str`, got `int` - at `\$.id`"),
        (_one_named, b'"x"', "parameter 'order': Expected `int`"),
        (_many, b"[]", "Expected `object`, got `array`"),
        (_many, b"null", "Expected `object`, got `null`"),
        (_many, b'{"count":1}', "missing parameter 'order'"),
        (_many, b'{"order":{"id":"x"},"size":1}', "unknown parameter 'size'"),
        (_many, b'{"order":{"id":"x"},"count":"1"}', "parameter 'count': Expected `int`, got `str`"),
    ],
)
def test_unpack__not_what_is_taken__is_refused_by_name(function: Callable[..., Any], raw: bytes, message: str) -> None:
    with pytest.raises(InvalidPayloadError, match=f"^input of f: .*{message}"):
        Signature.of(function).unpack(msgspec.Raw(raw), what="input of f")


def _variadic(*orders: int) -> None:
    return None


def _open_ended(order: int, **options: int) -> None:
    return None


def _positional(first: int, second: int, /) -> None:
    return None


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_variadic, r"_variadic: parameter \*orders: name each parameter"),
        (_open_ended, r"_open_ended: parameter \*\*options:"),
        (_positional, "_positional: more than one positional-only parameter"),
        (dict, "parameters cannot be seen|name each parameter"),
    ],
)
def test_signature__cannot_travel_by_name__is_refused_when_built(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message) as caught:
        Signature.of(function)
    assert isinstance(caught.value, UserError)


def test_signature__skip_first__leaves_it_to_the_caller() -> None:
    signature = Signature.of(_many, skip_first=True)
    assert [parameter.name for parameter in signature.parameters] == ["count", "note"]
    with pytest.raises(DefinitionError, match="_none: it has no parameter"):
        Signature.of(_none, skip_first=True)


def _half_known(order: Unknown, count: int) -> Unknown:
    return order


def test_signature__hint_only_known_to_checkers__counts_as_none() -> None:
    signature = Signature.of(_half_known)
    assert [parameter.annotation for parameter in signature.parameters] == [Any, int]
    assert signature.result is Any
    assert signature.unpack(msgspec.Raw(b'{"order":[1],"count":2}'), what="x") == ((), {"order": [1], "count": 2})


def test_signature__result__is_decoded_by_its_annotation() -> None:
    signature = Signature.of(_mixed)
    assert signature.result == list[Point]
    assert signature.decode_result(msgspec.Raw(b"[[1,2]]"), "result of f") == [Point(1, 2.0)]
    with pytest.raises(InvalidPayloadError, match="result of f: Expected `int`"):
        signature.decode_result(msgspec.Raw(b'[["a",2]]'), "result of f")
    assert Signature.of(_many).decode_result(msgspec.Raw(b"[1]"), "x") == [1]


class Service:
    def charge(self, order: Order) -> int:
        return 1

    def __call__(self, order: Order) -> int:
        return 1


def _logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


def test_signature__of_any_callable__reads_the_annotations_below() -> None:
    for function in (Service().charge, Service(), _logged(_one), partial(_mixed, 1), lambda order: order):
        assert len(Signature.of(function).parameters) == 1
    for function in (Service().charge, Service(), _logged(_one)):
        assert Signature.of(function).unpack(msgspec.Raw(b'{"id":"o"}'), what="x") == ((Order("o"),), {})
    assert Signature.of(partial(_mixed, 1)).parameters[0].annotation is str


def test_encode__attrs_like_class__is_walked_for_nan() -> None:
    @dataclass
    class Deep:
        values: list[float] = field(default_factory=list)

    assert _encode(Deep([1.0])) == b'{"values":[1.0]}'
    with pytest.raises(InvalidPayloadError, match=r"at `\$.values\[0\]`"):
        encode(Deep([math.nan]), what="x")
