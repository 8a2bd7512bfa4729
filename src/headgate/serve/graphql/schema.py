"""GraphQL schema: builds the schema, and puts an authorization rule before each field that reads.

A field that reads and has no rule here is not served.
"""

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
from headgate.auth.roles import Permission
from headgate.auth.rules import Reach, Rule, filtered, found, named
from headgate.errors import DefinitionError, InvalidIdError
from headgate.health.model import urns
from headgate.serve.graphql.enums import SCALARS
from headgate.serve.graphql.loaders import Context
from headgate.serve.graphql.queries import Query
from headgate.serve.graphql.subscriptions import Subscription

_P = Permission

# By type and field. Fields below an admitted type lead from a dataset in scope to the same or another dataset.
RULES: Final[Mapping[str, Rule]] = {
    "Query.signalState": named(_P.SIGNAL_READ, "datasetUrn"),
    "Query.datasetSignals": named(_P.SIGNAL_READ, "datasetUrn"),
    "Query.criticalSignals": filtered(_P.SIGNAL_READ),
    "Query.signalHistory": named(_P.SIGNAL_READ, "datasetUrn"),
    "Query.volumeHistory": named(_P.SIGNAL_READ, "datasetUrn"),
    "Query.incident": found(_P.INCIDENT_READ),
    "Query.incidents": filtered(_P.INCIDENT_READ, "filter.datasetUrn"),
    "Query.activeIncidents": filtered(_P.INCIDENT_READ),
    "Query.incidentContext": found(_P.INCIDENT_READ),
    "Query.evidence": found(_P.EVIDENCE_READ),
    "Query.dataset": named(_P.DATASET_READ, "urn"),
    "Query.datasets": filtered(_P.DATASET_READ),
    "Query.datasetWriters": named(_P.LINEAGE_READ, "datasetUrn"),
    "Query.datasetReaders": named(_P.LINEAGE_READ, "datasetUrn"),
    "Query.columnWriters": named(_P.LINEAGE_READ, "columnUrn"),
    "Query.columnReaders": named(_P.LINEAGE_READ, "columnUrn"),
    "Query.blastRadius": named(_P.LINEAGE_READ, "datasetUrn"),
    "Query.gate": named(_P.GATE_CHECK, "datasetUrns"),
    "SignalState.dataset": found(_P.DATASET_READ),
    "SignalState.incident": found(_P.INCIDENT_READ),
    "Incident.dataset": found(_P.DATASET_READ),
    "Incident.relatedSignals": found(_P.SIGNAL_READ),
    "Incident.evidence": found(_P.EVIDENCE_READ),
    "Dataset.signals": found(_P.SIGNAL_READ),
    "Dataset.openIncidents": found(_P.INCIDENT_READ),
    "Dataset.writers": found(_P.LINEAGE_READ),
    "Dataset.readers": found(_P.LINEAGE_READ),
    "Dataset.versions": found(_P.DATASET_READ),
    "Subscription.signalChanged": Rule(_P.SIGNAL_READ, Reach.FILTERED),
    "Subscription.incidentChanged": Rule(_P.INCIDENT_READ, Reach.FILTERED),
}


def rule_of(kind: str, field: str) -> Rule:
    """Return the rule of a field. Raises `DefinitionError` if it has none."""
    try:
        return RULES[f"{kind}.{field}"]
    except KeyError as exc:
        raise DefinitionError(f"{kind}.{field}: no authorization rule; add one in serve/graphql/schema") from exc


# Arguments that name datasets or a column; `filter` may contain one.
_DATASETS: Final = ("datasetUrn", "datasetUrns", "urn")
_COLUMN: Final = "columnUrn"
_FILTER: Final = "filter"


def build_schema() -> GraphQLSchema:
    """Return the schema. Raises `DefinitionError` if a field that reads has no rule."""
    config = StrawberryConfig(scalar_map=SCALARS)
    # The library does not expose the built schema, and printing and parsing it would lose the resolvers.
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
    """Put the rule before each reading field of a type."""
    for each in definition.fields:
        if each.base_resolver is None:
            continue
        name = config.name_converter.from_field(each)
        field, rule = kind.fields[name], rule_of(kind.name, name)
        # A subscription is authorized when it starts; its fields resolve events already authorized. It starts on the
        # event loop, which must not block, and resolves the dataset names itself.
        if field.subscribe is not None:
            field.subscribe = _admitted(rule, field.subscribe)
        else:
            assert field.resolve is not None
            field.resolve = _admitted(rule, _registered(rule, field.resolve))


def _admitted(rule: Rule, run: Callable[..., Any]) -> Callable[..., Any]:
    def admitted(root: object, info: GraphQLResolveInfo, **given: object) -> Any:  # noqa: ANN401 - the field's result
        require(info.context.principal, rule.permission)
        return run(root, info, **given)

    return admitted


def _registered(rule: Rule, run: Callable[..., Any]) -> Callable[..., Any]:
    """Call a field with registered dataset names, which also apply to its rule."""

    def registered(root: object, info: GraphQLResolveInfo, **given: object) -> Any:  # noqa: ANN401
        resolved = _resolved_arguments(given, info.context)
        rule.admit(info.context.principal, resolved)
        return run(root, info, **resolved)

    return registered


def _resolved_arguments(given: Mapping[str, object], context: Context) -> dict[str, object]:
    """Return arguments with registered names. Malformed names are left to the field."""
    resolved = dict(given)
    for name, value in given.items():
        if name in _DATASETS and isinstance(value, str):
            resolved[name] = context.registered(value)
        elif name in _DATASETS and isinstance(value, list):
            resolved[name] = [context.registered(each) for each in value]
        elif name == _COLUMN and isinstance(value, str):
            resolved[name] = _column(value, context)
        elif name == _FILTER and isinstance(value, dict):
            resolved[name] = _resolved_arguments(value, context)
    return resolved


def _column(given: str, context: Context) -> str:
    try:
        dataset_urn, name = urns.column(given)
    except InvalidIdError:
        return given
    return urns.column_urn(context.registered(dataset_urn), name)
