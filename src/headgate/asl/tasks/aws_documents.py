"""AWS documents: converts the Parameters of a Task to the request of an AWS call, and its response to a result.

Names are in Pascal case on both sides of a Task, whatever the API of the service uses. Timestamps are texts in SDK
integrations, and milliseconds in optimised ones.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headgate.asl.errors import DATA_LIMIT_EXCEEDED, StateError, runtime_error
from headgate.asl.expressions.formats import iso_timestamp
from headgate.asl.expressions.scope import Json

if TYPE_CHECKING:
    from botocore.model import Shape

# The largest result of a Task.
BODY_BYTES_MAX: Final = 262_144
# Attribute values of DynamoDB, whose bytes are base64 in JSON.
_ATTRIBUTE_VALUE: Final = "AttributeValue"


def to_request(shape: Any, value: Json, resource: str, path: str = "") -> Any:  # noqa: ANN401 - shapes and values of botocore
    """Return parameters as boto3 takes them. Raises `StateError` for a field that the call does not have."""
    if shape is None or value is None:
        return value
    match shape.type_name, value:
        case "structure", dict():
            members = _members(shape)
            request = {}
            for name, member in value.items():
                known = members.get(name[:1].upper() + name[1:])
                if known is None:
                    allowed = ", ".join(sorted(members))
                    raise runtime_error(f"The field '{path}{name}' of {resource} is not supported; it takes {allowed}")
                request[known] = to_request(shape.members[known], member, resource, f"{path}{name}.")
            return request
        case "list", list():
            return [to_request(shape.member, each, resource, path) for each in value]
        case "map", dict():
            return {name: to_request(shape.value, each, resource, f"{path}{name}.") for name, each in value.items()}
        case "blob", _:
            return _bytes(shape, value, resource, path)
        case "string", dict() | list():
            return msgspec.json.encode(value).decode()
        case _:
            return value


def to_result(shape: Any, response: Any, *, is_sdk: bool) -> Json:  # noqa: ANN401 - shapes and values of botocore
    """Return a response of boto3 as the result of a Task. Raises `StateError` if it is too large."""
    if shape is None:
        return {}
    match shape.type_name:
        case "structure":
            return {
                _pascal(name): to_result(member, response[name], is_sdk=is_sdk)
                for name, member in shape.members.items()
                if response.get(name) is not None
            }
        case "list":
            return [to_result(shape.member, each, is_sdk=is_sdk) for each in response]
        case "map":
            return {str(name): to_result(shape.value, each, is_sdk=is_sdk) for name, each in response.items()}
        case "blob":
            return _text(shape, response)
        case "timestamp":
            return _moment(response, is_sdk=is_sdk)
        case _:
            return msgspec.to_builtins(response)


def pascal_members(shape: Shape | None) -> dict[str, str]:
    """Return the members of a structure by their names in Pascal case."""
    return {} if shape is None or shape.type_name != "structure" else _members(shape)


def _members(shape: Any) -> dict[str, str]:  # noqa: ANN401 - a shape of botocore
    return {_pascal(name): name for name in shape.members}


def _pascal(name: str) -> str:
    return name[:1].upper() + name[1:]


def _bytes(shape: Any, value: Json, resource: str, path: str) -> bytes:  # noqa: ANN401 - a shape of botocore
    if not isinstance(value, str):
        return msgspec.json.encode(value)
    if not shape.name.startswith("Binary") or shape.serialization.get("streaming"):
        return value.encode()
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as exc:
        raise runtime_error(f"The field '{path.rstrip('.')}' of {resource} is not base64") from exc


def _text(shape: Any, value: Any) -> str:  # noqa: ANN401 - a shape of botocore; bytes or a stream
    content: bytes = value.read(BODY_BYTES_MAX + 1) if hasattr(value, "read") else bytes(value)
    if hasattr(value, "close"):
        value.close()
    if len(content) > BODY_BYTES_MAX:
        raise StateError(
            DATA_LIMIT_EXCEEDED, "The Task returned a result with a size exceeding the maximum number of bytes limit."
        )
    if shape.name.startswith("Binary"):
        return base64.b64encode(content).decode()
    try:
        return content.decode()
    except UnicodeDecodeError:
        return base64.b64encode(content).decode()


def _moment(value: datetime | float | str, *, is_sdk: bool) -> Json:
    moment = value if isinstance(value, datetime) else datetime.fromtimestamp(float(value), UTC)
    at_ms = round(moment.timestamp() * 1000)
    return iso_timestamp(at_ms) if is_sdk else at_ms


def as_mapping(parameters: Json, resource: str) -> Mapping[str, Json]:
    """Return the Parameters of a call. Raises `StateError` if they are not an object."""
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise runtime_error(f"The Parameters of {resource} must be an object")
    return parameters
