"""Ingest: OpenLineage events and dbt artifacts, translated into signals, evidence and lineage."""
