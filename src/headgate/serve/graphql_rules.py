"""Who may ask which field of GraphQL. A field that reads and has no rule here is not served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headgate.auth.roles import Permission
from headgate.auth.rules import Reach, Rule, filtered, found, named
from headgate.errors import DefinitionError

_P = Permission

# By type and field. Fields below a type that was admitted lead from a dataset in scope to the same or another one.
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
    """Return the rule of a field of a type. Raises `DefinitionError` if it has none."""
    try:
        return RULES[f"{kind}.{field}"]
    except KeyError as exc:
        raise DefinitionError(f"{kind}.{field}: no rule says who may ask this; add one to serve/graphql_rules") from exc
