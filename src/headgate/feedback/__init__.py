"""Feedback: carries run outcomes and lineage from pipelines to health, and health changes back to pipelines."""
