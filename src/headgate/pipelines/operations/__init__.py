"""Operator actions: manual control of periods and pipelines, and backfills."""
