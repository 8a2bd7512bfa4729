"""Results on the page of a dataset: its tests and jobs, each with its last results as marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.health.model.enums import SignalState
from headgate.health.results.model import CHECK_SOURCE, HISTORY_MAX
from headgate.serve.pages.actions import Action, allowed
from headgate.serve.pages.api_calls import ApiCaller, Section, segment
from headgate.serve.pages.labels import command

MARK_WIDTH: Final = 8
MARK_GAP: Final = 2
HEIGHT: Final = 16
# Distinguished by height, too, for colour-blind users.
_HEIGHTS: Final[Mapping[str, int]] = {
    SignalState.OK: 5,
    SignalState.UNKNOWN: 8,
    SignalState.WARNING: 12,
    SignalState.CRITICAL: HEIGHT,
}


class Mark(Struct, frozen=True):
    """One past result."""

    state: str
    at: str
    message: str
    x: int
    y: int
    height: int
    width: int = MARK_WIDTH


class ResultRow(Struct, frozen=True):
    """A test or job with its marks, oldest first."""

    result: Any
    marks: tuple[Mark, ...]
    # Runs a check of our own now.
    action: Action | None = None
    width: int = HISTORY_MAX * (MARK_WIDTH + MARK_GAP)
    height: int = HEIGHT


def results_section(api: ApiCaller, urn: str) -> tuple[Section, list[ResultRow]]:
    """Return the results of a dataset, worst first."""
    found = api.section(
        "GET /datasets/{dataset_urn}/results", path={"dataset_urn": urn}, query={"history": HISTORY_MAX}
    )
    return found, [
        ResultRow(each, marks(each["history"]), _run_action(api, urn, each)) for each in found.items("results")
    ]


def _run_action(api: ApiCaller, urn: str, result: Mapping[str, Any]) -> Action | None:
    if result["source"] != CHECK_SOURCE:
        return None
    check_id = result["test_id"]
    action = Action(
        label="Run",
        sentence="Runs the check now and stores the result.",
        path=f"/datasets/{segment(urn)}/checks/{segment(check_id)}/run",
        fields=(),
        cli=command("check", "run", urn, check_id),
        done="The check is due and runs within a second or two.",
    )
    return allowed(api, Permission.SIGNAL_WRITE, action, urn)


def marks(history: Sequence[Mapping[str, Any]]) -> tuple[Mark, ...]:
    """Return the marks of past results, which are given newest first."""
    return tuple(
        Mark(
            state=each["state"],
            at=each["at"],
            message=each.get("message") or "",
            x=place * (MARK_WIDTH + MARK_GAP),
            y=HEIGHT - _HEIGHTS[each["state"]],
            height=_HEIGHTS[each["state"]],
        )
        for place, each in enumerate(reversed(history))
    )
