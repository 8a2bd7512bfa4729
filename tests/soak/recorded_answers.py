"""Recorded answers for a machine that is known by its definition alone.

Every Task is answered with one document that has whatever the machine reads anywhere: each name of each path, at each
depth, with the values that its Choices compare with, one after the other from call to call. So most paths select
something, and loops that wait for a status end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct, field

from headgate.asl.model.substitution import replace_unresolved, unresolved

_PARTITION: Final = re.compile(r"^arn:\$\{[^}]*\}:")
_NUMBER_FIELDS: Final = ("Seconds", "Max", "Tolerated")
CALLS: Final = 8
TEXT: Final = "text"
_OTHER: Final = "OTHER"
_PAST: Final = "2020-01-01T00:00:00Z"
# The end of a path: what follows the input, the context's copy of it, or a variable.
_PATH: Final = re.compile(
    r"(?<![\w$])(?:\$\$\.Execution\.Input|\$)(?:[A-Za-z_]\w*)?((?:\.{0,2}\[[^\]]*\]|\.\.?[\w-]+)*)"
)
_STEP: Final = re.compile(r"\[['\"]([^'\"]+)['\"]\]|\[(\d+)\]|\[[^\]]*\]|\.\.?([\w-]+)")
_JSONATA_PATH: Final = re.compile(r"\$?[A-Za-z_]\w*(?:\.`?\w+`?|\[[^\]]*\])+")
_JSONATA_ROOTS: Final = frozenset({"states", "input", "result", "context", "errorOutput", "Execution", "Input"})
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"")
_QUOTED_TEXT: Final = re.compile(r"'(?:[^'\\]|\\.)*'")
_CALL: Final = re.compile(r"States\.(\w+)\(([^()]*)\)")
_NUMBERS: Final = frozenset({"MathAdd", "MathRandom", "ArrayRange"})
_LISTS: Final = frozenset({"ArrayLength", "ArrayGetItem", "ArrayContains", "ArrayPartition", "ArrayUnique"})
_TEXTS: Final = frozenset({"Format", "StringSplit", "Base64Encode", "Base64Decode", "Hash"})
_SECONDS: Final = ("SecondsPath", "TimeoutSecondsPath", "HeartbeatSecondsPath", "MaxConcurrencyPath", "MaxItemsPath")
_TEXT_MEMBERS: Final = (
    "CausePath",
    "ErrorPath",
    "Bucket.$",
    "Key.$",
    "Prefix.$",
    "StateMachineArn.$",
    "FunctionName.$",
    "TableName.$",
)


class _Place(Struct):
    """What a machine reads at one place."""

    members: dict[str, _Place] = field(default_factory=dict)
    # The length of a list; 0: it is none.
    length: int = 0
    values: list[Any] = field(default_factory=list)
    is_text: bool = False
    is_json_text: bool = False
    # A Choice asks whether it is there: it is, in every other answer.
    is_optional: bool = False


class Answers:
    """The answers to the Tasks of one machine, and its input."""

    def __init__(self, definition: dict[str, Any]) -> None:
        self._root = _Place()
        for key, value in _members(definition):
            if isinstance(value, str):
                self._read_text(key, value)
            elif key == "Choices":
                self._read_rules(value)
        start = definition["States"].get(definition["StartAt"], {})
        self._has_list_input = '"$[' in json.dumps(start) or start.get("ItemsPath") == "$"

    def answer(self, call: int) -> Any:
        """Return the answer to a call, counted from 0."""
        return self._object(self._root, call, depth=0)

    @property
    def input(self) -> Any:
        """The input of the execution."""
        return [self.answer(0)] if self._has_list_input else self.answer(0)

    @property
    def table(self) -> bytes:
        """A CSV file whose rows have every name that the machine reads."""
        names = [name for name in self._root.members if name.isidentifier()] or ["id"]
        rows = [names, [TEXT] * len(names), [TEXT] * len(names)]
        return "\n".join(",".join(row) for row in rows).encode()

    # What the machine reads.

    def _read_text(self, key: str, text: str) -> None:
        if text.startswith("{%"):
            for found in _JSONATA_PATH.finditer(_QUOTED.sub("", text)):
                steps = _steps(f".{found[0].lstrip('$')}".replace("`", ""))
                self._add([step for step in steps if step not in _JSONATA_ROOTS])
            return
        for place in self._add_paths(text):
            if key == "ItemsPath":
                place.length = max(place.length, 1)
            elif key in _SECONDS:
                _offer(place, 1)
            elif key == "TimestampPath":
                _offer(place, _PAST)
            elif key in _TEXT_MEMBERS:
                place.is_text = True
        # Texts may have parentheses. Calls nest: the innermost is read first, and stands as nothing in the next.
        text = _QUOTED_TEXT.sub("''", text)
        while called := _CALL.search(text):
            self._read_call(called[1], called[2])
            text = text[: called.start()] + text[called.end() :]

    def _read_call(self, function: str, arguments: str) -> None:
        for index, argument in enumerate(arguments.split(",")):
            for place in self._add_paths(argument):
                if function in _NUMBERS:
                    _offer(place, 1)
                elif function in _LISTS and index == 0:
                    place.length = max(place.length, 1)
                elif function == "StringToJson":
                    place.is_json_text = True
                elif function in _TEXTS:
                    place.is_text = True

    def _read_rules(self, rule: Any) -> None:
        if isinstance(rule, list):
            for each in rule:
                self._read_rules(each)
        elif isinstance(rule, dict):
            for key, compared in rule.items():
                if key in ("And", "Or", "Not"):
                    self._read_rules(compared)
                elif isinstance(rule.get("Variable"), str) and key not in ("Variable", "Next", "Comment", "Assign"):
                    for place in self._add_paths(rule["Variable"]):
                        _offer_compared(place, key, compared)

    def _add_paths(self, text: str) -> list[_Place]:
        return [place for found in _PATH.finditer(text) if found[1] for place in self._add(_steps(found[1]))]

    def _add(self, steps: list[str | int]) -> list[_Place]:
        """Add the path, and what remains of it below each of its names: a result may be put anywhere."""
        places = []
        for start, first in enumerate(steps):
            if not isinstance(first, str):
                continue
            place = self._root
            for step in steps[start:]:
                if isinstance(step, int):
                    place.length = max(place.length, step + 1)
                else:
                    place = place.members.setdefault(step, _Place())
            places.append(place)
        return places

    # What it is given.

    def _value(self, place: _Place, call: int, depth: int) -> Any:
        if place.length:
            return [self._object(place, call, depth) for _ in range(place.length)]
        if place.is_json_text:
            # Within such a text there is no other.
            return json.dumps(self._object(place, call, 1)) if depth < 2 else "1"
        if place.members:
            return self._object(place, call, depth)
        if place.values:
            return place.values[call % len(place.values)]
        return TEXT if place.is_text or depth > 1 else self._object(place, call, depth)

    def _object(self, place: _Place, call: int, depth: int) -> dict[str, Any]:
        """Return the members of a place with all of the root's, so that it may stand for any part of the data."""
        common = (
            self._root.members
            if depth < 1
            else {name: each for name, each in self._root.members.items() if _is_flat(each)}
        )
        return {
            name: self._value(each, call, depth + 1)
            for name, each in (common | place.members).items()
            if not (each.is_optional and call % 2)
        }


def _is_flat(place: _Place) -> bool:
    return not place.members and not place.length and not place.is_json_text


def _offer(place: _Place, *values: Any) -> None:
    place.values += [value for value in values if value not in place.values]


def _offer_compared(place: _Place, operator: str, compared: Any) -> None:
    if operator == "IsPresent":
        place.is_optional = True
    if operator.endswith("Path"):
        return
    if operator.startswith("Numeric"):
        _offer(place, compared, compared + 1, compared - 1)
    elif operator.startswith("String"):
        _offer(place, str(compared).replace("*", "x"), _OTHER)
    elif operator.startswith("Boolean"):
        _offer(place, compared, not compared)
    elif operator.startswith("Timestamp"):
        _offer(place, compared, _PAST)


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, member in value.items():
            yield key, member
            yield from _members(member)
    elif isinstance(value, list):
        for entry in value:
            yield from _members(entry)


def _steps(text: str) -> list[str | int]:
    steps: list[str | int] = []
    for found in _STEP.finditer(text):
        name = found[1] or found[3]
        steps.append(name if name is not None else int(found[2] or 0))
    return steps


def deployed(value: Any, key: str = "") -> Any:
    """Return a definition with a value in place of each placeholder, as a deployment fills them in."""
    if isinstance(value, str):
        if not unresolved(value):
            return value
        if any(word in key for word in _NUMBER_FIELDS) and not replace_unresolved(value, ""):
            return 1
        return replace_unresolved(_PARTITION.sub("arn:aws:", value), TEXT)
    if isinstance(value, list):
        return [deployed(entry) for entry in value]
    if isinstance(value, dict):
        names = [replace_unresolved(name, f"{TEXT}{index}") for index, name in enumerate(value)]
        return {name: deployed(each, name) for name, each in zip(names, value.values(), strict=True)}
    return value
