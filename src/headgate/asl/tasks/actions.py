"""Service actions: the calls of AWS services that a Task can make here, by the names that a Resource gives them.

Call parameters: what a Task gives to an action of a service, read by name and checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from headgate.asl.errors import runtime_error
from headgate.asl.expressions.scope import Json

# In the words of the optimised integrations; `normalized_call` maps the names that the SDK integrations use.
ACTIONS: Final[dict[str, tuple[str, ...]]] = {
    "dynamodb": ("deleteItem", "getItem", "putItem", "query", "updateItem"),
    "events": ("putEvents",),
    "sns": ("publish",),
    "sqs": ("sendMessage",),
}
SDK: Final = "aws-sdk:"
# A function is called by this, too, and no service with it.
INVOKE: Final = ("lambda", "invoke")
_ALIASES: Final = {"eventbridge": "events"}


def known_actions() -> dict[str, tuple[str, ...]]:
    """Return the actions of each service, under every name that the service goes by.

    Calls of functions (`lambda`) and of machines (`states`) are none of them: they need no service.
    """
    return {**ACTIONS, **{alias: ACTIONS[name] for alias, name in _ALIASES.items()}}


def normalized_call(service: str, action: str) -> tuple[str, str, bool]:
    """Return a service and an action as `ACTIONS` has them, and whether it is called as the SDK calls it.

    What is not known comes back as it is written.
    """
    name = service.removeprefix(SDK).lower()
    return _ALIASES.get(name, name), action[:1].lower() + action[1:], service.startswith(SDK)


_T = TypeVar("_T", str, int, bool, dict[str, Any], list[Any])


class CallParameters:
    """The Parameters of one call. What does not fit them is States.Runtime, as nothing was asked of the service yet."""

    def __init__(self, resource: str, parameters: Json) -> None:
        self.resource = resource
        if not isinstance(parameters, Mapping):
            raise runtime_error(f"The Parameters of {resource} must be an object")
        # The SDKs of some languages begin names with a small letter.
        self._given = {name[:1].upper() + name[1:]: value for name, value in parameters.items()}

    def allow(self, names: Iterable[str]) -> None:
        """Refuse whatever is not one of these. Raises `StateError`."""
        allowed = sorted(names)
        unknown = sorted(self._given.keys() - set(allowed))
        if unknown:
            raise runtime_error(
                f"The field {unknown[0]!r} of {self.resource} is not supported; it takes {', '.join(allowed)}"
            )

    def find(self, name: str, kind: type[_T]) -> _T | None:
        """Return a parameter, or None if it is not given. Raises `StateError` for one of another type."""
        value = self._given.get(name)
        if value is None:
            return None
        # A bool is an int to Python, but not to JSON.
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise runtime_error(f"The value for the field {name!r} of {self.resource} must be {_NAMES[kind]}")
        return value

    def get(self, name: str, kind: type[_T]) -> _T:
        """Return a parameter that has to be there. Raises `StateError`."""
        value = self.find(name, kind)
        if value is None:
            raise runtime_error(f"The field {name!r} of {self.resource} is required but was missing")
        return value

    def raw(self, name: str) -> Json:
        """Return a parameter of any type that has to be there. Raises `StateError`."""
        if name not in self._given:
            raise runtime_error(f"The field {name!r} of {self.resource} is required but was missing")
        return self._given[name]

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of `choices`, the first if nothing is given. Raises `StateError`."""
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
