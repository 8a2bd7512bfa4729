"""Service actions: the calls of AWS services that a Task can make here, by the names that a Resource gives them."""

from __future__ import annotations

from typing import Final

# In the words of the optimised integrations; `call_of` maps the names that the SDK integrations use.
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


def call_of(service: str, action: str) -> tuple[str, str, bool]:
    """Return a service and an action as `ACTIONS` has them, and whether it is called as the SDK calls it.

    What is not known comes back as it is written.
    """
    name = service.removeprefix(SDK).lower()
    return _ALIASES.get(name, name), action[:1].lower() + action[1:], service.startswith(SDK)
