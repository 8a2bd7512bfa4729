"""GraphQL limits: size, depth and cost of a query, measured before execution.

A field costs 1, fields with their own reads cost more, and fields below a list are multiplied by its length. Fragments
are measured once each, so that measuring stays cheap however they are nested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from graphql import (
    DocumentNode,
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    GraphQLCompositeType,
    GraphQLField,
    GraphQLInterfaceType,
    GraphQLList,
    GraphQLNamedType,
    GraphQLNonNull,
    GraphQLObjectType,
    GraphQLSchema,
    GraphQLUnionType,
    InlineFragmentNode,
    IntValueNode,
    ListValueNode,
    ObjectValueNode,
    OperationDefinitionNode,
    SelectionNode,
    SelectionSetNode,
    TypeNameMetaFieldDef,
    ValueNode,
    VariableNode,
    get_named_type,
)
from msgspec import Struct
from msgspec.structs import replace

from headgate.errors import QueryLimitError
from headgate.health.model.volume_counts import DAY_HOURS, DAYS_MAX
from headgate.serve.graphql.paging import PAGE_DEFAULT, PAGE_MAX, page_size

# Assumed length of lists that are not paged.
LENGTH_DEFAULT: Final = 10
_LENGTHS: Final[Mapping[str, int]] = {
    "Query.activeIncidents": PAGE_MAX,
    "Query.signalHistory": PAGE_MAX,
    "Query.volumeHistory": DAYS_MAX * DAY_HOURS,
    "Query.datasetWriters": PAGE_MAX,
    "Query.datasetReaders": PAGE_MAX,
    "Query.columnWriters": PAGE_MAX,
    "Query.columnReaders": PAGE_MAX,
    # The connection was multiplied by its edges already.
    "IncidentConnection.edges": 1,
    "DatasetConnection.edges": 1,
}
# Fields with a read of their own; others are batched.
_COSTS: Final[Mapping[str, int]] = {
    "Query.incidentContext": 200,
    "Query.blastRadius": 50,
    "Query.signalHistory": 20,
    "Query.volumeHistory": 20,
    "Query.gate": 20,
    "Dataset.versions": 20,
}
# Arguments that set the length of a list, by number or by listed values.
_SIZES: Final = ("limit", "first")
_LISTED: Final = ("ids", "datasetUrns")
_INTROSPECTION: Final = ("__schema", "__type")
# Lists of types nested in types: each level multiplies the response.
_OF_TYPES: Final = frozenset({"fields", "inputFields", "interfaces", "possibleTypes"})
_OF_TYPES_MAX: Final = 1


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of a query. Introspection is deeper than queries and has limits of its own."""

    bytes_max: int = 64 * 1024
    tokens_max: int = 2_000
    depth_max: int = 8
    introspection_depth_max: int = 16
    introspections_max: int = 2
    cost_max: int = 10_000
    aliases_max: int = 30
    # Occurrences of one field in one place: validation compares each pair.
    repeats_max: int = 20
    seconds_max: float = 10.0


class _Size(Struct, frozen=True):
    """Depth and cost."""

    depth: int = 0
    cost: int = 0

    def beside(self, other: _Size) -> _Size:
        return _Size(max(self.depth, other.depth), self.cost + other.cost)


class _Inside(Struct, frozen=True):
    """Position within an introspection: fields, fragments, and number of type lists above."""

    path: tuple[str, ...]
    fragments: tuple[str, ...] = ()
    lists: int = 0


def check_limits(
    schema: GraphQLSchema,
    document: DocumentNode,
    operation: OperationDefinitionNode,
    variables: Mapping[str, Any],
    limits: Limits,
) -> int:
    """Return the cost of an operation. Raises `QueryLimitError`.

    The document need not be valid: unknown fields cost the minimum, and validation refuses them later.
    """
    meter = _Meter(schema, document, operation, variables, limits)
    size = meter.selections(operation.selection_set, schema.get_root_type(operation.operation))
    meter.others(operation)
    if meter.aliases > limits.aliases_max:
        raise QueryLimitError(f"the query has {meter.aliases} aliases: use at most {limits.aliases_max}")
    if size.depth > limits.depth_max:
        raise QueryLimitError(f"the query is {size.depth} fields deep: nest at most {limits.depth_max}")
    if size.cost > limits.cost_max:
        raise QueryLimitError(
            f"the query costs {size.cost}: at most {limits.cost_max}; request fewer fields or smaller pages"
        )
    return size.cost


class _Meter:
    """Measures one operation."""

    def __init__(
        self,
        schema: GraphQLSchema,
        document: DocumentNode,
        operation: OperationDefinitionNode,
        variables: Mapping[str, Any],
        limits: Limits,
    ) -> None:
        self.aliases = 0
        self._schema = schema
        self._document = document
        self._limits = limits
        self._introspections = 0
        self._fragments = {
            each.name.value: each for each in document.definitions if isinstance(each, FragmentDefinitionNode)
        }
        self._repeats: Counter[tuple[str, ...]] = Counter()
        self._measured: dict[str, _Size | None] = {}
        defaults = {
            each.variable.name.value: each.default_value
            for each in operation.variable_definitions
            if each.default_value is not None
        }
        self._variables, self._defaults = variables, defaults

    def selections(
        self, selected: SelectionSetNode, parent: GraphQLCompositeType | None, path: tuple[str, ...] = ()
    ) -> _Size:
        size = _Size()
        for each in selected.selections:
            if isinstance(each, FieldNode):
                size = size.beside(self._field(each, parent, path))
            elif isinstance(each, InlineFragmentNode):
                condition = each.type_condition
                kind = parent if condition is None else self._type(condition.name.value)
                size = size.beside(self.selections(each.selection_set, kind, path))
            elif isinstance(each, FragmentSpreadNode):
                size = size.beside(self._fragment(each.name.value))
        return size

    def others(self, operation: OperationDefinitionNode) -> None:
        """Measure operations that are not executed but validated with the document."""
        for place, each in enumerate(self._document.definitions):
            if isinstance(each, FragmentDefinitionNode):
                self._fragment(each.name.value)
            elif isinstance(each, OperationDefinitionNode) and each is not operation:
                self.selections(each.selection_set, self._schema.get_root_type(each.operation), (f"#{place}",))

    def _fragment(self, name: str) -> _Size:
        if name not in self._measured:
            self._measured[name] = None
            fragment = self._fragments.get(name)
            if fragment is not None:
                kind = self._type(fragment.type_condition.name.value)
                self._measured[name] = self.selections(fragment.selection_set, kind, (f"...{name}",))
        # None: recursive or missing. Validation refuses both.
        return self._measured[name] or _Size()

    def _field(self, node: FieldNode, parent: GraphQLCompositeType | None, path: tuple[str, ...]) -> _Size:
        name = node.name.value
        if node.alias is not None:
            self.aliases += 1
        path = self._placed(node, path)
        if name in _INTROSPECTION:
            return self._introspection(node, path)
        field = _field_of(parent, name)
        below = _Size()
        if node.selection_set is not None:
            below = self.selections(
                node.selection_set, None if field is None else _composite(get_named_type(field.type))
            )
        where = f"{parent.name}.{name}" if parent is not None else name
        length = self._length(node, field, where)
        return _Size(below.depth + 1, _COSTS.get(where, 1) + length * below.cost)

    def _placed(self, node: FieldNode, path: tuple[str, ...]) -> tuple[str, ...]:
        """Return the position of a field. Raises `QueryLimitError` if it occurs too often there."""
        path = (*path, node.name.value if node.alias is None else node.alias.value)
        self._repeats[path] += 1
        most = self._limits.repeats_max
        if self._repeats[path] > most:
            raise QueryLimitError(f"the query selects {path[-1][:60]} more than {most} times in one place")
        return path

    def _length(self, node: FieldNode, field: GraphQLField | None, where: str) -> int:
        """Return the multiplier of the fields below a field."""
        given = {each.name.value: each.value for each in node.arguments}
        if field is None or _composite(get_named_type(field.type)) is None:
            return 1
        for name in _SIZES:
            if name in field.args:
                return self._size(given.get(name), field.args[name].default_value, name)
        if "pagination" in field.args:
            return self._size(self._part(given.get("pagination"), "first"), PAGE_DEFAULT, "first")
        for name in _LISTED:
            if name in field.args:
                return self._count(given.get(name), name)
        return _LENGTHS.get(where, LENGTH_DEFAULT if _is_list(field) else 1)

    def _size(self, node: object, default: object, name: str) -> int:
        """Return the page size. Raises `QueryLimitError` if it is not allowed."""
        given = self._value(node)
        if given is None:
            given = default
        # Values that are not numbers are refused by validation.
        return page_size(given, name) if isinstance(given, int) and not isinstance(given, bool) else PAGE_MAX

    def _count(self, node: ValueNode | None, name: str) -> int:
        given = self._value(node)
        return page_size(len(given), name) if isinstance(given, list | tuple) else 1

    def _part(self, node: ValueNode | None, name: str) -> object:
        """Return a member of an object that is a literal or a variable."""
        given = self._value(node)
        if isinstance(given, ObjectValueNode):
            return next((each.value for each in given.fields if each.name.value == name), None)
        return given.get(name) if isinstance(given, Mapping) else None

    def _value(self, node: object) -> object:
        """Resolve a value: of a variable, a number, or the nodes of a list; else the node itself."""
        if isinstance(node, VariableNode):
            name = node.name.value
            return self._variables[name] if name in self._variables else self._value(self._defaults.get(name))
        if isinstance(node, IntValueNode):
            return int(node.value)
        return node.values if isinstance(node, ListValueNode) else node

    def _introspection(self, node: FieldNode, path: tuple[str, ...]) -> _Size:
        self._introspections += 1
        limits = self._limits
        if self._introspections > limits.introspections_max:
            raise QueryLimitError(f"the query introspects the schema more than {limits.introspections_max} times")
        depth, fields = self._described(node.selection_set, _Inside(path))
        if depth > limits.introspection_depth_max:
            raise QueryLimitError(
                f"the introspection is {depth} fields deep: nest at most {limits.introspection_depth_max}"
            )
        return _Size(1, fields)

    def _described(self, selected: SelectionSetNode | None, inside: _Inside) -> tuple[int, int]:
        """Return depth and number of introspection fields. Raises `QueryLimitError` for nested lists."""
        deepest, fields = 1, 1
        for each in () if selected is None else selected.selections:
            depth, count = self._described_one(each, inside)
            deepest, fields = max(deepest, depth), fields + count
            if fields > self._limits.cost_max:
                raise QueryLimitError("the introspection has too many fields; request fewer at a time")
        return deepest, fields

    def _described_one(self, each: SelectionNode, inside: _Inside) -> tuple[int, int]:
        if isinstance(each, FragmentSpreadNode):
            name = each.name.value
            fragment = self._fragments.get(name)
            if fragment is None or name in inside.fragments:
                return 0, 0
            return self._described(fragment.selection_set, replace(inside, fragments=(*inside.fragments, name)))
        if isinstance(each, InlineFragmentNode):
            return self._described(each.selection_set, inside)
        assert isinstance(each, FieldNode)
        lists = inside.lists + (each.name.value in _OF_TYPES)
        if lists > _OF_TYPES_MAX:
            raise QueryLimitError("the introspection nests lists of types; request one list at a time")
        within = replace(inside, path=self._placed(each, inside.path), lists=lists)
        depth, count = self._described(each.selection_set, within)
        return depth + 1, count

    def _type(self, name: str) -> GraphQLCompositeType | None:
        return _composite(self._schema.get_type(name))


def _field_of(parent: GraphQLCompositeType | None, name: str) -> GraphQLField | None:
    if name == "__typename":
        return TypeNameMetaFieldDef
    return parent.fields.get(name) if isinstance(parent, GraphQLObjectType | GraphQLInterfaceType) else None


def _composite(kind: GraphQLNamedType | None) -> GraphQLCompositeType | None:
    return kind if isinstance(kind, GraphQLObjectType | GraphQLInterfaceType | GraphQLUnionType) else None


def _is_list(field: GraphQLField) -> bool:
    kind = field.type.of_type if isinstance(field.type, GraphQLNonNull) else field.type
    return isinstance(kind, GraphQLList)
