"""Timeline of an incident: where alerts went."""

from __future__ import annotations

from typing import Any

from headgate.serve.pages.health.incident_timeline import deliveries


def _alert(*sent: tuple[str, str, str], **more: str) -> dict[str, Any]:
    ways = [{"channel": channel, "state": state, "error": error} for channel, state, error in sent]
    return {"muted_by": "", "acknowledged_by": "", "deliveries": ways, **more}


def test_deliveries__two_of_one_channel__are_named_once() -> None:
    alert = _alert(("console", "SENT", ""), ("console", "SENT", ""), ("pager", "FAILED", "401"))

    assert deliveries(alert) == "console sent, pager failed (401)"


def test_deliveries__muted_acknowledged_or_without_a_channel__say_so() -> None:
    assert deliveries(_alert(("console", "SENT", ""), muted_by="mute_1")) == "muted by mute_1"
    assert deliveries(_alert(acknowledged_by="ada")) == "to no channel; acknowledged by ada"
