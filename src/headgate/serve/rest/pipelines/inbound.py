"""Inbound API: acknowledgements that Slack and PagerDuty send, authenticated by their signatures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headgate.auth.principals import CredentialKind, Principal
from headgate.notify.acknowledgements import InboundAcks
from headgate.notify.inbound import PAGERDUTY_SIGNATURE, SLACK_SIGNATURE, SLACK_TIMESTAMP
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.http.problem import Problem

_FORM: Final = "application/x-www-form-urlencoded"


def inbound_operations(acks: InboundAcks) -> list[Operation]:
    """Return the operations that Slack and PagerDuty call."""
    served = _Inbound(acks)
    return [
        Operation(
            "POST", "/notify/slack/{channel}", "Take the acknowledgement of a Slack button", served.slack,
            {204: None, 401: Problem, 404: Problem}, body_forms={_FORM: dict[str, Any]}, verify=served.slack_person,
            description="No API key: Slack's signature authenticates. Repeated requests change nothing.",
            headers={SLACK_SIGNATURE: "`v0=` and the HMAC.", SLACK_TIMESTAMP: "Time of the request, in seconds."},
        ),
        Operation(
            "POST", "/notify/pagerduty/{channel}", "Take an acknowledgement of PagerDuty", served.pagerduty,
            {204: None, 401: Problem, 404: Problem},
            body_forms={"application/json": dict[str, Any]}, verify=served.pagerduty_person,
            description="No API key: the signature of the V3 webhook authenticates. Repeated events change nothing.",
            headers={PAGERDUTY_SIGNATURE: "`v1=` and the HMAC; several during a rotation of the secret."},
        ),
    ]  # fmt: skip


class _Inbound:
    def __init__(self, acks: InboundAcks) -> None:
        self._acks = acks

    def slack_person(self, path: Mapping[str, str], headers: Mapping[str, str], content: bytes) -> Principal:
        """Return the person who pressed the button. Raises `UnauthenticatedError`."""
        ack = self._acks.verify_slack(path["channel"], headers, content)
        return _principal("Slack" if ack is None else ack.by)

    def pagerduty_person(self, path: Mapping[str, str], headers: Mapping[str, str], content: bytes) -> Principal:
        """Return the person who acknowledged. Raises `UnauthenticatedError`."""
        ack = self._acks.verify_pagerduty(path["channel"], headers, content)
        return _principal("PagerDuty" if ack is None else ack.by)

    def slack(self, call: Call[Any, NoQuery]) -> Answer:
        ack = self._acks.verify_slack(call.path["channel"], call.headers, call.content)
        if ack is not None:
            self._acks.apply_slack(ack)
        return Answer(status=204)

    def pagerduty(self, call: Call[Any, NoQuery]) -> Answer:
        ack = self._acks.verify_pagerduty(call.path["channel"], call.headers, call.content)
        if ack is not None:
            self._acks.apply_pagerduty(call.path["channel"], ack)
        return Answer(status=204)


def _principal(name: str) -> Principal:
    return Principal(name, frozenset(), kind=CredentialKind.TOKEN)
