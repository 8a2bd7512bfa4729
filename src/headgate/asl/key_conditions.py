"""Key conditions: which items of a partition a query of DynamoDB asks for."""

from __future__ import annotations

from typing import Any, Final

from headgate.asl.expressions import Between, Both, Comparison, Condition, Path, Test, Tested, Value
from headgate.errors import InvalidItemError
from headgate.store.model.requests import Range, Sort
from headgate.store.model.schema import Index, KeyPart, Table

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
