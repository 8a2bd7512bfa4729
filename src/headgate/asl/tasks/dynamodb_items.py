"""Item views: what expressions say of an item, and which attributes they had to look at to say it.

Key conditions: which items of a partition a query of DynamoDB asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headgate.asl.tasks.attribute_values import kind_of
from headgate.asl.tasks.dynamodb_expressions import (
    Among,
    Between,
    Both,
    Change,
    Comparison,
    Condition,
    Either,
    IfNotExists,
    Negated,
    Operand,
    Path,
    Size,
    Sum,
    Term,
    Test,
    Tested,
    Value,
)
from headgate.errors import InvalidItemError
from headgate.store.model.requests import Range, Sort
from headgate.store.model.schema import Index, KeyPart, Table
from headgate.store.model.values import add_numbers, same

MISSING: Final = object()


class ItemView:
    """One item (None: there is none), and what was looked at: for each attribute, whether its value was needed."""

    def __init__(self, item: Mapping[str, Any] | None) -> None:
        self.item: Mapping[str, Any] = {} if item is None else item
        self.looked_at: dict[str, bool] = {}

    # Conditions. As DynamoDB has it, what is missing or of another type compares with nothing, and differs from all.

    def holds(self, condition: Condition) -> bool:
        """Whether a condition is true of the item."""
        match condition:
            case Both():
                return self.holds(condition.left) and self.holds(condition.right)
            case Either():
                return self.holds(condition.left) or self.holds(condition.right)
            case Negated():
                return not self.holds(condition.condition)
            case Tested():
                return self._test(condition)
            case Among():
                operand = self._operand(condition.operand)
                return any(_are_same(operand, self._operand(choice)) for choice in condition.choices)
            case Between():
                operand = self._operand(condition.operand)
                low, high = self._operand(condition.low), self._operand(condition.high)
                return _compare("<=", low, operand) and _compare("<=", operand, high)
            case Comparison():
                return _compare(condition.operator, self._operand(condition.left), self._operand(condition.right))

    def _test(self, tested: Tested) -> bool:
        if tested.test is Test.EXISTS:
            return self._has(tested.path)
        if tested.test is Test.LACKS:
            return not self._has(tested.path)
        found = self._value(tested.path)
        operand = MISSING if tested.operand is None else self._operand(tested.operand)
        if found is MISSING or operand is MISSING:
            return False
        match tested.test:
            case Test.TYPE:
                return kind_of(found) == operand
            case Test.BEGINS:
                return _begins(found, operand)
            case _:
                return _contains(found, operand)

    def _operand(self, operand: Operand) -> Any:  # noqa: ANN401 - a value is what it is
        match operand:
            case Value():
                return operand.value
            case Size():
                found = self._value(operand.path)
                return len(found) if isinstance(found, str | bytes | list | dict | frozenset) else MISSING
            case Path():
                return self._value(operand)

    def _has(self, path: Path) -> bool:
        if path.steps:
            return self._value(path) is not MISSING
        self.looked_at.setdefault(path.name, False)
        return path.name in self.item

    def _value(self, path: Path) -> Any:  # noqa: ANN401 - a value is what it is
        self.looked_at[path.name] = True
        found = self.item.get(path.name, MISSING)
        for step in path.steps:
            if isinstance(found, dict) and isinstance(step, str):
                found = found.get(step, MISSING)
            elif isinstance(found, list) and isinstance(step, int):
                found = found[step] if step < len(found) else MISSING
            else:
                return MISSING
        return found

    # Updates.

    def changed(self, change: Change) -> dict[str, Any]:
        """Return the attributes that an update sets. Raises `InvalidItemError` if it needs what is not there."""
        sets = {name: self._term(term, name) for name, term in change.set.items()}
        for name, amount in change.add.items():
            before = self._summand(Path(name)) if self._has(Path(name)) else 0
            sets[name] = add_numbers(before, amount, name)
        return {name: value for name, value in sets.items() if value is not MISSING}

    def _term(self, term: Term, target: str) -> Any:  # noqa: ANN401 - a value is what it is
        match term:
            case Value():
                return term.value
            case IfNotExists():
                if not self._has(term.path):
                    return self._term(term.otherwise, target)
                # Set to itself, it stays as it is, and its value need not be known.
                return MISSING if term.path.name == target else self._value(term.path)
            case Sum():
                left, right = (self._summand(each) for each in (term.left, term.right))
                return add_numbers(left, -right if term.is_difference else right, target)
            case Path():
                found = self._value(term)
                if found is MISSING:
                    raise InvalidItemError(
                        f"The provided expression refers to an attribute that does not exist in the item: {term}"
                    )
                return found

    def _summand(self, term: Term) -> int | float:
        found = self._term(term, "")
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise InvalidItemError(
                "An operand in the update expression has an incorrect data type: + and - take numbers"
            )
        return found


def _compare(operator: str, left: object, right: object) -> bool:
    if operator == "=":
        return _are_same(left, right)
    if operator == "<>":
        return not _are_same(left, right)
    if not _are_ordered(left, right):
        return False
    # Both are of one type that has an order.
    smaller, equal = left < right, left == right  # type: ignore[operator]
    match operator:
        case "<":
            return bool(smaller)
        case "<=":
            return bool(smaller or equal)
        case ">":
            return not smaller and not equal
        case _:
            return not smaller


def _are_same(left: object, right: object) -> bool:
    return left is not MISSING and right is not MISSING and same(left, right)


def _are_ordered(left: object, right: object) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return False
    if isinstance(left, int | float):
        return isinstance(right, int | float)
    return isinstance(left, str | bytes) and type(left) is type(right)


def _begins(found: object, operand: object) -> bool:
    if isinstance(found, str) and isinstance(operand, str):
        return found.startswith(operand)
    return isinstance(found, bytes) and isinstance(operand, bytes) and found.startswith(operand)


def _contains(found: object, operand: object) -> bool:
    if isinstance(found, str | bytes):
        return type(found) is type(operand) and operand in found  # type: ignore[operator]  # of one type
    return isinstance(found, list | frozenset) and any(same(each, operand) for each in found)


_RANGES: Final = {
    "=": Range.EQUALS,
    "<": Range.LESS_THAN,
    "<=": Range.AT_MOST,
    ">": Range.GREATER_THAN,
    ">=": Range.AT_LEAST,
}


def key_range(source: Table | Index, condition: Condition) -> tuple[KeyPart, Sort | None]:
    """Return the partition and the range of sort keys that a key condition names.

    Raises `InvalidItemError` for what is not an equality on the partition key, and at most one range on the sort key.
    """
    clauses = [condition.left, condition.right] if isinstance(condition, Both) else [condition]
    partition_name = source.partition.name
    equalities = [each for each in clauses if isinstance(each, Comparison) and _names(each.left, partition_name)]
    if len(equalities) != 1 or equalities[0].operator != "=":
        raise InvalidItemError(f"KeyConditionExpression: it must say {partition_name} = :value, once")
    rest = [each for each in clauses if each is not equalities[0]]
    partition: KeyPart = _given(equalities[0].right)
    return partition, _sort(source, rest[0]) if rest else None


def _sort(source: Table | Index, condition: Condition) -> Sort:
    name = "" if source.sort is None else source.sort.name
    match condition:
        case Comparison(operator=operator) if operator in _RANGES and _names(condition.left, name):
            return Sort(_RANGES[operator], _given(condition.right))
        case Between() if _names(condition.operand, name):
            return Sort(Range.BETWEEN, _given(condition.low), _given(condition.high))
        case Tested(test=Test.BEGINS) if _names(condition.path, name):
            return Sort(Range.BEGINS_WITH, _given(condition.operand))
        case _:
            raise InvalidItemError(
                f"KeyConditionExpression: beside the partition key it takes one of =, <, <=, >, >=, BETWEEN and "
                f"begins_with on {name or 'a sort key, and here is none'}"
            )


def _names(operand: object, name: str) -> bool:
    return operand == Path(name) and name != ""


def _given(operand: object) -> Any:  # noqa: ANN401 - the store checks what a key may be
    if not isinstance(operand, Value):
        raise InvalidItemError("KeyConditionExpression: a key is compared with a value such as :id")
    return operand.value
