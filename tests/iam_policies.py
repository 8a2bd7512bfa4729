"""IAM policies as AWS documents their evaluation: explicit allows of actions on resources under conditions.

What the policies of this product use is here, and nothing else: an unknown part is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

Values = Sequence[str]


def _like(value: str, pattern: str) -> bool:
    """Whether a value matches a pattern, where * stands for any characters and ? for one."""
    parts = [".*" if each == "*" else "." if each == "?" else re.escape(each) for each in pattern]
    return re.fullmatch("".join(parts), value, re.DOTALL) is not None


_TESTS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "StringLike": _like,
    "StringEquals": lambda value, expected: value == expected,
}


def allows(policy: str, action: str, resource: str, context: Mapping[str, Values | str]) -> bool:
    """Whether a policy allows an action on a resource. The context holds the keys of the request and the session."""
    statements: list[dict[str, Any]] = json.loads(policy)["Statement"]
    assert all(each["Effect"] == "Allow" for each in statements)
    return any(_grants(each, action, resource, context) for each in statements)


def _grants(statement: Mapping[str, Any], action: str, resource: str, context: Mapping[str, Values | str]) -> bool:
    unknown = statement.keys() - {"Sid", "Effect", "Action", "Resource", "Condition"}
    assert not unknown, f"parts of a statement that are not evaluated here: {unknown}"
    return (
        any(_like(action.lower(), each.lower()) for each in _list(statement["Action"]))
        and any(_like(resource, each) for each in _list(statement["Resource"]))
        and all(
            _holds(operator, key, _list(expected), context)
            for operator, keys in statement.get("Condition", {}).items()
            for key, expected in keys.items()
        )
    )


def _holds(operator: str, key: str, expected: Values, context: Mapping[str, Values | str]) -> bool:
    if operator == "Null":
        return [str(key not in context).lower()] == list(expected)
    every, _, test = operator.rpartition(":")
    filled = [text for each in expected if (text := _filled(each, context)) is not None]
    matches = _TESTS[test]
    if every == "ForAllValues":
        # A request without the key has no value that fails.
        return all(any(matches(value, each) for each in filled) for value in _list(context.get(key, [])))
    assert not every, f"{every} is not evaluated here"
    value = context.get(key)
    return isinstance(value, str) and any(matches(value, each) for each in filled)


def _filled(text: str, context: Mapping[str, Values | str]) -> str | None:
    """Return a value with its policy variables filled in; None if one has no value, so that nothing matches."""
    names = re.findall(r"\$\{([^}]+)\}", text)
    if any(name not in context for name in names):
        return None
    return re.sub(r"\$\{([^}]+)\}", lambda match: str(context[match[1]]), text)


def _list(value: Values | str) -> list[str]:
    return [value] if isinstance(value, str) else list(value)
