"""Payloads: values of user code as JSON, validated when encoded, decoded by annotation, and compared canonically.

A value that JSON cannot represent faithfully is refused when it is encoded, not when it is decoded: by then the
execution that needs it would be stuck.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import msgspec.inspect

from headgate import typed_decode
from headgate.durable.model import payload_types
from headgate.errors import DefinitionError, InvalidPayloadError, PayloadTooLargeError

BYTES_MAX: Final = 6_000_000
# Deep enough for data, and well below the recursion limit of a reader with a deep call stack.
DEPTH_MAX: Final = 200
NULL: Final = msgspec.Raw(b"null")
_BRACKET: Final = ord("[")

# Types that are neither NaN nor a set: a container of these alone needs no closer check.
_PLAIN_TYPES: Final = frozenset({str, int, bool, type(None)})
_WRITE_ERRORS: Final = (TypeError, ValueError, OverflowError, RecursionError)
_READ_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# Errors of evaluating an annotation with a name that only type checkers know, or that means something else.
_HINT_ERRORS: Final = (NameError, AttributeError, TypeError, SyntaxError, ValueError, LookupError, ImportError)


def encode(value: object, *, what: str) -> msgspec.Raw:
    """Return `value` as JSON; `what` names it in errors. Keys keep their order, unless the value contains a set.

    Raises `InvalidPayloadError`, with the path and the type at fault, for a value that JSON cannot represent
    faithfully, and `PayloadTooLargeError` above `BYTES_MAX`.
    """
    if value is None:
        return NULL
    try:
        data = _encode(value)
        size = len(data)
        if type(value) in _PLAIN_TYPES and size <= BYTES_MAX:
            return msgspec.Raw(data)
        # msgspec encodes NaN and infinity as null, and a set as a list in an order that differs between processes.
        # Neither is possible if the JSON has no null and no list, so that most values need no closer check.
        # (`find` with a number: a bytes needle is first tried as a number, at the cost of an exception.)
        if data.find(b"null") >= 0 or _BRACKET in data or (size > DEPTH_MAX and data.count(b"{") > DEPTH_MAX):
            data = _checked(value, data)
            size = len(data)
    except _WRITE_ERRORS as exc:
        raise InvalidPayloadError(f"{what}: {_fault(value) or exc}") from exc
    if size > BYTES_MAX:
        raise PayloadTooLargeError(
            f"{what}: {size:,} bytes of JSON, and {BYTES_MAX:,} are accepted; "
            "store the data elsewhere and pass a reference"
        )
    return msgspec.Raw(data)


def decode(raw: msgspec.Raw, annotation: object, *, what: str) -> Any:  # noqa: ANN401 - the annotation decides
    """Return the value by its annotation; as plain JSON types if the annotation is not supported.

    Raises `InvalidPayloadError`, which names the path, for a value that the annotation does not allow.
    """
    try:
        return decoder_of(annotation)(raw)
    except _READ_ERRORS as exc:
        raise InvalidPayloadError(f"{what}: {exc}") from exc


def canonical(raw: msgspec.Raw) -> bytes:
    """Return canonical JSON: keys sorted, no white space, the same for equal values.

    Raises `InvalidPayloadError` if `raw` is not JSON.
    """
    return _encode_ordered(decode(raw, Any, what="payload"))


def digest(raw: msgspec.Raw) -> str:
    """Return a digest of 32 hexadecimal digits, the same for equal values. Raises `InvalidPayloadError`."""
    return hashlib.blake2b(canonical(raw), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a function, with the decoder of its value."""

    name: str
    annotation: object
    decode: Callable[[msgspec.Raw], Any]
    required: bool
    by_position: bool
    by_name: bool

    def read(self, raw: msgspec.Raw, what: str) -> Any:  # noqa: ANN401 - the annotation decides
        """Return the decoded value. Raises `InvalidPayloadError` if the annotation does not allow it."""
        try:
            return self.decode(raw)
        except _READ_ERRORS as exc:
            raise InvalidPayloadError(f"{what}: parameter {self.name!r}: {exc}") from exc


class Signature:
    """The arguments of a function as one JSON value.

    One parameter is that value itself, none is null, and several are an object by parameter name, without the
    parameters that were not passed. So a single parameter with a default cannot be passed as null: the function is
    then called without it.
    """

    __slots__ = ("_decode_result", "_only", "_parameters", "_positional", "result")

    def __init__(self, parameters: Sequence[Parameter], result: object) -> None:
        self._parameters = {parameter.name: parameter for parameter in parameters}
        self._only = parameters[0] if len(parameters) == 1 else None
        self._positional = tuple(each.name for each in parameters if each.by_position)
        self._decode_result = decoder_of(result)
        self.result = result

    @classmethod
    def of(cls, function: Callable[..., object], *, skip_first: bool = False) -> Signature:
        """Return the signature of a function; `skip_first` omits a first parameter that the caller supplies.

        Raises `DefinitionError` if its arguments cannot be passed as JSON by name.
        """
        name = getattr(function, "__qualname__", None) or repr(function)
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (ValueError, TypeError) as exc:
            raise DefinitionError(f"{name}: its parameters cannot be seen; wrap it in a function of your own") from exc
        if skip_first and not parameters:
            raise DefinitionError(f"{name}: it has no parameter; give it at least one")
        parameters = parameters[1:] if skip_first else parameters
        _check_kinds(name, parameters)
        hints = _hints(function)
        return cls([_parameter(each, hints.get(each.name, Any)) for each in parameters], hints.get("return", Any))

    @classmethod
    def of_one(cls, annotation: object) -> Signature:
        """Return the signature of a function of one argument, which is passed by position."""
        only = Parameter("value", annotation, decoder_of(annotation), required=True, by_position=True, by_name=False)
        return cls([only], Any)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(self._parameters.values())

    def pack(self, args: Sequence[object], kwargs: Mapping[str, object], *, what: str) -> msgspec.Raw:
        """Return the arguments of a call as JSON.

        Raises `InvalidPayloadError` for arguments that the function does not accept or JSON cannot represent.
        """
        only = self._only
        if only is not None and only.by_position and len(args) == 1 and not kwargs:
            return encode(args[0], what=what)
        arguments = self._bound(args, kwargs, what)
        if only is not None:
            return encode(arguments.get(only.name), what=what)
        return encode(arguments, what=what) if self._parameters else NULL

    def unpack(self, raw: msgspec.Raw, *, what: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and the named arguments to call the function with.

        Raises `InvalidPayloadError` for parameters that are missing, unknown or not as annotated.
        """
        only = self._only
        if only is None:
            return self._unpack_named(raw, what)
        if not only.required and _is_null(raw):
            return (), {}
        value = only.read(raw, what)
        return ((value,), {}) if only.by_position else ((), {only.name: value})

    def decode_result(self, raw: msgspec.Raw, what: str) -> Any:  # noqa: ANN401 - the annotation decides
        """Return the result of the function, decoded by its annotation.

        Raises `InvalidPayloadError` for a value that the annotation does not allow.
        """
        try:
            return self._decode_result(raw)
        except _READ_ERRORS as exc:
            raise InvalidPayloadError(f"{what}: {exc}") from exc

    def _bound(self, args: Sequence[object], kwargs: Mapping[str, object], what: str) -> dict[str, object]:
        if len(args) > len(self._positional):
            raise InvalidPayloadError(f"{what}: {len(args)} positional arguments given, {len(self._positional)} taken")
        arguments: dict[str, object] = dict(zip(self._positional, args, strict=False))
        for name, value in kwargs.items():
            if name in arguments:
                raise InvalidPayloadError(f"{what}: parameter {name!r} is given twice")
            if name in self._parameters and not self._parameters[name].by_name:
                raise InvalidPayloadError(f"{what}: parameter {name!r} is given by name, and is taken by position only")
            arguments[name] = value
        self._check_names(arguments, what)
        return arguments

    def _unpack_named(self, raw: msgspec.Raw, what: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not self._parameters:
            if not _is_null(raw) and decode(raw, Any, what=what) != {}:
                raise InvalidPayloadError(f"{what}: a value is given, and nothing is taken; leave it out or use null")
            return (), {}
        fields: dict[str, msgspec.Raw] = decode(raw, dict[str, msgspec.Raw], what=what)
        self._check_names(fields, what)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, field in fields.items():
            parameter = self._parameters[name]
            value = parameter.read(field, what)
            if parameter.by_name:
                kwargs[name] = value
            else:
                args.append(value)
        return tuple(args), kwargs

    def _check_names(self, arguments: Mapping[str, object], what: str) -> None:
        if arguments.keys() == self._parameters.keys():
            return
        missing = [each.name for each in self._parameters.values() if each.required and each.name not in arguments]
        unknown = [name for name in arguments if name not in self._parameters]
        if not missing and not unknown:
            return
        complaints = [f"{kind} {', '.join(map(repr, names))}" for kind, names in _kinds(missing, unknown) if names]
        accepted = ", ".join(map(repr, self._parameters)) or "none"
        raise InvalidPayloadError(f"{what}: {' and '.join(complaints)}; the parameters are {accepted}")


def _kinds(missing: list[str], unknown: list[str]) -> tuple[tuple[str, list[str]], ...]:
    return ("missing parameter", missing), ("unknown parameter", unknown)


def _is_null(raw: msgspec.Raw) -> bool:
    return raw is NULL or (len(raw) < 16 and bytes(raw).strip() == b"null")


def _check_kinds(name: str, parameters: list[inspect.Parameter]) -> None:
    for each in parameters:
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            shown = str(each.replace(annotation=each.empty))
            raise DefinitionError(f"{name}: parameter {shown}: name each parameter, or take one dict or list")
    if sum(each.kind is each.POSITIONAL_ONLY for each in parameters) > 1:
        raise DefinitionError(f"{name}: more than one positional-only parameter; arguments travel by name, so drop '/'")


def _parameter(parameter: inspect.Parameter, annotation: object) -> Parameter:
    return Parameter(
        name=parameter.name,
        annotation=annotation,
        decode=decoder_of(annotation),
        required=parameter.default is parameter.empty,
        by_position=parameter.kind is not parameter.KEYWORD_ONLY,
        by_name=parameter.kind is not parameter.POSITIONAL_ONLY,
    )


def _hints(function: Callable[..., object]) -> dict[str, object]:
    """Return the annotations that can be resolved, with extras."""
    target: Any = inspect.unwrap(function)
    while isinstance(target, partial):
        target = inspect.unwrap(target.func)
    if not inspect.isroutine(target) and not isinstance(target, type):
        target = type(target).__call__
    hints: dict[str, object] = {}
    for name, annotation in getattr(target, "__annotations__", {}).items():
        one = SimpleNamespace(__annotations__={name: annotation})
        try:
            hints |= typing.get_type_hints(one, getattr(target, "__globals__", {}), include_extras=True)
        except _HINT_ERRORS:
            continue
    return hints


def _plain(value: object) -> object:
    """Return the data of a value that msgspec does not support: of a registered class, a model, text, or a number."""
    plain = payload_types.to_plain(value)
    if plain is not payload_types.NO_CONVERSION:
        # Checked here, where its members are known: the encoder would turn NaN into null.
        return msgspec.Raw(_checked(plain, _encode(plain)))
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(f"{_type_name(value)} has no JSON form")


_encode: Final = msgspec.json.Encoder(enc_hook=_plain).encode
_encode_ordered: Final = msgspec.json.Encoder(enc_hook=_plain, order="deterministic").encode


def decoder_of(annotation: object) -> Callable[[msgspec.Raw], Any]:
    """Return the decoder of JSON by an annotation."""
    try:
        return _cached_decoder(annotation)
    except TypeError:
        # An unhashable annotation, such as Annotated with a list, is rare; its decoder is not cached.
        return _new_decoder(annotation)


def _new_decoder(annotation: object) -> Callable[[msgspec.Raw], Any]:
    """Return a decoder for the annotation, or for plain JSON types if a part of it is not supported.

    The annotation is inspected up front: a failed decode would depend on whether the value has that part.
    """
    try:
        if _is_readable(msgspec.inspect.type_info(annotation), set()):
            return typed_decode.json_decoder(annotation, dec_hook=payload_types.from_plain).decode
    except _HINT_ERRORS:
        with_models = payload_types.adapter_decoder(annotation)
        if with_models is not None:
            return with_models
    return typed_decode.json_decoder(Any).decode


_cached_decoder: Final = lru_cache(maxsize=4096)(_new_decoder)


def _is_readable(info: object, seen: set[int]) -> bool:
    """Whether JSON can be decoded as this type and all its parts."""
    if id(info) in seen:
        return True
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        return info.cls is object or payload_types.can_decode(info.cls)
    if isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        return all(_is_readable(getattr(info, name), seen) for name in info.__struct_fields__)
    return not isinstance(info, tuple) or all(_is_readable(member, seen) for member in info)


def _checked(value: object, data: bytes) -> bytes:
    """Return the JSON to store: `data`, or an ordered form if there is a set. Raises `ValueError` for a fault."""
    # Only sets need it, and sorting the keys would lose their order.
    return _encode_ordered(value) if _holds_set((value,), 0) else data


def _holds_set(node: Any, depth: int) -> bool:  # noqa: ANN401 - any value
    """Whether a value contains a set. Raises `ValueError` for NaN, infinity and too many levels."""
    if depth > DEPTH_MAX:
        raise ValueError(f"nested deeper than {DEPTH_MAX} levels")
    kind = type(node)
    has_set = False
    if kind is dict:
        members = node.values()
    elif kind is list or kind is tuple:
        members = node
    else:
        members = _members(node)
        has_set = isinstance(node, set | frozenset)
    for member in members:
        kind = type(member)
        if kind in _PLAIN_TYPES:
            continue
        if kind is not float:
            has_set = _holds_set(member, depth + 1) or has_set
        elif not math.isfinite(member):
            raise ValueError(f"{member} is not a number in JSON")
    return has_set


def _members(node: object) -> Collection[Any]:
    """Return the direct members of a value that was encoded without an error."""
    match node:
        case dict():
            return node.values()
        case list() | tuple() | set() | frozenset():
            return node
        case Enum():
            return (node.value,)
        case float():
            # A subclass: the exact types were handled before.
            return (float.__float__(node),)
    return [getattr(node, name, None) for name in _field_names(node)]


def _field_names(node: object) -> Sequence[str]:
    if isinstance(node, msgspec.Struct):
        return node.__struct_fields__
    kind = type(node)
    if hasattr(kind, "__dataclass_fields__"):
        return tuple(kind.__dataclass_fields__)
    return [attribute.name for attribute in getattr(kind, "__attrs_attrs__", ())]


def _fault(value: object) -> str | None:
    """Return the fault of a value, with its path; None if there is none."""
    waiting: list[tuple[str, int, object]] = [("$", 0, value)]
    while waiting:
        path, depth, node = waiting.pop()
        if depth > DEPTH_MAX:
            return f"nested deeper than {DEPTH_MAX} levels, or holding itself, at `{path[:60]}…`"
        children = list(_children(node))
        complaint = _complaint(node, is_leaf=not children)
        if complaint is not None:
            return f"{complaint}, at `{path}`"
        waiting += [(path + step, depth + 1, child) for step, child in reversed(children)]
    return None


def _children(node: object) -> Iterator[tuple[str, object]]:
    match node:
        case dict():
            yield from ((f".{key}" if isinstance(key, str) else f"[{key!r}]", child) for key, child in node.items())
        case list() | tuple():
            yield from ((f"[{index}]", child) for index, child in enumerate(node))
        case set() | frozenset():
            yield from (("[…]", child) for child in node)
        case _:
            yield from ((f".{name}", getattr(node, name, None)) for name in _field_names(node))


def _complaint(node: object, *, is_leaf: bool) -> str | None:
    """Return the fault of a value itself, not of its members; None if there is none."""
    match node:
        case dict():
            return next((text for key in node if (text := _key_complaint(key)) is not None), None)
        case set() | frozenset():
            return _set_complaint(node)
        case float() if not math.isfinite(node):
            return f"{node} is not a number in JSON; use None or text"
        case int() if not isinstance(node, Enum) and node.bit_length() > 14_000:
            return "an integer of more than 4,000 digits; use text"
    return _leaf_complaint(node) if is_leaf else None


def _key_complaint(key: object) -> str | None:
    try:
        _encode({key: None})
    except _WRITE_ERRORS:
        return f"the key {repr(key)[:60]} is of type {_type_name(key)}; use text or numbers as keys"
    return None


def _set_complaint(node: Collection[Any]) -> str | None:
    try:
        sorted(node)
    except TypeError:
        return "a set whose members have no order among each other; use a list"
    return None


def _leaf_complaint(node: object) -> str | None:
    try:
        _encode(node)
    except UnicodeEncodeError:
        return f"text with half a surrogate pair: {str(node)[:40]!r}"
    except _WRITE_ERRORS as exc:
        if payload_types.has_conversion(type(node)):
            return f"{_type_name(node)}: {exc}"
        return (
            f"{_type_name(node)} has no JSON form; pass plain data, a dataclass, a msgspec Struct or a pydantic model, "
            "or register the type with hg.register_type"
        )
    return None


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
