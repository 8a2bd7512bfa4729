"""The GraphQL schema: what dashboards were promised is in it, word for word."""

from __future__ import annotations

from pathlib import Path

import pytest
from graphql import (
    GraphQLInputObjectType,
    GraphQLObjectType,
    GraphQLSchema,
    Undefined,
    build_schema,
    find_breaking_changes,
    find_dangerous_changes,
    validate_schema,
)

from headgate.errors import DefinitionError
from headgate.serve.graphql import schema as graphql_schema
from headgate.serve.graphql.schema import RULES, rule_of

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def schema() -> GraphQLSchema:
    return graphql_schema.build_schema()


@pytest.fixture(scope="module")
def promised() -> GraphQLSchema:
    return build_schema((HERE / "dashboard.graphql").read_text() + (HERE / "dashboard_rest.graphql").read_text())


def test_schema__it_is_valid(schema: GraphQLSchema) -> None:
    assert validate_schema(schema) == []


def test_schema__what_was_promised__nothing_is_broken(schema: GraphQLSchema, promised: GraphQLSchema) -> None:
    assert [each.description for each in find_breaking_changes(promised, schema)] == []
    assert [
        each.description for each in find_dangerous_changes(promised, schema) if "default" in each.description
    ] == []


def test_schema__what_was_promised__types_and_defaults_are_the_same(
    schema: GraphQLSchema, promised: GraphQLSchema
) -> None:
    for name, kind in promised.type_map.items():
        ours = schema.type_map[name]
        if not isinstance(kind, GraphQLObjectType | GraphQLInputObjectType) or name.startswith("__"):
            continue
        assert isinstance(ours, GraphQLObjectType | GraphQLInputObjectType)
        for field_name, field in kind.fields.items():
            assert str(ours.fields[field_name].type) == str(field.type), f"{name}.{field_name}"
            for argument_name, argument in getattr(field, "args", {}).items():
                our_argument = ours.fields[field_name].args[argument_name]
                assert str(our_argument.type) == str(argument.type)
                assert our_argument.default_value == argument.default_value


def test_schema__arguments_beyond_what_was_promised__are_optional(
    schema: GraphQLSchema, promised: GraphQLSchema
) -> None:
    assert promised.query_type is not None
    assert schema.query_type is not None
    for name, field in promised.query_type.fields.items():
        for argument_name, argument in schema.query_type.fields[name].args.items():
            assert argument_name in field.args or argument.default_value is not Undefined


def test_rules__every_field_of_the_roots_has_one_and_there_are_no_others(schema: GraphQLSchema) -> None:
    assert schema.query_type is not None
    assert schema.subscription_type is not None
    roots = {f"Query.{name}" for name in schema.query_type.fields}
    roots |= {f"Subscription.{name}" for name in schema.subscription_type.fields}

    assert roots <= set(RULES)
    for name in RULES:
        kind, field = name.split(".")
        owner = schema.type_map[kind]
        assert isinstance(owner, GraphQLObjectType)
        assert field in owner.fields
    assert schema.mutation_type is None


def test_rule_of__no_rule__says_where_to_add_it() -> None:
    with pytest.raises(DefinitionError, match="graphql/schema"):
        rule_of("Query", "everything")
