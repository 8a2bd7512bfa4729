"""Merge patches of dataset configs (RFC 7396), and the fields that a whole config leaves out. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from headgate.errors import InvalidPayloadError
from headgate.health.model.datasets import DatasetSpec


def merged(document: Any, patch: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return a JSON document with a merge patch applied: null removes a member, other values replace or merge."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(document) if isinstance(document, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def check_stated(urn: str, current: DatasetSpec, stated: Mapping[str, Any]) -> None:
    """Raise `InvalidPayloadError` if a whole config leaves out a field that the dataset has set."""
    omitted = _omitted(current, stated, "")
    if omitted:
        raise InvalidPayloadError(
            f"dataset {urn}: PUT replaces the whole configuration, and this one leaves out {', '.join(omitted)}, which "
            "would be reset; state them, or change single fields with PATCH"
        )


def _omitted(current: Struct, stated: Mapping[str, Any], path: str) -> list[str]:
    """Return the paths of the fields that differ from their default and are not stated."""
    found: list[str] = []
    for field in msgspec.structs.fields(type(current)):
        if field.name not in DatasetSpec.__struct_fields__ and not path:
            continue
        value = getattr(current, field.name)
        if field.name not in stated:
            if not _is_default(field, value):
                found.append(f"{path}{field.name}")
        elif isinstance(value, Struct) and isinstance(stated[field.name], Mapping):
            found += _omitted(value, stated[field.name], f"{path}{field.name}.")
    return found


def _is_default(field: msgspec.structs.FieldInfo, value: Any) -> bool:  # noqa: ANN401 - any field
    if field.required:
        # A part without it is invalid, which the validation of the part says.
        return True
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return bool(value == default)
