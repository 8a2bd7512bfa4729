"""DynamoDB expressions: compiles conditions, updates and key ranges, with placeholders for every name and value.

DynamoDB deletes expired items lazily, so a condition on a table with a TTL also covers expired items: they count as
absent.
"""

from __future__ import annotations

from typing import Any, Final

from headgate.errors import InvalidItemError
from headgate.store.dynamodb.marshalling import Attributes, AttributeValue, to_value
from headgate.store.model.conditions import (
    Absent,
    AllOf,
    AnyOf,
    Compare,
    Comparison,
    Condition,
    Exists,
    Has,
    Lacks,
    OneOf,
    Operand,
    holds,
)
from headgate.store.model.requests import Query, Range, Sort, Update
from headgate.store.model.schema import KeyPart, Table

EXPRESSION_BYTES_MAX: Final = 4096


class Placeholders:
    """The names and values of one request. A repeated name, in any of its expressions, has one placeholder."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._values: Attributes = {}

    def name(self, attribute: str) -> str:
        return self._names.setdefault(attribute, f"#{len(self._names)}")

    def value(self, value: Operand | KeyPart) -> str:
        return self.attribute_value(to_value(value))

    def attribute_value(self, value: AttributeValue) -> str:
        """Return the placeholder of a value in DynamoDB's form."""
        placeholder = f":{len(self._values)}"
        self._values[placeholder] = value
        return placeholder

    def parameters(self) -> dict[str, Any]:
        """Return the request parameters that define the placeholders."""
        names = {placeholder: name for name, placeholder in self._names.items()}
        parameters = {"ExpressionAttributeNames": names, "ExpressionAttributeValues": self._values}
        # DynamoDB refuses an empty map.
        return {parameter: content for parameter, content in parameters.items() if content}


def condition_expression(table: Table, condition: Condition, now_seconds: float, places: Placeholders) -> str:
    """Compile `condition` for the item that a reader sees at `now_seconds`."""
    clause = _Clauses(table, places)
    text, is_any = clause.text(condition)
    if table.ttl_attribute is not None:
        ttl, now = places.name(table.ttl_attribute), places.value(int(now_seconds))
        if holds(condition, None):
            text = f"{clause.missing()} OR {ttl} <= {now} OR {text}"
        else:
            # A TTL of None never expires, like a missing one.
            unexpired = f"attribute_not_exists({ttl}) OR {ttl} > {now} OR attribute_type({ttl}, {places.value('NULL')})"
            text = f"{clause.present()} AND ({unexpired}) AND {_in_parentheses(text, needed=is_any)}"
    return _checked(table, text)


def update_expression(update: Update, values: Attributes, places: Placeholders) -> str:
    """Compile an update. `values` are the values it sets, in DynamoDB's form."""
    sets = [f"{places.name(name)} = {places.attribute_value(value)}" for name, value in values.items()]
    adds = [f"{places.name(name)} {places.value(amount)}" for name, amount in update.add.items()]
    removes = [places.name(name) for name in update.remove]
    parts = {"SET": sets, "ADD": adds, "REMOVE": removes}
    return _checked(update.table, " ".join(f"{verb} {', '.join(part)}" for verb, part in parts.items() if part))


def key_expression(query: Query, places: Placeholders) -> str:
    """Compile the key condition of a query that passed `validation.check_query`."""
    source = query.table if query.index is None else query.table.index(query.index)
    text = f"{places.name(source.partition.name)} = {places.value(query.partition)}"
    if query.sort is None:
        return text
    assert source.sort is not None, "check_query refuses a range over a missing sort key"
    return f"{text} AND {_range(places.name(source.sort.name), query.sort, places)}"


class _Clauses:
    """Compiles a condition with the necessary parentheses only: DynamoDB refuses redundant ones."""

    def __init__(self, table: Table, places: Placeholders) -> None:
        self._table = table
        self._places = places

    def present(self) -> str:
        return f"attribute_exists({self._places.name(self._table.partition.name)})"

    def missing(self) -> str:
        return f"attribute_not_exists({self._places.name(self._table.partition.name)})"

    def text(self, condition: Condition) -> tuple[str, bool]:
        """Return the expression, and whether it is an OR that needs parentheses inside an AND."""
        match condition:
            case Compare():
                return self._compare(condition)
            case Absent():
                return self.missing(), False
            case Exists():
                return self.present(), False
            case Has(attribute=attribute):
                return f"attribute_exists({self._places.name(attribute)})", False
            case Lacks(attribute=attribute):
                return f"attribute_not_exists({self._places.name(attribute)})", False
            case OneOf(attribute=attribute, values=values):
                choices = ", ".join(self._places.value(value) for value in values)
                return f"{self._places.name(attribute)} IN ({choices})", False
            case AnyOf(clauses=clauses):
                parts = [self.text(clause) for clause in clauses]
                return " OR ".join(text for text, _ in parts), len(parts) > 1 or parts[0][1]
            case AllOf(clauses=clauses):
                return self._all(clauses)

    def _all(self, clauses: tuple[Condition, ...]) -> tuple[str, bool]:
        if len(clauses) == 1:
            return self.text(clauses[0])
        parts = [self.text(clause) for clause in clauses]
        return " AND ".join(_in_parentheses(text, needed=is_any) for text, is_any in parts), False

    def _compare(self, condition: Compare) -> tuple[str, bool]:
        name, comparison, value = condition.attribute, condition.comparison, condition.value
        if comparison is Comparison.DIFFERS:
            place = self._places.name(name)
            return f"attribute_not_exists({place}) OR {place} <> {self._places.value(value)}", True
        if comparison is not Comparison.EQUALS and (value is None or isinstance(value, bool)):
            # These values have no order, and DynamoDB refuses the comparison: compile a condition that is always false.
            return f"{self.present()} AND {self.missing()}", False
        return f"{self._places.name(name)} {comparison} {self._places.value(value)}", False


def _range(name: str, sort: Sort, places: Placeholders) -> str:
    low = places.value(sort.low)
    if sort.range is Range.BEGINS_WITH:
        return f"begins_with({name}, {low})"
    if sort.range is Range.BETWEEN:
        assert sort.high is not None, "check_query refuses a range without an end"
        return f"{name} BETWEEN {low} AND {places.value(sort.high)}"
    return f"{name} {sort.range} {low}"


def _in_parentheses(text: str, *, needed: bool) -> str:
    return f"({text})" if needed else text


def _checked(table: Table, text: str) -> str:
    if len(text) > EXPRESSION_BYTES_MAX:
        raise InvalidItemError(
            f"table {table.name}: a condition or update takes {len(text)} bytes as an expression, "
            f"at most {EXPRESSION_BYTES_MAX}; name fewer attributes or values"
        )
    return text
