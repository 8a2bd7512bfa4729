"""Silences: the resolved incidents that keep signals still in breach from opening a new one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from headgate.errors import TransientError
from headgate.health.incidents.decisions import dedup_key
from headgate.serve.pages.api_calls import ApiCaller


class Silence(Struct, frozen=True):
    """The incident that was resolved, and the end of its silence."""

    incident_id: str
    until: str


def silences(api: ApiCaller, signals: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Silence]:
    """Return the silences of signals without an incident, by dataset and type; none while the store is unavailable."""
    keys = {
        (each["dataset_urn"], each["signal_type"]): dedup_key(each["dataset_urn"], each["failure_signature"])
        for each in signals
        if each["failure_signature"] and not each["incident_id"]
    }
    try:
        found = api.health.incidents.silenced_by(list(dict.fromkeys(keys.values()))) if keys else {}
    except TransientError:
        return {}
    return {
        name: Silence(incident.incident_id, incident.silenced_until)
        for name, key in keys.items()
        if (incident := found.get(key)) is not None and incident.silenced_until is not None
    }
