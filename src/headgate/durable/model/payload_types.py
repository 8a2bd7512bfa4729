"""Payload types: classes that JSON does not know, registered by users or derived from pydantic's BaseModel.

Dataclasses, msgspec Structs, enums, dates, UUIDs, decimals, sets and tuples need none of this.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import msgspec.inspect

from headgate.errors import DefinitionError

if TYPE_CHECKING:
    from pydantic import ValidationError

T = TypeVar("T")

# Set on every pydantic model, so that pydantic itself need not be imported.
_PYDANTIC_MARK: Final = "__pydantic_validator__"

NO_CONVERSION: Final = object()


class Conversion(NamedTuple):
    """How values of one class are encoded and decoded."""

    to_json: Callable[[Any], object]
    from_json: Callable[[Any], Any]


_conversions: Final[dict[type, Conversion]] = {}
# Classes without a conversion for which a decoder was made: their values are decoded as plain JSON.
_without_conversion: Final[set[type]] = set()


def register_type(kind: type[T], *, to_json: Callable[[T], object], from_json: Callable[[Any], T]) -> None:
    """Have payloads of this class encoded by `to_json`, which returns plain data, and decoded by `from_json`.

    Register a class before workflows and activities that use it are declared, in every process that has them. Raises
    `DefinitionError` if one was declared before, or if the class is encoded by itself, as dataclasses are.
    """
    if not isinstance(kind, type):
        raise DefinitionError(f"register_type({kind!r}): give a class")
    if not isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType):
        raise DefinitionError(f"type {kind.__qualname__}: it is encoded by itself, so a conversion would not be used")
    if kind in _without_conversion:
        raise DefinitionError(
            f"type {kind.__qualname__}: a workflow, activity or message that uses it is declared already; register "
            "it first"
        )
    _conversions[kind] = Conversion(to_json, from_json)


def is_model(kind: object) -> bool:
    """Whether this is a pydantic model. Dataclasses of pydantic are dataclasses."""
    return isinstance(kind, type) and hasattr(kind, _PYDANTIC_MARK) and hasattr(kind, "model_validate_json")


def to_plain(value: object) -> object:
    """Return the plain data of a value of a registered class or a model; `NO_CONVERSION` for any other value."""
    for kind in type(value).__mro__:
        if kind in _conversions:
            return _conversions[kind].to_json(value)
    if not is_model(type(value)):
        return NO_CONVERSION
    model: Any = value
    options: dict[str, Any] = {"by_alias": True, "round_trip": True}
    return _with_sorted_sets(model.model_dump(mode="json", **options), model.model_dump(mode="python", **options))


def from_plain(kind: type, value: object) -> object:
    """Return plain data as a value of a registered class or a model. Raises `ValueError` if it does not fit."""
    conversion = _conversions.get(kind)
    if conversion is None:
        # Without a conversion or a model it is `object`.
        return _validated(kind, value) if is_model(kind) else value
    try:
        return conversion.from_json(value)
    except Exception as exc:  # the conversion is user code and may raise anything
        raise ValueError(f"{kind.__qualname__} from {str(value)[:60]!r}: {type(exc).__name__}: {exc}") from exc


def _validated(model: Any, value: object) -> object:  # noqa: ANN401 - a class of pydantic
    from pydantic import ValidationError

    try:
        # As JSON: a strict model accepts dates and tuples in their JSON form there alone.
        return model.model_validate_json(msgspec.json.encode(value))
    except ValidationError as exc:
        raise ValueError(_complaints(exc)) from exc


def _complaints(error: ValidationError) -> str:
    """Return what pydantic found, without the values: they may be secret."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or '$'}: {each['msg']}" for each in found)


def has_conversion(kind: type) -> bool:
    """Whether values of this class are encoded by a conversion or as a model."""
    return is_model(kind) or any(each in _conversions for each in kind.__mro__)


def can_decode(kind: type) -> bool:
    """Whether a class has a conversion or is a model. If not, the class can no longer be registered."""
    if kind in _conversions or is_model(kind):
        return True
    _without_conversion.add(kind)
    return False


def adapter_decoder(annotation: Any) -> Callable[[msgspec.Raw], Any] | None:  # noqa: ANN401
    """Return pydantic's decoder for an annotation with models that msgspec does not support, such as their unions."""
    if not any(is_model(part) for part in _parts(annotation)):
        return None
    from pydantic import PydanticUserError, TypeAdapter, ValidationError

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    except PydanticUserError:
        return None

    def decode(raw: msgspec.Raw) -> Any:  # noqa: ANN401 - the annotation decides
        try:
            return adapter.validate_json(bytes(raw))
        except ValidationError as exc:
            raise msgspec.ValidationError(_complaints(exc)) from exc

    return decode


def _parts(annotation: object) -> Iterator[object]:
    yield annotation
    for argument in typing.get_args(annotation):
        yield from _parts(argument)
    if inspect.isclass(annotation) and hasattr(annotation, "__dataclass_fields__"):
        for hint in typing.get_type_hints(annotation).values():
            yield from _parts(hint)


def _with_sorted_sets(dumped: object, values: object) -> object:
    """Return JSON with the members of sets in order, which differs between processes otherwise."""
    if isinstance(values, set | frozenset) and isinstance(dumped, list):
        return sorted(dumped, key=msgspec.json.encode)
    if isinstance(dumped, dict) and isinstance(values, dict) and len(dumped) == len(values):
        return {
            key: _with_sorted_sets(each, value)
            for (key, each), value in zip(dumped.items(), values.values(), strict=True)
        }
    if isinstance(dumped, list) and isinstance(values, list | tuple) and len(dumped) == len(values):
        return [_with_sorted_sets(each, value) for each, value in zip(dumped, values, strict=True)]
    return dumped
