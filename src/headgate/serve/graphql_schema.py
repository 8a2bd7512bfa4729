"""The GraphQL schema: the types put together, each field that reads behind the rule of who may ask it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import strawberry
from graphql import GraphQLInputObjectType, GraphQLObjectType, GraphQLResolveInfo, GraphQLSchema
from strawberry.schema.config import StrawberryConfig
from strawberry.schema.schema_converter import GraphQLCoreConverter
from strawberry.types.base import StrawberryObjectDefinition

from headgate.auth.rules import Rule
from headgate.serve.graphql_queries import Query
from headgate.serve.graphql_rules import rule_of
from headgate.serve.graphql_subscriptions import Subscription
from headgate.serve.graphql_words import SCALARS


def build_schema() -> GraphQLSchema:
    """Return the schema. Raises `DefinitionError` if a field that reads has no rule."""
    config = StrawberryConfig(scalar_map=SCALARS)
    # The library has no public name for what it made, and printing it and reading it back would lose the resolvers.
    schema: GraphQLSchema = strawberry.Schema(Query, subscription=Subscription, config=config)._schema
    for kind in schema.type_map.values():
        definition = kind.extensions.get(GraphQLCoreConverter.DEFINITION_BACKREF)
        if isinstance(definition, StrawberryObjectDefinition):
            kind.description = inspect.cleandoc(definition.origin.__doc__ or "") or None
            if isinstance(kind, GraphQLObjectType):
                _guard(kind, definition, config)
            else:
                assert isinstance(kind, GraphQLInputObjectType)
    return schema


def _guard(kind: GraphQLObjectType, definition: StrawberryObjectDefinition, config: StrawberryConfig) -> None:
    """Put its rule before each field of a type that reads: all but those that are there already."""
    for each in definition.fields:
        if each.base_resolver is None:
            continue
        name = config.name_converter.from_field(each)
        field, rule = kind.fields[name], rule_of(kind.name, name)
        # A subscription is checked when it begins; what it resolves later is what it was given.
        if field.subscribe is not None:
            field.subscribe = _admitted(rule, field.subscribe)
        else:
            assert field.resolve is not None
            field.resolve = _admitted(rule, field.resolve)


def _admitted(rule: Rule, run: Callable[..., Any]) -> Callable[..., Any]:
    def admitted(root: object, info: GraphQLResolveInfo, **given: object) -> Any:  # noqa: ANN401 - as the field returns
        rule.admit(info.context.principal, given)
        return run(root, info, **given)

    return admitted
