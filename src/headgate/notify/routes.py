"""Routes: the channels of a notice. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Final

from msgspec import Struct

from headgate.notify.enums import DefaultRoute, Severity
from headgate.notify.notices import Audience, Notice, matches
from headgate.settings import about

# One transaction orders all deliveries of an alert.
CHANNELS_MAX: Final = 20


class Route(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sends notices that match all criteria to channels. Patterns may contain `*` and `?`; one must match.

    Routes are evaluated in order; the first match ends the evaluation unless it has `goes_on`. A route that names
    events also applies to those that are not alerts by default. Without `severity_min`, a route that names events
    applies to any severity, and another one to warnings and critical alerts: successes alert only where asked for.
    """

    channels: Annotated[tuple[str, ...], about("Channels that receive what matches.")]
    name: Annotated[str, about("For people.")] = ""
    severity_min: Annotated[
        Severity | None,
        about(
            "Lowest severity: `critical`, `warning` or `info`. By default any severity for a route that names events, "
            "otherwise `warning`."
        ),
    ] = None
    events: Annotated[tuple[str, ...], about("Event types, such as `SLA_*` or `INCIDENT_*`.")] = ()
    pipelines: Annotated[tuple[str, ...], about("Pipeline ids.")] = ()
    owners: Annotated[tuple[str, ...], about("Owners of the pipeline; of an incident its assignee or team.")] = ()
    teams: Annotated[tuple[str, ...], about("Owner team of the dataset; of a pipeline its label `team` or owner.")] = ()
    tiers: Annotated[tuple[str, ...], about("`TIER_1`, `TIER_2` or `TIER_3` of the dataset or pipeline.")] = ()
    datasets: Annotated[tuple[str, ...], about("Dataset URNs; matches incidents only.")] = ()
    labels: Annotated[dict[str, str], about("Labels of the pipeline, each with a pattern.")] = {}
    goes_on: Annotated[bool, about("Whether later routes are evaluated too.")] = False


def applies(route: Route, notice: Notice, audience: Audience) -> bool:
    """Whether a route applies to this notice."""
    if notice.severity.rank < _severity_min(route).rank:
        return False
    if not route.events and not notice.alerts:
        return False
    return (
        _any_match(notice.event, route.events)
        and _any_match(notice.pipeline_id, route.pipelines)
        and _any_match(audience.owner, route.owners)
        and _any_match(audience.team, route.teams)
        and _any_match(audience.tier, route.tiers)
        and _any_match(notice.dataset_urn, route.datasets)
        and all(
            name in audience.labels and matches(audience.labels[name], pattern)
            for name, pattern in route.labels.items()
        )
    )


def channels_for(
    notice: Notice,
    audience: Audience,
    routes: Sequence[Route],
    defaults: Mapping[DefaultRoute, Sequence[str]],
    known: Collection[str],
) -> tuple[str, ...]:
    """Return the distinct channels of a notice: by matching routes, or by default.

    Channels of the pipeline's own definition are added, except for successes. Unknown names are skipped, so that a
    definition cannot prevent delivery to the others.
    """
    wanted: list[str] = []
    is_routed = False
    for route in routes:
        if applies(route, notice, audience):
            is_routed = True
            wanted += route.channels
            if not route.goes_on:
                break
    is_success = notice.severity is Severity.INFO
    if not is_routed and notice.alerts:
        wanted += defaults.get(DefaultRoute.LOG if is_success else notice.route, ())
    if notice.alerts and not is_success:
        wanted += audience.channels
    channels = [name for name in dict.fromkeys(wanted) if name in known and name not in notice.avoid]
    if not channels and notice.avoid:
        # It is about the channels it would go to: use all others.
        channels = [name for name in known if name not in notice.avoid]
    return tuple(channels[:CHANNELS_MAX])


def fallback_channels(
    failed: str, tried: Collection[str], failing: Collection[str], known: Sequence[str]
) -> tuple[str, ...]:
    """Return all other working channels for an alert whose channel fails.

    Empty if another channel, one that is not known to fail, has the alert already.
    """
    if any(channel != failed and channel not in failing for channel in tried):
        return ()
    return tuple(name for name in known if name != failed and name not in failing)[:CHANNELS_MAX]


def _severity_min(route: Route) -> Severity:
    if route.severity_min is not None:
        return route.severity_min
    return Severity.INFO if route.events else Severity.WARNING


def _any_match(text: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(matches(text, pattern) for pattern in patterns)
