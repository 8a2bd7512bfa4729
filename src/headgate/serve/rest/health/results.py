"""Results API: the tests and jobs that tools report about a dataset, each with its history."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from headgate.auth import rules
from headgate.auth.roles import Permission
from headgate.health.results.model import HISTORY_MAX, WORST, ReportedResult, ResultKind
from headgate.health.service import HealthService
from headgate.serve.http.operations import Answer, Call, Operation
from headgate.serve.rest.health.models import complete

_HISTORY: Final = 10


class ResultQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Filter of results, and how many past results of each are returned."""

    kind: ResultKind | None = None
    history: Annotated[int, Meta(ge=0, le=HISTORY_MAX)] = _HISTORY


class ResultList(Struct, frozen=True):
    """Results of a dataset, worst first. `failing` counts those that are WARNING or CRITICAL."""

    results: list[ReportedResult]
    failing: int


def result_operations(health: HealthService) -> list[Operation]:
    """Return the operations on reported results."""

    def ls(call: Call[None, ResultQuery]) -> Answer:
        found = health.results.of(call.path["dataset_urn"], call.query.kind)
        found.sort(key=lambda each: (WORST.index(each.state), each.kind, each.test_id))
        shown = [replace(each, history=each.history[: call.query.history]) for each in found]
        return Answer(complete(ResultList(shown, sum(each.state.is_breach for each in found))))

    return [
        Operation(
            "GET",
            "/datasets/{dataset_urn}/results",
            "List test and job results of a dataset",
            ls,
            {200: ResultList},
            query=ResultQuery,
            rule=rules.named(Permission.SIGNAL_READ, "path.dataset_urn"),
        )
    ]
