"""Signal types: known ones, users' own, and misspelled ones."""

from __future__ import annotations

import pytest

from headgate.health.model.enums import intended_type, signal_type
from headgate.health.model.signals import no_update


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("FRESHNES", "FRESHNESS"),
        ("freshnss", "FRESHNESS"),
        ("VOLUMES", "VOLUME"),
        ("VOLMUE", "VOLUME"),
        ("DATAQUALITY", "DATA_QUALITY"),
        ("CONTRACT_COMPLIENCE", "CONTRACT_COMPLIANCE"),
        ("CONTRACTS", "CONTRACT_COMPLIANCE"),
        ("SCHEMA-DRFT", "SCHEMA_DRIFT"),
        ("COSTS", "COST"),
    ],
)
def test_intended_type__misspelled__is_the_known_type(given: str, meant: str) -> None:
    assert intended_type(signal_type(given)) == meant


@pytest.mark.parametrize(
    "given",
    [
        *("FRESHNESS", "DQ", "DRIFT", "COMPLETENESS", "UNIQUENESS", "VALIDITY", "LATENCY", "ROW_COUNT", "SCHEMA"),
        *("FRESHNESS_EU", "EU_FRESHNESS", "VOLUME_2", "X_COSTS", "X_FRESHNES", "DLQ", "PIPELINE_RUN", "PIPELINE_DATA"),
    ],
)
def test_intended_type__known_or_own__is_none(given: str) -> None:
    assert intended_type(signal_type(given)) is None


def test_no_update__misspelled__names_the_known_type() -> None:
    assert no_update("urn:dp:a:b", "FRESHNES").endswith("no update received yet; did you mean FRESHNESS?")
    assert no_update("urn:dp:a:b", "ROW_COUNT").endswith("no update received yet")
