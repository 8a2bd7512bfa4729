"""The observability.statestore.v1 services: signals, evidence, incidents, lineage, registry, gate and watches."""
