"""Service actions: the AWS service calls that Tasks can make, and access to their parameters with type checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from headgate.asl.errors import runtime_error
from headgate.asl.expressions.scope import Json

# By the names of the optimised integrations; `normalized_call` maps those of the SDK integrations.
ACTIONS: Final[dict[str, tuple[str, ...]]] = {
    "dynamodb": ("deleteItem", "getItem", "putItem", "query", "updateItem"),
    "events": ("putEvents",),
    "sns": ("publish",),
    "sqs": ("sendMessage",),
}
SDK: Final = "aws-sdk:"
# Calls a function, not a service.
INVOKE: Final = ("lambda", "invoke")
_ALIASES: Final = {"eventbridge": "events"}


def known_actions() -> dict[str, tuple[str, ...]]:
    """Return the actions of each service, including its aliases.

    Calls of functions (`lambda`) and machines (`states`) are not included.
    """
    return {**ACTIONS, **{alias: ACTIONS[name] for alias, name in _ALIASES.items()}}


def normalized_call(service: str, action: str) -> tuple[str, str, bool]:
    """Return a service and action as named in `ACTIONS`, and whether it is an SDK integration.

    Unknown names are returned unchanged.
    """
    name = service.removeprefix(SDK).lower()
    return _ALIASES.get(name, name), action[:1].lower() + action[1:], service.startswith(SDK)


_T = TypeVar("_T", str, int, bool, dict[str, Any], list[Any])


class CallParameters:
    """The Parameters of one call. Invalid ones raise States.Runtime, before the service is called."""

    def __init__(self, resource: str, parameters: Json) -> None:
        self.resource = resource
        if not isinstance(parameters, Mapping):
            raise runtime_error(f"The Parameters of {resource} must be an object")
        # The SDKs of some languages use lower camel case.
        self._parameters = {name[:1].upper() + name[1:]: value for name, value in parameters.items()}

    def allow(self, names: Iterable[str]) -> None:
        """Raise `StateError` for a parameter that is not in `names`."""
        allowed = sorted(names)
        unknown = sorted(self._parameters.keys() - set(allowed))
        if unknown:
            raise runtime_error(
                f"The field {unknown[0]!r} of {self.resource} is not supported; it takes {', '.join(allowed)}"
            )

    def find(self, name: str, kind: type[_T]) -> _T | None:
        """Return a parameter, or None if absent. Raises `StateError` if it has another type."""
        value = self._parameters.get(name)
        if value is None:
            return None
        # In Python a bool is an int; in JSON it is not.
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise runtime_error(f"The value for the field {name!r} of {self.resource} must be {_NAMES[kind]}")
        return value

    def get(self, name: str, kind: type[_T]) -> _T:
        """Return a required parameter. Raises `StateError`."""
        value = self.find(name, kind)
        if value is None:
            raise runtime_error(f"The field {name!r} of {self.resource} is required but was missing")
        return value

    def raw(self, name: str) -> Json:
        """Return a required parameter of any type. Raises `StateError`."""
        if name not in self._parameters:
            raise runtime_error(f"The field {name!r} of {self.resource} is required but was missing")
        return self._parameters[name]

    def optional(self, name: str) -> Json:
        """Return a parameter of any type, or None if absent."""
        return self._parameters.get(name)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of `choices`, by default the first. Raises `StateError`."""
        value = self.find(name, str)
        if value is None:
            return choices[0]
        if value not in choices:
            raise runtime_error(
                f"The value for the field {name!r} of {self.resource} must be one of {', '.join(choices)}"
            )
        return value


_NAMES: Mapping[Callable[..., object], str] = {
    str: "a STRING",
    int: "a whole NUMBER",
    bool: "a BOOLEAN",
    dict: "an OBJECT",
    list: "an ARRAY",
}
