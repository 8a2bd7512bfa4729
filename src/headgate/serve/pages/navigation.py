"""Navigation: the pages in the rail, in groups, each with its icon."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from msgspec import Struct


class NavItem(Struct, frozen=True):
    """A page in the rail. `icon` is the path of an outline of 16 by 16."""

    section: str
    label: str
    address: str
    icon: str


def _circle(x: float, y: float, radius: float) -> str:
    return f"M{x - radius} {y}a{radius} {radius} 0 1 0 {2 * radius} 0a{radius} {radius} 0 1 0 {-2 * radius} 0"


def _squares() -> str:
    return "".join(f"M{x} {y}h3v3h-3Z" for y in (2, 6.5, 11) for x in (2, 6.5, 11))


_DISK: Final = "M3 4c0-2.5 10-2.5 10 0v8c0 2.5-10 2.5-10 0ZM3 4c0 2.5 10 2.5 10 0M3 8c0 2.5 10 2.5 10 0"
_BELL: Final = "M8 2a4 4 0 0 0-4 4v3l-1.5 2.5h11L12 9V6a4 4 0 0 0-4-4ZM6.5 13.5h3"
_SLIDERS: Final = f"M2 4h7M13 4h1M2 8h2M8 8h6M2 12h7M13 12h1{_circle(11, 4, 2)}{_circle(6, 8, 2)}{_circle(11, 12, 2)}"

NAVIGATION: Final[tuple[tuple[NavItem, ...], ...]] = (
    (
        NavItem("now", "Now", "/ui", f"M8 2v4M8 10v4M2 8h4M10 8h4{_circle(8, 8, 2)}"),
        NavItem("incidents", "Incidents", "/ui/incidents", "M8 2 14.5 13.5H1.5ZM8 6.5v3.5M8 12v.01"),
        NavItem("datasets", "Datasets", "/ui/datasets", _DISK),
        NavItem("lineage", "Lineage", "/ui/lineage", "M2 6h4v4H2ZM10 2h4v4h-4ZM10 10h4v4h-4ZM6 8h2V4h2M8 8v4h2"),
        NavItem("jobs", "Jobs", "/ui/jobs", "M2 5h12v8H2ZM6 5V3h4v2M2 8.5h12"),
    ),
    (
        NavItem("pipelines", "Pipelines", "/ui/pipelines", "M2 5h8M10 2l3 3-3 3M14 11H6M6 8l-3 3 3 3"),
        NavItem("runs", "Runs", "/ui/runs", "M4 2.5 13 8 4 13.5Z"),
        NavItem("expectations", "Expectations", "/ui/expectations", f"{_circle(8, 8, 6)}M8 4.5V8l2.5 2"),
        NavItem("backfills", "Backfills", "/ui/backfills", "M13 3v10L7.5 8ZM7 3v10L1.5 8Z"),
    ),
    (
        NavItem("executions", "Executions", "/ui/executions", "M2 4h5M2 8h8M2 12h12M10 4h4"),
        NavItem("machines", "Machines", "/ui/machines", "M5.5 2h5v3h-5ZM2 11h5v3H2ZM9 11h5v3H9ZM8 5v3M4.5 11V8h7v3"),
        NavItem("schedules", "Schedules", "/ui/schedules", "M2 3.5h12v10H2ZM2 6.5h12M5 2v3M11 2v3"),
        NavItem("fanouts", "Fan-outs", "/ui/fanouts", _squares()),
    ),
    (
        NavItem("events", "Events", "/ui/events", "M9 1.5 3 9h4l-1 5.5L13 7H8.5Z"),
        NavItem("alerts", "Alerts", "/ui/alerts", _BELL),
        NavItem("workers", "Workers", "/ui/workers", "M2 3h12v4H2ZM2 9h12v4H2ZM4.5 5v.01M4.5 11v.01"),
    ),
    (
        NavItem("operations", "Operations", "/ui/operations", "M2 14V2M2 14h12M4.5 11l3-4 2.5 2L14 4"),
        NavItem("audit", "Audit", "/ui/audit", "M4 1.5h6L13 4.5v10H4ZM6 7h5M6 9.5h5M6 12h3"),
        NavItem("settings", "Settings", "/ui/settings", _SLIDERS),
    ),
)
_OF_PIPELINES: Final = frozenset({"pipelines", "runs", "expectations", "backfills", "alerts"})


def navigation(addresses: Collection[str], *, has_pipelines: bool) -> list[list[NavItem]]:
    """Return the groups of the rail, of the pages that this server has; those of pipelines only where it has them."""
    groups = (
        [each for each in group if each.address in addresses and (has_pipelines or each.section not in _OF_PIPELINES)]
        for group in NAVIGATION
    )
    return [group for group in groups if group]
