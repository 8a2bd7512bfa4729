"""Input specs: the parameters of a workflow as data, with which a process without its code checks the input of a start.

A spec has the JSON Schema of each parameter. Whatever it cannot express is accepted, and the worker decides.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import GenericAlias
from typing import Any, Final, Literal, Union

import msgspec
from msgspec import UNSET, Struct

from headgate import typed_decode
from headgate.durable.model.payload import Parameter, Signature, decoder_of

_PLAIN: Final[Mapping[str, Any]] = {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}
# Errors of annotations without a JSON Schema, and of types that cannot be decoded.
_UNSUPPORTED: Final = (TypeError, ValueError, RuntimeError, NotImplementedError)


class ParameterSpec(Struct, frozen=True, omit_defaults=True):
    """One parameter. Without a schema, every value is accepted."""

    name: str
    required: bool = True
    by_position: bool = True
    by_name: bool = True
    schema: dict[str, Any] | None = None


_specs_decoder: Final = msgspec.json.Decoder(tuple[ParameterSpec, ...])


def input_spec(signature: Signature) -> str:
    """Return the spec of a signature as JSON text."""
    specs = [
        ParameterSpec(each.name, each.required, each.by_position, each.by_name, _schema(each.annotation))
        for each in signature.parameters
    ]
    return msgspec.json.encode(specs).decode()


@functools.lru_cache(maxsize=1024)
def signature_of(spec: str) -> Signature:
    """Return a signature that checks input as the spec describes it. Raises `msgspec.ValidationError`."""
    return Signature([_parameter(each) for each in _specs_decoder.decode(spec)], Any)


def _parameter(spec: ParameterSpec) -> Parameter:
    annotation = Any if spec.schema is None else _type(spec.schema, spec.schema.get("$defs", {}), ())
    return Parameter(spec.name, annotation, decoder_of(annotation), spec.required, spec.by_position, spec.by_name)


def _schema(annotation: object) -> dict[str, Any] | None:
    try:
        return msgspec.json.schema(annotation)
    except _UNSUPPORTED:
        return None


def _type(schema: Mapping[str, Any], defs: Mapping[str, Any], path: tuple[str, ...]) -> Any:  # noqa: ANN401 - a type
    """Return the type that a schema describes, or `Any`. `path` has the definitions it is part of."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return Any if name in path or name not in defs else _type(defs[name], defs, (*path, name))
    if "enum" in schema:
        return _supported(lambda: Literal[tuple(schema["enum"])])
    if "anyOf" in schema:
        members = [_type(each, defs, path) for each in schema["anyOf"]]
        return _supported(lambda: Union[tuple(members)])  # noqa: UP007 - members are known at run time only
    kind = schema.get("type")
    if kind in ("array", "object"):
        return _supported(lambda: _container(schema, defs, path))
    return _PLAIN.get(kind, Any) if isinstance(kind, str) else Any


def _container(schema: Mapping[str, Any], defs: Mapping[str, Any], path: tuple[str, ...]) -> Any:  # noqa: ANN401 - a type
    if schema["type"] == "object":
        if "properties" in schema:
            return _struct(schema, defs, path)
        values = schema.get("additionalProperties")
        return GenericAlias(dict, (str, _type(values, defs, path) if isinstance(values, dict) else Any))
    if "prefixItems" in schema:
        return GenericAlias(tuple, tuple(_type(each, defs, path) for each in schema["prefixItems"]))
    return GenericAlias(list, (_type(schema.get("items", {}), defs, path),))


def _struct(schema: Mapping[str, Any], defs: Mapping[str, Any], path: tuple[str, ...]) -> type[Struct]:
    required = set(schema.get("required", ()))
    fields: list[Any] = []
    names: dict[str, str] = {}
    for number, (name, each) in enumerate(schema["properties"].items()):
        # The names of properties need not be names of attributes.
        attribute = f"field_{number}"
        names[attribute] = name
        kind = _type(each, defs, path)
        fields.append((attribute, kind) if name in required else (attribute, kind | msgspec.UnsetType, UNSET))
    strict = schema.get("additionalProperties") is False
    return msgspec.defstruct(
        schema.get("title", "Input"), fields, rename=names, forbid_unknown_fields=strict, kw_only=True
    )


def _supported(make: Callable[[], Any]) -> Any:  # noqa: ANN401 - a type
    """Return the type, or `Any` if msgspec cannot decode it, such as a union of two objects."""
    try:
        made = make()
        typed_decode.json_decoder(made)
    except _UNSUPPORTED:
        return Any
    return made
