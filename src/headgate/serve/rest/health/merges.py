"""Merge API: datasets that seem to be one table, and the merge of one into another."""

from __future__ import annotations

from msgspec import Struct

from headgate.auth import rules
from headgate.auth.principals import require
from headgate.auth.roles import Permission
from headgate.auth.rules import Reach, Rule
from headgate.health.merge import Duplicates, Merged
from headgate.health.service import HealthService
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.http.problem import Problem
from headgate.serve.rest.health.models import Name, Text


class MergeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The dataset that gets the history, and the reason."""

    into_urn: Name
    reason: Text
    approval_ticket: Name | None = None


def merge_operations(health: HealthService) -> list[Operation]:
    """Return the operations on merges."""

    def find(_call: Call[None, NoQuery]) -> Answer:
        return Answer(health.merges.find())

    def merge(call: Call[MergeBody, NoQuery]) -> Answer:
        body = call.body
        into = health.registered(body.into_urn)
        require(call.principal, Permission.DATASET_WRITE, into)
        return Answer(
            health.merges.merge(
                call.path["dataset_urn"],
                into,
                actor=call.principal.name,
                reason=body.reason,
                ticket=body.approval_ticket,
            )
        )

    return [
        Operation(
            "GET",
            "/dataset-duplicates",
            "List datasets that seem to be one table",
            find,
            {200: Duplicates},
            rule=Rule(Permission.DATASET_READ, Reach.ALL),
        ),
        Operation(
            "POST",
            "/datasets/{dataset_urn}/merge",
            "Merge a dataset into another one",
            merge,
            {200: Merged, 409: Problem},
            body=MergeBody,
            rule=rules.named(Permission.DATASET_WRITE, "path.dataset_urn"),
        ),
    ]
