"""Bus rules: the patterns of EventBridge rules that take the events of an app's subscriptions from a bus.

A pattern may let through more than its subscription takes, and never less: the bus of Headgate decides. An app from
which a subscription is removed has a rule less, so that the plan of its deployment changes with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from headgate.deployment.names import resource_name
from headgate.durable.bus.subscriptions import ANY, Subscription
from headgate.durable.model.names import is_built_in

# The name of a rule has at most 64 characters, and the deployment's name goes before it.
_NAME_MAX: Final = 30
# A detail-type has no more characters.
_TYPE_MAX: Final = 128

Pattern = dict[str, Any]


def bus_rules(subscriptions: Iterable[Subscription]) -> dict[str, Pattern]:
    """Return the patterns by rule name. Subscriptions to events of Headgate's own have none."""
    patterns: dict[str, Pattern] = {}
    for each in subscriptions:
        types = [each_type for each_type in each.types if not is_built_in(each_type)]
        if types:
            patterns[resource_name(each.name, _NAME_MAX)] = _pattern(types, each.filter.data)
    return dict(sorted(patterns.items()))


def _pattern(types: Iterable[str], data: Mapping[str, Any]) -> Pattern:
    pattern: Pattern = {}
    if ANY not in types:
        pattern["detail-type"] = [{"prefix": each[:-1]} if each.endswith(ANY) else each[:_TYPE_MAX] for each in types]
    wanted: Pattern = {}
    for path, value in data.items():
        # Steps into lists and fractions have no pattern.
        if isinstance(value, float) or any(step.isdecimal() for step in path.split(".")):
            continue
        _set(wanted, path.split("."), [value])
    if wanted:
        # Of a CloudEvent, and of any other event.
        pattern["$or"] = [{"detail": {"data": wanted}}, {"detail": wanted}]
    return pattern


def _set(node: Pattern, steps: list[str], value: list[Any]) -> None:
    for step in steps[:-1]:
        child = node.setdefault(step, {})
        if not isinstance(child, dict):
            return
        node = child
    if not isinstance(node.get(steps[-1]), dict):
        node[steps[-1]] = value
