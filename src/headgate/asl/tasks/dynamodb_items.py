"""DynamoDB item evaluation: evaluates conditions and updates on an item and records the attributes that were read.

`key_range` converts a KeyConditionExpression to a partition and a sort range.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headgate.asl.tasks.attribute_values import kind_of
from headgate.asl.tasks.dynamodb_expressions import (
    And,
    Between,
    Comparison,
    Condition,
    FunctionTest,
    IfNotExists,
    In,
    ItemUpdate,
    Not,
    Operand,
    Or,
    Path,
    Size,
    Sum,
    Term,
    TestFunction,
    Value,
)
from headgate.errors import InvalidItemError
from headgate.store.model.requests import Range, Sort
from headgate.store.model.schema import Index, KeyPart, Table
from headgate.store.model.values import add_numbers, same

MISSING: Final = object()


class ItemView:
    """An item, or None; `attributes_read` has each attribute that was read, and whether its value was needed."""

    def __init__(self, item: Mapping[str, Any] | None) -> None:
        self.item: Mapping[str, Any] = {} if item is None else item
        self.attributes_read: dict[str, bool] = {}

    # Conditions. As in DynamoDB, a missing value or one of another type is unequal to everything and not ordered.

    def holds(self, condition: Condition) -> bool:
        """Whether a condition is true for the item."""
        match condition:
            case And():
                return self.holds(condition.left) and self.holds(condition.right)
            case Or():
                return self.holds(condition.left) or self.holds(condition.right)
            case Not():
                return not self.holds(condition.condition)
            case FunctionTest():
                return self._test(condition)
            case In():
                operand = self._operand(condition.operand)
                return any(_are_same(operand, self._operand(choice)) for choice in condition.choices)
            case Between():
                operand = self._operand(condition.operand)
                low, high = self._operand(condition.low), self._operand(condition.high)
                return _compare("<=", low, operand) and _compare("<=", operand, high)
            case Comparison():
                return _compare(condition.operator, self._operand(condition.left), self._operand(condition.right))

    def _test(self, tested: FunctionTest) -> bool:
        if tested.test is TestFunction.EXISTS:
            return self._has(tested.path)
        if tested.test is TestFunction.LACKS:
            return not self._has(tested.path)
        found = self._value(tested.path)
        operand = MISSING if tested.operand is None else self._operand(tested.operand)
        if found is MISSING or operand is MISSING:
            return False
        match tested.test:
            case TestFunction.TYPE:
                return kind_of(found) == operand
            case TestFunction.BEGINS:
                return _begins(found, operand)
            case _:
                return _contains(found, operand)

    def _operand(self, operand: Operand) -> Any:  # noqa: ANN401 - a value of any type
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
        self.attributes_read.setdefault(path.name, False)
        return path.name in self.item

    def _value(self, path: Path) -> Any:  # noqa: ANN401 - a value of any type
        self.attributes_read[path.name] = True
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

    def changed(self, change: ItemUpdate) -> dict[str, Any]:
        """Return the attributes that an update sets. Raises `InvalidItemError` for a missing or invalid operand."""
        sets = {name: self._term(term, name) for name, term in change.set.items()}
        for name, amount in change.add.items():
            before = self._summand(Path(name)) if self._has(Path(name)) else 0
            sets[name] = add_numbers(before, amount, name)
        return {name: value for name, value in sets.items() if value is not MISSING}

    def _term(self, term: Term, target: str) -> Any:  # noqa: ANN401 - a value of any type
        match term:
            case Value():
                return term.value
            case IfNotExists():
                if not self._has(term.path):
                    return self._term(term.otherwise, target)
                # An attribute set to itself stays unchanged, so its value is not read.
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
    # Both have the same, ordered type.
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
    """Return the partition key and the sort range of a key condition.

    Raises `InvalidItemError` unless it is an equality on the partition key with at most one range on the sort key.
    """
    clauses = [condition.left, condition.right] if isinstance(condition, And) else [condition]
    partition_name = source.partition.name
    equalities = [each for each in clauses if isinstance(each, Comparison) and _names(each.left, partition_name)]
    if len(equalities) != 1 or equalities[0].operator != "=":
        raise InvalidItemError(f"KeyConditionExpression: it must have {partition_name} = :value, once")
    rest = [each for each in clauses if each is not equalities[0]]
    partition: KeyPart = _value_of(equalities[0].right)
    return partition, _sort(source, rest[0]) if rest else None


def _sort(source: Table | Index, condition: Condition) -> Sort:
    name = "" if source.sort is None else source.sort.name
    match condition:
        case Comparison(operator=operator) if operator in _RANGES and _names(condition.left, name):
            return Sort(_RANGES[operator], _value_of(condition.right))
        case Between() if _names(condition.operand, name):
            return Sort(Range.BETWEEN, _value_of(condition.low), _value_of(condition.high))
        case FunctionTest(test=TestFunction.BEGINS) if _names(condition.path, name):
            return Sort(Range.BEGINS_WITH, _value_of(condition.operand))
        case _:
            raise InvalidItemError(
                f"KeyConditionExpression: after the partition key it takes one of =, <, <=, >, >=, BETWEEN and "
                f"begins_with on {name or 'a sort key, and here is none'}"
            )


def _names(operand: object, name: str) -> bool:
    return operand == Path(name) and name != ""


def _value_of(operand: object) -> Any:  # noqa: ANN401 - the store checks what a key may be
    if not isinstance(operand, Value):
        raise InvalidItemError("KeyConditionExpression: a key is compared with a value such as :id")
    return operand.value
