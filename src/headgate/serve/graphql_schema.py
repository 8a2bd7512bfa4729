"""The GraphQL schema: the types put together, each field that reads behind the rule of who may ask it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import strawberry
from graphql import GraphQLInputObjectType, GraphQLObjectType, GraphQLResolveInfo, GraphQLSchema
from strawberry.schema.config import StrawberryConfig
from strawberry.schema.schema_converter import GraphQLCoreConverter
from strawberry.types.base import StrawberryObjectDefinition

from headgate.auth.principals import require
from headgate.auth.rules import Rule
from headgate.errors import InvalidIdError
from headgate.health.model import urns
from headgate.serve.graphql_loaders import Context
from headgate.serve.graphql_queries import Query
from headgate.serve.graphql_rules import rule_of
from headgate.serve.graphql_subscriptions import Subscription
from headgate.serve.graphql_words import SCALARS

# The arguments by which a field names datasets, and a column; `filter` may have such a one in it.
_DATASETS: Final = ("datasetUrn", "datasetUrns", "urn")
_COLUMN: Final = "columnUrn"
_FILTER: Final = "filter"


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
        # A subscription is checked when it begins; what it resolves later is what it was given. It begins where nobody
        # may wait, and finds out by itself what it names.
        if field.subscribe is not None:
            field.subscribe = _admitted(rule, field.subscribe)
        else:
            assert field.resolve is not None
            field.resolve = _admitted(rule, _registered(rule, field.resolve))


def _admitted(rule: Rule, run: Callable[..., Any]) -> Callable[..., Any]:
    def admitted(root: object, info: GraphQLResolveInfo, **given: object) -> Any:  # noqa: ANN401 - as the field returns
        require(info.context.principal, rule.permission)
        return run(root, info, **given)

    return admitted


def _registered(rule: Rule, run: Callable[..., Any]) -> Callable[..., Any]:
    """Have a field asked by the names that its datasets are registered under, which its rule is about as well."""

    def registered(root: object, info: GraphQLResolveInfo, **given: object) -> Any:  # noqa: ANN401
        meant = _meant(given, info.context)
        rule.admit(info.context.principal, meant)
        return run(root, info, **meant)

    return registered


def _meant(given: Mapping[str, object], context: Context) -> dict[str, object]:
    """Return arguments with registered names. What is no name is left as it is: the field says so."""
    meant = dict(given)
    for name, value in given.items():
        if name in _DATASETS and isinstance(value, str):
            meant[name] = context.registered(value)
        elif name in _DATASETS and isinstance(value, list):
            meant[name] = [context.registered(each) for each in value]
        elif name == _COLUMN and isinstance(value, str):
            meant[name] = _column(value, context)
        elif name == _FILTER and isinstance(value, dict):
            meant[name] = _meant(value, context)
    return meant


def _column(given: str, context: Context) -> str:
    try:
        dataset_urn, name = urns.column(given)
    except InvalidIdError:
        return given
    return urns.column_urn(context.registered(dataset_urn), name)
