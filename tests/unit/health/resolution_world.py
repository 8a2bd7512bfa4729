"""Datasets and conditions that tests of resolution speak of."""

from __future__ import annotations

from headgate.health.resolution.conditions import Condition

A, B, C, D = (f"urn:dp:orders:{name}" for name in "abcd")


def when(field: str, operator: str, value: object = None, urn: str = B) -> Condition:
    return Condition(field=field, operator=operator, value=value, dataset_urn=urn)
